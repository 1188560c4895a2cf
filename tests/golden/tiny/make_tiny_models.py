#!/usr/bin/env python3
"""Makes the tiny GGUF models of this folder and their golden logits.

The weights are seeded noise, rounded to the type that the file stores; `transformers` runs the rounded weights in
float32. So a difference is an error of the code under test and not of quantisation. See README.md for the file formats.

    make_tiny_models.py            write the models, the logits and meta.json
    make_tiny_models.py --check    make them again elsewhere and compare: models by byte, logits to 1e-4
"""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib
import tempfile
from dataclasses import dataclass, field

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type

HERE = pathlib.Path(__file__).resolve().parent
PROMPT = "The raven and the wolf were talking in the snow."
GREEDY_TOKENS = 16
# Enough to tell a wrong mask, position or layer; all of them would make large files.
LOGITS_POSITIONS = [0, 1, 5, 11, 20, 27, 33, 40]
CHECK_TOLERANCE = 1e-4

SPECIAL_TOKENS = ["<|end_of_text|>", "<|turn|>", "<|end_of_turn|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "e r", "a n", "r e", "o n", "in g", "an d", "Ġ w", "Ġ s"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|turn|>' + message['role'] + '\\n' + message['content'] + '<|end_of_turn|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% endif %}"
)


@dataclass
class Spec:
    """One model. `rope` is transformers' rope_parameters without the base."""

    name: str
    architecture: str
    seed: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    matrix_type: Type = Type.F16
    embedding_type: Type = Type.F16
    biases: bool = False
    rope: dict = field(default_factory=lambda: {"rope_type": "default"})
    layers: int = 2
    context: int = 256

    @property
    def rope_base(self):
        return 10000.0 if self.architecture == "llama" else 1000000.0

    @property
    def epsilon(self):
        return 1e-5 if self.architecture == "llama" else 1e-6


# The seeds were chosen so that every greedy step leads by more than 0.12 and the continuation is no loop: a correct
# decoder with a 16-bit KV cache then gives the same tokens.
SPECS = [
    Spec("llama-mha", "llama", 1011, 48, 40, 6, 6, 8, tied=True, biases=True, matrix_type=Type.F32),
    Spec("llama-gqa", "llama", 12, 64, 48, 4, 2, 16, tied=False),
    Spec("llama-mqa", "llama", 813, 64, 96, 4, 1, 24, tied=True, matrix_type=Type.Q8_0),
    Spec("qwen2-mha", "qwen2", 1714, 64, 64, 4, 4, 16, tied=False, biases=True,
         matrix_type=Type.Q8_0, embedding_type=Type.Q8_0),
    Spec("qwen2-gqa", "qwen2", 1615, 48, 40, 6, 2, 8, tied=True, biases=True, matrix_type=Type.F32),
    Spec("qwen2-mqa", "qwen2", 1216, 48, 72, 2, 1, 24, tied=True, biases=True),
    Spec("llama-rope-linear", "llama", 917, 48, 40, 3, 1, 16, tied=True,
         rope={"rope_type": "linear", "factor": 4.0}),
    Spec("llama-rope-yarn", "llama", 18, 48, 40, 3, 1, 16, tied=True,
         rope={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
    Spec("llama-rope-llama3", "llama", 519, 48, 40, 3, 1, 16, tied=True,
         rope={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
    Spec("qwen2-rope-yarn", "qwen2", 3020, 48, 40, 3, 3, 16, tied=True, biases=True,
         rope={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
]


# --- vocabulary -------------------------------------------------------------------------------------------------------


def byte_characters():
    """GPT-2's printable character for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + len(table) - len(printable))
    return [table[byte] for byte in range(256)]


def vocabulary():
    """Special tokens, the 256 bytes, then what the merges make."""
    return SPECIAL_TOKENS + byte_characters() + [merge.replace(" ", "") for merge in MERGES]


def encode(text):
    """Byte-level BPE without a pre-tokenizer: enough for a prompt of words with one space between them."""
    characters = byte_characters()
    ids = {token: i for i, token in enumerate(vocabulary())}
    pieces = [characters[byte] for byte in text.encode()]
    for merge in MERGES:
        left, right = merge.split(" ")
        i = 0
        while i + 1 < len(pieces):
            if pieces[i] == left and pieces[i + 1] == right:
                pieces[i : i + 2] = [left + right]
            i += 1
    return [ids[piece] for piece in pieces]


# --- weights ----------------------------------------------------------------------------------------------------------


def random_weights(spec):
    """Name in transformers -> float32 array, scaled so that attention is peaked and logits spread."""
    rng = np.random.default_rng(spec.seed)

    def noise(*shape, scale):
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def matrix(rows, cols, gain):
        return noise(rows, cols, scale=gain / np.sqrt(cols))

    q_width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    weights = {"model.embed_tokens.weight": noise(len(vocabulary()), spec.hidden, scale=0.4)}
    for layer in range(spec.layers):
        at = f"model.layers.{layer}."
        weights[at + "self_attn.q_proj.weight"] = matrix(q_width, spec.hidden, 1.5)
        weights[at + "self_attn.k_proj.weight"] = matrix(kv_width, spec.hidden, 1.5)
        weights[at + "self_attn.v_proj.weight"] = matrix(kv_width, spec.hidden, 1.0)
        weights[at + "self_attn.o_proj.weight"] = matrix(spec.hidden, q_width, 1.5)
        weights[at + "mlp.gate_proj.weight"] = matrix(spec.ffn, spec.hidden, 1.5)
        weights[at + "mlp.up_proj.weight"] = matrix(spec.ffn, spec.hidden, 1.0)
        weights[at + "mlp.down_proj.weight"] = matrix(spec.hidden, spec.ffn, 2.0)
        weights[at + "input_layernorm.weight"] = 1 + noise(spec.hidden, scale=0.2)
        weights[at + "post_attention_layernorm.weight"] = 1 + noise(spec.hidden, scale=0.2)
        if spec.biases:
            weights[at + "self_attn.q_proj.bias"] = noise(q_width, scale=0.5)
            weights[at + "self_attn.k_proj.bias"] = noise(kv_width, scale=0.5)
            weights[at + "self_attn.v_proj.bias"] = noise(kv_width, scale=0.5)
            if spec.architecture == "llama":
                weights[at + "self_attn.o_proj.bias"] = noise(spec.hidden, scale=0.5)
    weights["model.norm.weight"] = 1 + noise(spec.hidden, scale=0.2)
    if not spec.tied:
        weights["lm_head.weight"] = matrix(len(vocabulary()), spec.hidden, 3.0)
    return weights


def stored_type(spec, name, array):
    if array.ndim == 1:
        return Type.F32
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        return spec.embedding_type
    return spec.matrix_type


def gguf_name(name):
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    if name == "lm_head.weight":
        return "output.weight"
    _, _, layer, *rest, kind = name.split(".")
    part = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }[".".join(rest)]
    return f"blk.{layer}.{part}.{kind}"


def to_adjacent_pairs(array, heads):
    """Rows of a head from the order (i, i + half) to (2i, 2i + 1), as architecture llama has them in a GGUF."""
    half = array.shape[0] // heads // 2
    return array.reshape(heads, 2, half, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def stored_order(spec, name, array):
    if spec.architecture == "llama" and ".q_proj." in name:
        return to_adjacent_pairs(array, spec.heads)
    if spec.architecture == "llama" and ".k_proj." in name:
        return to_adjacent_pairs(array, spec.kv_heads)
    return array


def round_to_stored(spec, weights):
    """The weights as a reader of the file gets them. Blocks run along a row, so the order of rows does not matter."""
    return {
        name: gguf.quants.dequantize(gguf.quants.quantize(array, stored_type(spec, name, array)),
                                     stored_type(spec, name, array)).astype(np.float32)
        for name, array in weights.items()
    }


# --- GGUF -------------------------------------------------------------------------------------------------------------


def llama3_factors(spec):
    """Divisors of the frequencies as converters store them (Llama 3.1's rule)."""
    rope = spec.rope
    frequencies = spec.rope_base ** -(np.arange(0, spec.head_dim, 2) / spec.head_dim)
    wavelengths = 2 * np.pi / frequencies
    original = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (original / wavelengths - low) / (high - low)
    middle = 1 / ((1 - smooth) / rope["factor"] + smooth)
    factors = np.where(wavelengths > original / low, rope["factor"], middle)
    return np.where(wavelengths < original / high, 1.0, factors).astype(np.float32)


def write_rope(writer, spec):
    writer.add_rope_freq_base(spec.rope_base)
    writer.add_rope_dimension_count(spec.head_dim)
    kind = spec.rope["rope_type"]
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(spec))
    elif kind != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(spec.rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(spec.rope["original_max_position_embeddings"])


def write_tokenizer(writer, spec):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if spec.architecture == "llama" else "qwen2")
    writer.add_token_list(vocabulary())
    control = [int(gguf.TokenType.CONTROL)] * len(SPECIAL_TOKENS)
    normal = [int(gguf.TokenType.NORMAL)] * (len(vocabulary()) - len(SPECIAL_TOKENS))
    writer.add_token_types(control + normal)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(SPECIAL_TOKENS.index("<|turn|>"))
    writer.add_eos_token_id(SPECIAL_TOKENS.index("<|end_of_turn|>"))
    writer.add_eot_token_id(SPECIAL_TOKENS.index("<|end_of_text|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_gguf(path, spec, weights):
    writer = gguf.GGUFWriter(path, spec.architecture)
    writer.add_name(f"tiny {spec.name}")
    writer.add_block_count(spec.layers)
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.hidden)
    writer.add_feed_forward_length(spec.ffn)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    if spec.head_dim * spec.heads != spec.hidden:
        writer.add_key_length(spec.head_dim)
        writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.epsilon)
    writer.add_vocab_size(len(vocabulary()))
    write_rope(writer, spec)
    write_tokenizer(writer, spec)
    for name, array in weights.items():
        kind = stored_type(spec, name, array)
        array = stored_order(spec, name, array)
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# --- the reference ----------------------------------------------------------------------------------------------------


def make_reference(spec, weights):
    """transformers' model with the weights that the file has."""
    common = dict(
        vocab_size=len(vocabulary()),
        hidden_size=spec.hidden,
        intermediate_size=spec.ffn,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        max_position_embeddings=spec.context,
        rms_norm_eps=spec.epsilon,
        tie_word_embeddings=spec.tied,
        rope_parameters={"rope_theta": spec.rope_base, **spec.rope},
        attn_implementation="eager",
    )
    if spec.architecture == "llama":
        config = transformers.LlamaConfig(head_dim=spec.head_dim, attention_bias=spec.biases, **common)
        model = transformers.LlamaForCausalLM(config)
    else:
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**common))
    state = {name: torch.from_numpy(array) for name, array in weights.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= ({"lm_head.weight"} if spec.tied else set()), (missing, unexpected)
    model.tie_weights()
    return model.float().eval()


@torch.no_grad()
def all_logits(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def golden(spec, model):
    """The greedy continuation token by token, then all numbers from one pass over prompt and continuation."""
    prompt = encode(PROMPT)
    ids = list(prompt)
    for _ in range(GREEDY_TOKENS):
        ids.append(int(all_logits(model, ids)[-1].argmax()))
    logits = all_logits(model, ids)
    margins = []
    for row in logits[len(prompt) - 1 : -1]:
        best = np.sort(row)[::-1]
        margins.append(round(float(best[0] - best[1]), 5))
    positions = [position for position in LOGITS_POSITIONS if position < len(ids)]
    rotary = model.model.rotary_emb
    return {
        "model": f"{spec.name}.gguf",
        "prompt": PROMPT,
        "num_prompt": len(prompt),
        "ids": ids,
        "greedy_margins": margins,
        "rope": {"inverse_frequency": [float(f"{value:.8g}") for value in rotary.inv_freq],
                 "magnitude": float(rotary.attention_scaling)},
        "positions": positions,
        "logits": [[float(f"{value:.7g}") for value in logits[position]] for position in positions],
    }


# YaRN at the sizes of published models (the first is Qwen2.5's), where both borders of its ramp are inside the head.
YARN_CASES = [
    {"dims": 128, "base": 1000000.0, "factor": 4.0, "original_tokens": 32768},
    {"dims": 64, "base": 10000.0, "factor": 16.0, "original_tokens": 4096},
]


def yarn_reference(case):
    config = transformers.LlamaConfig(
        head_dim=case["dims"], num_attention_heads=1, hidden_size=case["dims"],
        max_position_embeddings=int(case["factor"] * case["original_tokens"]),
        rope_parameters={"rope_type": "yarn", "rope_theta": case["base"], "factor": case["factor"],
                         "original_max_position_embeddings": case["original_tokens"]})
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    return {**case, "inverse_frequency": [float(f"{value:.8g}") for value in rotary.inv_freq],
            "magnitude": float(rotary.attention_scaling)}


# --- files ------------------------------------------------------------------------------------------------------------


def write_json(path, value):
    path.write_text(json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n")


def make_all(folder):
    files = {}
    for spec in SPECS:
        weights = random_weights(spec)
        path = folder / f"{spec.name}.gguf"
        write_gguf(path, spec, weights)
        row = golden(spec, make_reference(spec, round_to_stored(spec, weights)))
        write_json(folder / f"{spec.name}.json", row)
        files[path.name] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "seed": spec.seed}
        print(f"{spec.name}: {path.stat().st_size} bytes, smallest greedy margin {min(row['greedy_margins'])}, "
              f"{len(set(row['ids'][row['num_prompt']:]))} different greedy tokens")
    write_json(folder / "yarn.json", [yarn_reference(case) for case in YARN_CASES])
    versions = {"gguf": importlib.metadata.version("gguf"), "numpy": np.__version__, "torch": torch.__version__,
                "transformers": transformers.__version__}
    (folder / "meta.json").write_text(json.dumps({"versions": versions, "models": files}, indent=1) + "\n")


def check(folder):
    for spec in SPECS:
        name = f"{spec.name}.gguf"
        assert (folder / name).read_bytes() == (HERE / name).read_bytes(), f"{name} differs"
        made = json.loads((folder / f"{spec.name}.json").read_text())
        kept = json.loads((HERE / f"{spec.name}.json").read_text())
        assert made["ids"] == kept["ids"], f"{spec.name}: ids differ"
        difference = np.abs(np.array(made["logits"]) - np.array(kept["logits"])).max()
        assert difference < CHECK_TOLERANCE, f"{spec.name}: logits differ by {difference}"
    assert (folder / "yarn.json").read_text() == (HERE / "yarn.json").read_text(), "yarn.json differs"
    print("all models are equal, all logits within", CHECK_TOLERANCE)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.check:
        make_all(HERE)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_all(pathlib.Path(folder))
        check(pathlib.Path(folder))


if __name__ == "__main__":
    main()

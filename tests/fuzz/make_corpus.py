#!/usr/bin/env python3
"""Writes the seeds that are too long or too binary to be written by hand: small model files, HTTP requests and protobuf
messages, into FOLDER/gguf, FOLDER/http and FOLDER/grpc. The same bytes each time. Seeds in tests/fuzz/corpus are used too.

  tests/fuzz/make_corpus.py FOLDER
"""

import json
import pathlib
import struct
import sys

WIDTH, KV_WIDTH, FFN, HEADS, KV_HEADS = 8, 4, 32, 2, 1
F32, Q8_0 = 0, 8
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return u64(len(value)) + value


def strings(values):
    return u32(ARRAY) + u32(STRING) + u64(len(values)) + b"".join(map(text, values))


def byte_spellings():
    """How byte-level vocabularies spell bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    free = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(free)) for byte in range(256)]


def keys(family, tokenizer, template):
    found = {"general.architecture": u32(STRING) + text(family), "general.name": u32(STRING) + text("seed")}
    for name, value in [("block_count", 1), ("context_length", 64), ("embedding_length", WIDTH), ("feed_forward_length", FFN),
                        ("attention.head_count", HEADS), ("attention.head_count_kv", KV_HEADS)]:
        found[f"{family}.{name}"] = u32(UINT32) + u32(value)
    found[f"{family}.attention.layer_norm_rms_epsilon"] = u32(FLOAT32) + struct.pack("<f", 1e-5)
    found[f"{family}.rope.freq_base"] = u32(FLOAT32) + struct.pack("<f", 1e4)
    if template:
        found["tokenizer.chat_template"] = u32(STRING) + text(template)
    found["tokenizer.ggml.model"] = u32(STRING) + text(tokenizer)
    if tokenizer == "gpt2":
        tokens = [*byte_spellings(), "he", "ll", "hell", "<|im_start|>", "<|im_end|>"]
        types = [1] * 259 + [3] * 2
        found["tokenizer.ggml.pre"] = u32(STRING) + text("smollm")
        found["tokenizer.ggml.merges"] = strings(["h e", "l l", "he ll"])
        found["tokenizer.ggml.eos_token_id"] = u32(UINT32) + u32(260)
    else:
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "h", "e", "he"]
        types = [2, 3, 3] + [6] * 256 + [1] * 4
        scores = [0.0] * 259 + [-1.0, -2.0, -3.0, -0.5]
        found["tokenizer.ggml.scores"] = u32(ARRAY) + u32(FLOAT32) + u64(len(scores)) + struct.pack(f"<{len(scores)}f", *scores)
        found["tokenizer.ggml.bos_token_id"] = u32(UINT32) + u32(1)
        found["tokenizer.ggml.add_bos_token"] = u32(BOOL) + b"\x01"
    found["tokenizer.ggml.tokens"] = strings(tokens)
    found["tokenizer.ggml.token_type"] = u32(ARRAY) + u32(INT32) + u64(len(types)) + struct.pack(f"<{len(types)}i", *types)
    return found, len(tokens)


def model(family, tokenizer, template=""):
    head_keys, vocab = keys(family, tokenizer, template)
    tensors = [("token_embd.weight", (WIDTH, vocab), F32), ("blk.0.attn_norm.weight", (WIDTH,), F32),
               ("blk.0.attn_q.weight", (WIDTH, WIDTH), F32), ("blk.0.attn_k.weight", (WIDTH, KV_WIDTH), F32),
               ("blk.0.attn_v.weight", (WIDTH, KV_WIDTH), F32), ("blk.0.attn_output.weight", (WIDTH, WIDTH), F32),
               ("blk.0.ffn_norm.weight", (WIDTH,), F32), ("blk.0.ffn_gate.weight", (WIDTH, FFN), F32),
               ("blk.0.ffn_up.weight", (WIDTH, FFN), F32), ("blk.0.ffn_down.weight", (FFN, WIDTH), Q8_0),
               ("output_norm.weight", (WIDTH,), F32)]
    if family == "qwen2":
        tensors += [("blk.0.attn_q.bias", (WIDTH,), F32), ("blk.0.attn_k.bias", (KV_WIDTH,), F32),
                    ("blk.0.attn_v.bias", (KV_WIDTH,), F32)]
    file = b"GGUF" + u32(3) + u64(len(tensors)) + u64(len(head_keys))
    file += b"".join(text(key) + value for key, value in head_keys.items())
    offset = 0
    sizes = []
    for name, dims, kind in tensors:
        count = dims[0] * (dims[1] if len(dims) > 1 else 1)
        sizes.append(count * 4 if kind == F32 else count // 32 * 34)
        file += text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)
        offset += -(-sizes[-1] // 32) * 32
    file += bytes(-len(file) % 32)
    for size in sizes:
        file += bytes(-(-size // 32) * 32)
    return file


def gguf_seeds():
    chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    return {"llama-gpt2": model("llama", "gpt2", chatml), "qwen2-gpt2": model("qwen2", "gpt2"),
            "llama-spm": model("llama", "llama", chatml),
            "tiny": b"GGUF" + u32(3) + u64(0) + u64(1) + text("general.architecture") + u32(STRING) + text("llama")}


COMPLETION = {"model": "m", "prompt": ["a", "b"], "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "n": 2,
              "seed": -1, "stop": ["x", "y"], "stop_token_ids": [1, 2], "logit_bias": {"5": 1.5, "7": -100}, "logprobs": 3, "echo": True,
              "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.2, "min_tokens": 1, "ignore_eos": True,
              "skip_special_tokens": False, "include_stop_str_in_output": True, "return_token_ids": True, "cache_salt": "s",
              "priority": -3, "timeout_ms": 1000, "prompt_logprobs": 2, "user": "u", "stream": True,
              "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
CHAT = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "h\u00e9"}], "name": "n"},
                     {"role": "assistant", "content": None, "tool_calls": []}, {"role": "tool", "content": "t", "tool_call_id": "1"}],
        "max_completion_tokens": 4, "logprobs": True, "top_logprobs": 5, "temperature": 16.0, "chat_template_kwargs": {"think": True}}
# The first byte chooses: 0 is a whole request behind four bytes of cuts, others a body for one of the routes.
ROUTES = {1: COMPLETION, 2: CHAT, 3: {"prompt": "x", "add_special_tokens": False}, 4: {"tokens": [1, 2, 299], "model": "m"}}


def http_seeds():
    seeds = {f"body-{route}": bytes([route]) + json.dumps(body).encode() for route, body in ROUTES.items()}
    seeds["ids"] = b"\x01" + b'{"prompt": [[1, 2], [3]], "max_tokens": 16.0, "n": 1e0}'
    seeds["bom"] = b"\x01\xef\xbb\xbf" + b'{"prompt": "\\ud83e\\uddea", "x": [[{}]]}'
    body = json.dumps({"prompt": "hi"}).encode()
    fields = b"Host: a\r\nContent-Type: application/json\r\nx-request-id: r-1\r\n"
    post = b"POST /v1/completions HTTP/1.1\r\n" + fields
    whole = {"length": post + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"GET / HTTP/1.1\r\n",
             "chunks": post + b"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\n" + body[:5] + b"\r\n%x\r\n" % len(body[5:]) + body[5:] +
             b"\r\n0\r\nt: x\r\n\r\n",
             "both": post + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
             "coding": post + b"Transfer-Encoding: xchunked\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
             "folded": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n", "old": b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
             "continue": post + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}", "h2c": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}
    return seeds | {name: b"\x00\x01\x02\x03\x04" + request for name, request in whole.items()}


def varint(value):
    value &= 2**64 - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(value)


def double(field, value):
    return varint(field << 3 | 1) + struct.pack("<d", value)


def message(field, content):
    content = content if isinstance(content, bytes) else content.encode()
    return varint(field << 3 | 2) + varint(len(content)) + content


def grpc_seeds():
    """Field numbers are proto/kvasir/v1/inference.proto's; the first byte chooses the method."""
    shared = (number(3, 5) + number(4, 1) + double(5, 0.5) + double(6, 0.9) + number(7, 5) + double(8, 0.1) + double(9, 1) + double(10, -1) +
              double(11, 1.2) + message(12, number(1, 5) + double(2, 1.5)) + number(13, -7) + message(14, "x") + message(15, varint(7)) +
              number(16, 2) + number(17, 1) + number(18, 1) + number(19, 1) + number(20, 0) + message(21, "s") + number(22, -3) +
              number(23, 1000))
    completion = message(1, "m") + message(2, message(1, "hi")) + message(2, message(2, message(1, varint(1) + varint(299)))) + shared
    chat = message(2, message(1, "user") + message(2, "h\u00e9") + message(3, "n")) + message(2, message(1, "tool") + message(2, "t") + message(4, "1"))
    return {"complete": b"\x00" + completion, "chat": b"\x01" + chat + shared + number(24, 3) + number(25, 5), "chat-small": b"\x01" + chat,
            "tokenize": b"\x02" + message(1, "m") + message(2, "hi"), "detokenize": b"\x03" + message(1, "m") + message(2, varint(1) + varint(2))}


def main(folder):
    for target, seeds in {"gguf": gguf_seeds(), "http": http_seeds(), "grpc": grpc_seeds()}.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for name, content in seeds.items():
            (folder / target / name).write_bytes(content)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))

#!/usr/bin/env python3
"""Trains the small SPM vocabulary of tests/text and writes what sentencepiece itself makes of some texts.

Needs the PyPI packages `sentencepiece` (0.2.3 made the files) and `protobuf`. Writes spm-vocabulary.json and spm-rows.jsonl beside itself; run it only to
change them. The training text below was written for this purpose.
"""

import io
import json
import pathlib
import random

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2

HERE = pathlib.Path(__file__).parent

SENTENCES = [
    "A kettle on a cold stove tells no one the time.",
    "The ferry leaves the island when the fog lets it, and not before.",
    "She counted the steps to the lighthouse twice and got two different numbers.",
    "Nobody in the village remembered who had planted the third row of birches.",
    "When the rain stopped, the roofs went on talking for a while.",
    "A good map is quiet about the places that do not matter.",
    "He kept the broken clock because it was right about the afternoon.",
    "Put the blue cups on the lower shelf and the others wherever they fit.",
    "The baker's dog knows every customer and none of the prices.",
    "If the bridge is closed, walk along the water until you find the old one.",
    "They measured the field with a rope, then measured the rope with the field.",
    "Snow fell on the harbour; the boats pretended to be hills.",
    "The teacher wrote the answer first and asked for the question.",
    "Three letters came back unopened, and one came back with an answer.",
    "In the museum of lost keys, every door is unlocked.",
    "My grandmother sorted buttons by the coats they had left.",
    "The orchestra tuned to the sound of the refrigerator.",
    "A queue formed for no reason and dissolved for a better one.",
    "Each morning the gardener apologised to the weeds he pulled.",
    "The train was late, so the station told us about its childhood.",
    "Prices: 3 apples 1.20, 10 eggs 2.75, 250 g of butter 1.99.",
    "def area(width, height): return width * height  # in square metres",
    "Überall grüne Hügel, süße Äpfel und ein müder Löwe.",
    "Le garçon a déjà mangé la crème brûlée à la fenêtre.",
    "Вечером река молчит, а лес рассказывает старые истории.",
]

USER_DEFINED = ["<think>", "</think>", "\u2581\u2581", "\u2581\u2581\u2581\u2581"]

TEXTS = [
    "", " ", "  ", "   ", "a", " a", "a ", "  a  b  ", "hello world", "The ferry leaves the island.",
    "the the the", "thethethe", "aaaaaaaaaa", "abababab", "lighthouse keeper", "Hello, World! 1234567890",
    "line one\nline two\n\nline four", "tab\tand\rreturn", "grüne Äpfel", "crème brûlée", "река и лес",
    "日本語のテキスト", "emoji 🙂🙃 and 👩‍👩‍👧", "\u00e9 and e\u0301", "<think>the answer</think>", "x<think>y", "<think> y",
    "<s>not a control token</s>", "<unk>", "<0x0A>", "▁literal▁", " ▁ ", "\u0000\u0001\u007f", "\ufeffbom", "a\u00a0b",
    "def area(width, height):\n    return width * height", "        eight spaces", "1.20 2.75", "don't", "....", "??!!",
]


def train():
    """The model's protobuf: BPE, byte fallback, no normalisation but spaces."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 4), model_writer=written, model_type="bpe", vocab_size=640,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        user_defined_symbols=USER_DEFINED, character_coverage=1.0, num_threads=1, split_digits=True)
    model = model_pb2.ModelProto()
    model.ParseFromString(written.getvalue())
    return model


def encoder(model, add_space_prefix):
    model.normalizer_spec.add_dummy_prefix = add_space_prefix
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def random_texts(count):
    """Short texts of the training text's letters: many ways to merge."""
    rng = random.Random(20260601)
    letters = "etaoinshr   thean"
    return ["".join(rng.choice(letters) for _ in range(rng.randint(1, 40))) for _ in range(count)]


def main():
    model = train()
    pieces = list(model.pieces)
    vocabulary = {
        "tokens": [piece.piece for piece in pieces],
        "scores": [piece.score for piece in pieces],
        "types": [piece.type for piece in pieces],
    }
    (HERE / "spm-vocabulary.json").write_text(json.dumps(vocabulary) + "\n")
    with_prefix, without_prefix = encoder(model, True), encoder(model, False)
    with open(HERE / "spm-rows.jsonl", "w") as out:
        for text in TEXTS + SENTENCES[:6] + random_texts(120):
            row = {"text": text, "with_prefix": with_prefix.encode(text), "without_prefix": without_prefix.encode(text)}
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

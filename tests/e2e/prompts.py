"""Prompts of exact lengths, the same in every run."""

import random

# A control token of the default model that no answer has. One that names it as a stop token may end at any time for all
# the planner knows, which then goes by what answers have been; with ignore_eos alone it counts on all of max_tokens.
NEVER_SAMPLED = 3

_WORDS = ("river stone winter letter garden copper morning window silver forest engine market shadow planet music "
          "island doctor yellow bridge paper ocean kettle thunder village basket mirror cotton ladder pepper rabbit "
          "the a of and in to was is for on with that from by at as").split()


def text(seed: int, num_words: int) -> str:
    return " ".join(random.Random(seed).choices(_WORDS, k=num_words))


def token_ids(daemon, seed: int, num_tokens: int) -> list[int]:
    """So many tokens of plain words."""
    ids = daemon.tokenize(text(seed, num_tokens))  # a word is at least one token
    assert len(ids) >= num_tokens
    return ids[:num_tokens]

"""llama.cpp's log-probabilities of given tokens at given positions, through the library that cache.py built and the
declarations of its structs that come in the same package, so that the two always fit. Its defaults hold: 16-bit keys and
values, flash attention where it likes, repacked weights."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import math
import os
import sys
import types
import typing

import cache

# The prompt and its continuation go in as one batch, as llama.cpp itself would take a prompt.
BATCH_TOKENS = 2048
STEP_TOKENS = 512


class LlamaError(Exception):
    """The library refused something; the message says what."""


class LlamaLogits:
    """A loaded model. Use as a context manager."""

    def __init__(self, model_path: str, threads: int):
        self._llama = _load_declarations()
        self._silence = self._llama.llama_log_callback(lambda level, text, data: None)  # must outlive the library's use
        self._llama.llama_log_set(self._silence, ctypes.c_void_p(0))
        self._llama.llama_backend_init()
        self._model = self._llama.llama_model_load_from_file(model_path.encode(), self._llama.llama_model_default_params())
        if not self._model:
            raise LlamaError(f"llama.cpp cannot load {model_path}")
        params = self._llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = BATCH_TOKENS, BATCH_TOKENS, STEP_TOKENS
        params.n_threads, params.n_threads_batch = threads, threads
        self._context = self._llama.llama_init_from_model(self._model, params)
        if not self._context:
            raise LlamaError(f"llama.cpp cannot make a context for {model_path}")
        self._vocab_size = self._llama.llama_vocab_n_tokens(self._llama.llama_model_get_vocab(self._model))

    def __enter__(self) -> LlamaLogits:
        return self

    def __exit__(self, *_) -> None:
        self._llama.llama_free(self._context)
        self._llama.llama_model_free(self._model)

    def logprobs(self, ids: list[int], wanted: dict[int, list[int]]) -> dict[tuple[int, int], float]:
        """Feeds `ids` from an empty context. `wanted` is {position: tokens}; the answer {(position, token): natural
        logarithm of its probability after the token at `position`}. Raises LlamaError."""
        if len(ids) > BATCH_TOKENS:
            raise LlamaError(f"{len(ids)} tokens, at most {BATCH_TOKENS} go in at once")
        self._llama.llama_memory_clear(self._llama.llama_get_memory(self._context), True)
        batch = self._llama.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for position, token in enumerate(ids):
                batch.token[position] = token
                batch.pos[position] = position
                batch.n_seq_id[position] = 1
                batch.seq_id[position][0] = 0
                batch.logits[position] = position in wanted
            if status := self._llama.llama_decode(self._context, batch):
                raise LlamaError(f"llama_decode returned {status}")
            found = {}
            for position, tokens in wanted.items():
                logits = self._llama.llama_get_logits_ith(self._context, position)[:self._vocab_size]
                logsumexp = _logsumexp(logits)
                found |= {(position, token): logits[token] - logsumexp for token in tokens}
            return found
        finally:
            self._llama.llama_batch_free(batch)


def _logsumexp(logits: list[float]) -> float:
    most = max(logits)
    return most + math.log(math.fsum(math.exp(logit - most) for logit in logits))


def _load_declarations():
    """The package's module of declarations alone: its front door wants numpy and other packages."""
    if not (cache.LLAMA_BIN / "libllama.so").is_file():
        raise cache.InstallError(f"{cache.LLAMA_BIN}/libllama.so is missing: run bench/peers/run.py install")
    os.environ["LLAMA_CPP_LIB_PATH"] = str(cache.LLAMA_BIN)
    package = types.ModuleType("llama_cpp")
    package.__path__ = [str(cache.LLAMA_PACKAGE_FOLDER / "llama_cpp")]
    sys.modules["llama_cpp"] = package
    if importlib.util.find_spec("typing_extensions") is None:
        stand_in = types.ModuleType("typing_extensions")
        stand_in.TypeAlias = typing.Any  # only named in annotations
        sys.modules["typing_extensions"] = stand_in
    return importlib.import_module("llama_cpp.llama_cpp")

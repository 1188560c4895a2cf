"""What is compared: the rows of the table, the work behind each, what a row must reach, and older figures of a peer
that is not built here. Data only; nothing is run or printed from this file."""

from __future__ import annotations

import dataclasses
import fnmatch

SMOLLM2 = "SmolLM2-135M-Instruct.%s.gguf"
QWEN = "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf"
PROGRAMS = ("kvasir", "llama.cpp", "openvino")


@dataclasses.dataclass(frozen=True)
class Workload:
    """One kind of work. `prefill`: one prompt of `prompt_tokens`. `decode`: `sequences` streams that each have
    `prompt_tokens` in their context and get `new_tokens` more; only the new ones are timed."""

    kind: str
    prompt_tokens: int
    new_tokens: int = 0
    sequences: int = 1

    @property
    def key(self) -> str:
        if self.kind == "prefill":
            return f"prefill:{self.prompt_tokens}"
        return f"decode:{self.sequences}@{self.prompt_tokens}+{self.new_tokens}"


@dataclasses.dataclass(frozen=True)
class Group:
    """What one program does in one go: a process (or one for prefill and one for decode) with one model. `kind` is
    `rates` for tokens per second, `load` for the time until a server answers, `memory` for its peak while it works."""

    model: str
    kind: str = "rates"
    workloads: tuple[Workload, ...] = ()
    programs: tuple[str, ...] = ("kvasir", "llama.cpp")
    once: bool = False  # a figure that does not vary: measured in the first round only


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table. `at_least` maps a peer (or `ik_llama.cpp`) to the factor over its figure that is wanted, in
    the same sense for all: 1.0 means ahead of it. `at_most` is a bound in the row's own unit instead."""

    name: str
    title: str
    group: Group
    metric: str
    at_least: tuple[tuple[str, float], ...] = ()
    at_most: float | None = None
    unit: str = "tok/s"


def _prefill(tokens: int) -> Workload:
    return Workload("prefill", tokens)


def _decode(sequences: int, prompt_tokens: int = 128, new_tokens: int = 128) -> Workload:
    return Workload("decode", prompt_tokens, new_tokens, sequences)


def _rates(model: str, *workloads: Workload, openvino: bool = False) -> Group:
    return Group(model, "rates", workloads, PROGRAMS if openvino else PROGRAMS[:2])


_SHORT = (_prefill(512), _decode(1), _decode(8), _decode(32))
_Q4_1 = _rates(SMOLLM2 % "Q4_1", *_SHORT, openvino=True)
_QWEN = _rates(QWEN, _prefill(512), _decode(1, 64, 32), _decode(16, 64, 32), openvino=True)
_LONG_DECODE = _rates(SMOLLM2 % "Q4_1", _decode(8, 4000, 32))
_LONG_PREFILL = _rates(SMOLLM2 % "Q4_1", _prefill(8000))  # the model was trained for 8,192
_LOAD = Group(SMOLLM2 % "Q4_1", "load")
_MEMORY = Group(SMOLLM2 % "Q4_1", "memory", once=True)


def _rows_of_type(file_type: str) -> list[Row]:
    """The other files of SmolLM2 must only be ahead of llama.cpp with the same file."""
    group = _rates(SMOLLM2 % file_type, *_SHORT)
    names = ("prefill-512", "decode-1", "decode-8", "decode-32")
    titles = ("prefill, 512 tokens", "decode, 1 stream", "decode, 8 streams", "decode, 32 streams")
    return [Row(f"{file_type.lower()}-{name}", f"SmolLM2 {file_type}: {title}", group, workload.key, (("llama.cpp", 1.0),))
            for name, title, workload in zip(names, titles, _SHORT)]


def _row(name: str, title: str, group: Group, workload: Workload, **at_least: float) -> Row:
    peers = {"llama": "llama.cpp", "ik": "ik_llama.cpp", "openvino": "openvino"}
    return Row(name, title, group, workload.key, tuple((peers[peer], factor) for peer, factor in at_least.items()))


ROWS: list[Row] = [
    _row("prefill-512", "SmolLM2 Q4_1: prefill, 512 tokens", _Q4_1, _SHORT[0], llama=10.0, ik=1.7, openvino=1.5),
    _row("decode-1", "SmolLM2 Q4_1: decode, 1 stream", _Q4_1, _SHORT[1], llama=2.2, ik=1.25),
    _row("decode-8", "SmolLM2 Q4_1: decode, 8 streams", _Q4_1, _SHORT[2], llama=7.5, ik=4.2),
    _row("decode-32", "SmolLM2 Q4_1: decode, 32 streams", _Q4_1, _SHORT[3], llama=9.0, ik=8.0),
    _row("qwen-decode-1", "Qwen2.5-Coder 1.5B Q4_K_M: decode, 1 stream", _QWEN, _QWEN.workloads[1], llama=1.15, ik=1.0),
    _row("qwen-decode-16", "Qwen2.5-Coder 1.5B Q4_K_M: decode, 16 streams", _QWEN, _QWEN.workloads[2], llama=3.0, ik=1.0),
    _row("qwen-prefill-512", "Qwen2.5-Coder 1.5B Q4_K_M: prefill, 512 tokens", _QWEN, _QWEN.workloads[0], llama=2.2, ik=1.0),
    *_rows_of_type("Q8_0"),
    *_rows_of_type("Q4_0"),
    *_rows_of_type("F16"),
    _row("long-decode-8", "SmolLM2 Q4_1: decode, 8 streams of 4,000 tokens", _LONG_DECODE, _LONG_DECODE.workloads[0], llama=1.0),
    _row("prefill-8000", "SmolLM2 Q4_1: prefill, 8,000 tokens", _LONG_PREFILL, _LONG_PREFILL.workloads[0], llama=1.0),
    Row("load", "SmolLM2 Q4_1: start to ready, page cache warm", _LOAD, "ready_s", at_most=1.0, unit="s"),
    Row("memory", "SmolLM2 Q4_1: peak RSS of the server beyond weights and KV budget", _MEMORY, "beyond_mib", at_most=150.0,
        unit="MiB"),
]

# ik_llama.cpp's kernels are the strongest found for these files, but it is not in the package that llama.cpp is built
# from. Its figures were measured earlier (2 threads, medians of 2-3 runs) on an EPYC of the Zen 5 family, llama.cpp's
# beside them; the table scales them by what llama.cpp reaches today on this machine over what it reached there.
# Qwen's prefill was measured twice: 198 with one prompt of 512, 295 with 16 prompts of 64; the better one is held against us.
EARLIER_ORIGIN = "measured earlier on an EPYC Zen 5, scaled by llama.cpp today / llama.cpp then"
EARLIER: dict[str, tuple[float, float]] = {  # row: (ik_llama.cpp, llama.cpp), tok/s
    "prefill-512": (2664, 457),
    "decode-1": (290, 165),
    "decode-8": (464, 261),
    "decode-32": (358, 333),
    "q4_0-prefill-512": (2551, 1614),
    "q4_0-decode-1": (314, 239),
    "q4_0-decode-8": (408, 483),
    "q4_0-decode-32": (350, 727),
    "q8_0-prefill-512": (2607, 955),
    "q8_0-decode-1": (249, 158),
    "qwen-decode-1": (38, 33.5),
    "qwen-decode-16": (80, 92.9),
    "qwen-prefill-512": (295, 168),
}


def select(patterns: str) -> list[Row]:
    """Rows whose names match one of the comma-separated patterns (`decode-*,load`). Raises ValueError for a pattern
    that matches nothing."""
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    for pattern in wanted:
        if not any(fnmatch.fnmatch(row.name, pattern) for row in ROWS):
            raise ValueError(f"no row matches {pattern!r}; rows are {', '.join(row.name for row in ROWS)}")
    return [row for row in ROWS if any(fnmatch.fnmatch(row.name, pattern) for pattern in wanted)]


def groups_of(rows: list[Row]) -> list[Group]:
    """The groups behind the rows in table order, each with only the workloads that the rows ask for."""
    groups: dict[Group, set[str]] = {}
    for row in rows:
        groups.setdefault(row.group, set()).add(row.metric)
    return [dataclasses.replace(group, workloads=tuple(w for w in group.workloads if w.key in metrics))
            for group, metrics in groups.items()]

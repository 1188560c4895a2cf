"""Damaged model files as a user starts them: the process ends in time and in little memory, with one line that names the
file, the byte and the field. What the reader makes of each rule, and of a cut at every byte, is tests/runtime/model's."""

import json
import os
import pathlib
import struct
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("KVASIR_BIN", str(ROOT / "build/release/bin/kvasir"))
GOOD = (ROOT / "tests/golden/tiny/llama-gqa.gguf").read_bytes()
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("KVASIR_")}
MAX_SECONDS = 5
MAX_RSS_KIB = 64 << 10
UINT8, UINT32, STRING, ARRAY = 0, 4, 8, 9
F32, Q4_0 = 0, 2
HUGE_LENGTHS = (2**64 - 1, 2**63, 2**30)


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def text(value):
    return u64(len(value)) + value


def head(num_tensors=0, num_keys=0, magic=b"GGUF", version=3):
    return magic + u32(version) + u64(num_tensors) + u64(num_keys)


def tensor(name=b"a", dims=(32,), kind=F32, offset=0, num_dims=None):
    return text(name) + u32(len(dims) if num_dims is None else num_dims) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def one_key(rest, name=b"k"):
    return head(num_keys=1) + text(name) + rest


def one_tensor(data=bytes(4096), **fields):
    front = head(num_tensors=1) + tensor(**fields)
    return front + bytes(-len(front) % 32) + data


def two_tensors(first, second, data=bytes(4096)):
    front = head(num_tensors=2) + first + second
    return front + bytes(-len(front) % 32) + data


def alignment(kind, value):
    front = head(num_tensors=1, num_keys=1) + text(b"general.alignment") + u32(kind) + value + tensor()
    return front + bytes(-len(front) % 32) + bytes(4096)


def damaged_files():
    """Name, content, what the line says."""
    yield "empty", b"", "empty"
    yield "magic only", b"GGUF", "version"
    yield "other magic", head(magic=b"GGML") + GOOD[24:], "GGML"
    for version in (0, 1, 4):
        yield f"version {version}", head(version=version) + GOOD[24:], f"version is {version}"
    yield "big-endian", b"GGUF" + struct.pack(">I", 3) + GOOD[8:], "big-endian"
    for count in (2**63, 2**61):
        yield f"{count} keys", head(num_keys=count) + GOOD[24:], "number of metadata keys"
    for count in (2**63, 2**58):
        yield f"{count} tensors", head(num_tensors=count) + GOOD[24:], "number of tensors"
    yield "nothing in it", head(), "general.architecture"
    for length in (*HUGE_LENGTHS, 101):
        rest = u64(length) + bytes(100)
        yield f"key of {length}", head(num_keys=1) + rest, "the key has a length"
        yield f"string of {length}", one_key(u32(STRING) + rest), "the value has a length"
        yield f"array of {length}", one_key(u32(ARRAY) + u32(UINT8) + rest), "length of the array"
        yield f"tensor name of {length}", head(num_tensors=1) + rest, "the name has a length"
    yield "empty key", one_key(u32(UINT32) + u32(1), name=b""), "the key is empty"
    yield "name of 64 bytes", one_tensor(name=b"n" * 64), "length of 64 bytes"
    yield "same key twice", head(num_keys=2) + 2 * (text(b"k") + u32(UINT32) + u32(1)), "twice"
    yield "same tensor twice", two_tensors(tensor(), tensor(offset=128)), "twice"
    yield "dimensions wrap", one_tensor(dims=(2**32, 2**32)), "overflows"
    yield "padding wraps", one_tensor(dims=(2**62 - 1,)), "overflows"
    yield "odd block", one_tensor(dims=(33, 32), kind=Q4_0), "multiple of 32"
    yield "sum wraps", two_tensors(tensor(dims=(2**61 - 8,)), tensor(name=b"b", dims=(2**61 - 8,))), "end past the file"
    yield "offset past the end", one_tensor(offset=2**20), "end past the file"
    yield "one byte past the end", one_tensor(data=bytes(127)), "end past the file"
    yield "unaligned", one_tensor(offset=4), "alignment"
    yield "overlap", two_tensors(tensor(), tensor(name=b"b", offset=32)), "overlaps"
    yield "no data", head(num_tensors=1) + tensor(), "data section"
    for count in (0, 5, 2**32 - 1):
        yield f"{count} dimensions", one_tensor(num_dims=count), f"number of dimensions is {count}"
    yield "dimension 0", one_tensor(dims=(0,)), "dimension 0 is 0"
    for kind in (255, 2**32 - 1):
        yield f"type {kind}", one_tensor(kind=kind), f"the type is {kind}"
    for value in (0, 3, 2**31):
        yield f"alignment {value}", alignment(UINT32, u32(value)), f"the value is {value}"
    yield "alignment in words", alignment(STRING, text(b"32")), "general.alignment"
    for at in [*range(0, 4096, 64), *range(4096, len(GOOD), len(GOOD) // 64)]:
        yield f"cut at {at}", GOOD[:at], ""


# Between fork and exec a child has its parent's memory, and the peak keeps that: so a small process starts it, not this one.
STARTER = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
said = process.stderr.read()
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), said.decode(), usage.ru_utime + usage.ru_stime, usage.ru_maxrss]))
"""


def end_of(command):
    """Exit code, standard error, CPU seconds and peak memory in KiB of the process alone."""
    # The time is for a process that does not end; it is no verdict.
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", STARTER, *command], stdout=subprocess.PIPE, env=ENVIRONMENT,
                            timeout=12 * MAX_SECONDS, check=True)
    return json.loads(answer.stdout)


def has_sanitizers():
    """Their shadow memory counts as the process's."""
    return b"__asan_init" in pathlib.Path(BINARY).read_bytes()


@pytest.mark.parametrize("command", ["serve", "inspect"])
def test_a_damaged_file_is_refused_in_time_in_little_memory_and_in_one_line(tmp_path, command):
    path = tmp_path / "model.gguf"
    largest_kib = 0
    for name, content, expected in damaged_files():
        if name == "nothing in it" and command == "inspect":
            continue  # a container, which inspect describes
        path.write_bytes(content)
        arguments = ["--http-port", "0", "--grpc-port", "0", "--model"] if command == "serve" else []
        code, said, cpu_seconds, peak_kib = end_of([BINARY, command, *arguments, str(path)])
        assert code == 2, (name, code, said)
        assert said.count("\n") == 1 and said.endswith("\n") and str(path) in said and expected in said, (name, said)
        assert ": byte " in said or name == "nothing in it", (name, said)
        assert all(0x20 <= ord(letter) < 0x7F for letter in said[:-1]), (name, said)
        assert cpu_seconds < MAX_SECONDS, (name, cpu_seconds)
        largest_kib = max(largest_kib, peak_kib)
    print(f"largest: {largest_kib} KiB")
    if not has_sanitizers():
        assert largest_kib < MAX_RSS_KIB


def test_the_good_file_is_described():
    code, said, _, _ = end_of([BINARY, "inspect", str(ROOT / "tests/golden/tiny/llama-gqa.gguf")])
    assert code == 0 and said == ""

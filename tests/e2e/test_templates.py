"""Hostile chat templates, of the operator's file and of the model's own: what the parser can see is told at the start, what
shows when it renders costs its request alone, in time, and completions go on."""

import struct
import subprocess
import time

import pytest

from daemon import SOURCE_DIR, START_SECONDS, binary_path

TINY_MODEL = SOURCE_DIR / "tests/golden/tiny/llama-gqa.gguf"
USER = {"role": "user", "content": "hi"}
MAX_SECONDS = 1

UNPARSABLE = {
    "parentheses": "{{ " + "(" * 6000 + "1" + ")" * 6000 + " }}", "ifs": "{% if true %}" * 2700 + "x" + "{% endif %}" * 2700,
    "syntax": "{% for %}", "unclosed": "{{ messages", "too long": "x" * (64 * 1024 + 1),
}
ENDLESS = {
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "range": "{% for i in range(10**9) %}{% endfor %}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "string": "{{ 'a' * 10**9 }}",
    "doubling": "{% set a = ['x'] %}" + "{% set a = [a, a] %}" * 40 + "{{ a == a[:] }}",
    "knot": "{% set n = namespace() %}{% set n.a = [n] %}{{ n.a ~ n.a }}",
    "output": "{% for i in range(99999) %}{{ 'xxxxxxxxxx' * 1000 }}{% endfor %}",
}


def gguf_with_template(source: str) -> bytes:
    """The tiny model with one key more, whose size keeps the data section aligned, in place of its own template."""
    file = TINY_MODEL.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_replaced")
    num_keys, = struct.unpack_from("<Q", file, 16)
    name = b"tokenizer.chat_template"

    def key(value: bytes) -> bytes:
        return struct.pack("<Q", len(name)) + name + struct.pack("<IQ", 8, len(value)) + value

    value = source.encode()
    value += b" " * (-len(key(value)) % 32)
    return file[:16] + struct.pack("<Q", num_keys + 1) + key(value) + file[24:]


def start_tiny(start_daemon, tmp_path, source: str, own: bool, **flags):
    path = tmp_path / "template"
    path.write_bytes(gguf_with_template(source) if own else source.encode())
    chosen = {"model": path} if own else {"model": TINY_MODEL, "chat_template": path}
    return start_daemon(kv_budget="4MiB", threads=1, **chosen, **flags)


def seconds_of_a_refused_chat(daemon) -> float:
    """One chat request gets 400 for the template; a completion beside it is answered."""
    started = time.monotonic()
    chat = daemon.http.post("/v1/chat/completions", json={"messages": [USER], "max_tokens": 1})
    seconds = time.monotonic() - started
    assert chat.status_code == 400, chat.text
    assert chat.json()["error"]["code"] == "invalid_template_input" and "template" in chat.json()["error"]["message"], chat.text
    completion = daemon.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, "ignore_eos": True})
    assert completion.status_code == 200, completion.text
    return seconds


@pytest.mark.parametrize("name", UNPARSABLE)
def test_an_operators_template_that_cannot_be_parsed_ends_the_start(tmp_path, name):
    path = tmp_path / "template"
    path.write_text(UNPARSABLE[name])
    done = subprocess.run([binary_path(), "serve", "--model", TINY_MODEL, "--http-port", "0", "--grpc-port", "0", "--chat-template",
                           str(path)], capture_output=True, text=True, timeout=START_SECONDS, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    assert "--chat-template" in done.stderr and str(tmp_path)[:40] in done.stderr


@pytest.mark.parametrize("name", ["parentheses", "syntax"])
def test_a_models_own_template_that_cannot_be_parsed_refuses_chat_only(start_daemon, tmp_path, name):
    daemon = start_tiny(start_daemon, tmp_path, UNPARSABLE[name], own=True)
    assert "chat template" in daemon.log()
    with daemon.unharmed():
        seconds_of_a_refused_chat(daemon)


def test_a_template_that_does_not_end_costs_its_request_only(start_daemon, tmp_path):
    daemon = start_tiny(start_daemon, tmp_path, ENDLESS["knot"], own=True)
    with daemon.unharmed():
        for _ in range(20):
            seconds_of_a_refused_chat(daemon)
        tokenized = daemon.http.post("/tokenize", json={"messages": [USER]})
        assert tokenized.status_code == 400 and tokenized.json()["error"]["code"] == "invalid_template_input"


@pytest.mark.all
@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_does_not_end_is_stopped_in_time(start_daemon, tmp_path, name):
    daemon = start_tiny(start_daemon, tmp_path, ENDLESS[name], own=False)
    with daemon.unharmed():
        seconds = max(seconds_of_a_refused_chat(daemon) for _ in range(5))
    print(f"{name}: {seconds:.3f} s at most")
    assert seconds < MAX_SECONDS


def test_limits_of_templates_are_the_operators(start_daemon, tmp_path):
    source = "{% for i in range(2000) %}{{ messages[0].content }}{% endfor %}"
    few_steps = start_tiny(start_daemon, tmp_path, source, own=True, max_template_steps=1000)
    seconds_of_a_refused_chat(few_steps)
    few_bytes = start_tiny(start_daemon, tmp_path, source, own=False, max_rendered=3999)
    seconds_of_a_refused_chat(few_bytes)
    enough = start_tiny(start_daemon, tmp_path, source, own=False, max_rendered=4001)
    tokens = enough.http.post("/tokenize", json={"messages": [USER]})
    assert tokens.status_code == 200 and tokens.json()["count"] >= 2000, tokens.text

"""The built binary as a user types it: exit codes, one line for each refusal, and the small commands."""

import fcntl
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("KVASIR_BIN", str(ROOT / "build/release/bin/kvasir"))
MODEL = str(ROOT / "tests/golden/tiny/llama-gqa.gguf")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("KVASIR_")}
START_SECONDS = 60  # a sanitizer build on a busy machine


def run(*arguments, text="", environment=None):
    return subprocess.run([BINARY, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=START_SECONDS,
                          env=ENVIRONMENT | (environment or {}), check=False)


def serve(*arguments, **environment):
    """Starts the tiny model on free ports."""
    command = [BINARY, "serve", "--model", MODEL, "--http-port", "0", "--grpc-port", "0", "--kv-budget", "1MiB",
               "--threads", "1", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT | environment)


def wait_ready(process, path):
    end = time.monotonic() + START_SECONDS
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end, "no ready file"
        time.sleep(0.01)
    return json.loads(path.read_text())


def refused(*arguments, **environment) -> str:
    done = run("serve", *arguments, environment=environment)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.endswith("\n") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("flag, value, said", [
    ("--http-port", "-1", "0 to 65535"), ("--http-port", "70000", "0 to 65535"), ("--grpc-port", "x", "whole number"),
    ("--kv-budget", "12GB", "KiB, MiB or GiB"), ("--kv-budget", "0", "out of range"), ("--kv-budget", "-1", "out of range"),
    ("--kv-budget", "18446744073709551616", "out of range"), ("--kv-budget", "8192GiB", "does not fit into memory"),
    ("--kv-budget", "100", "less than one block"), ("--threads", "0", "1 to 1024"), ("--threads", "10000", "1 to 1024"),
    ("--model", "", "is empty"), ("--model", "/nonexistent.gguf", "does not exist"), ("--model", "/tmp", "not a regular file"),
    ("--model", "/dev/null", "not a regular file"), ("--model", __file__, "test_command_line.py"),
    ("--context", "16777216", "more than the model's"), ("--isa", "neon", "auto, scalar, avx2, avxvnni or avx512"),
    ("--host", "192.0.2.1", "192.0.2.1"), ("--chat-template", "/tmp", "not a regular file"),
    ("--config", "/nonexistent.toml", "does not exist"), ("--nonsense", "1", "--nonsense"),
])
def test_a_bad_flag_is_refused_in_one_line(flag, value, said):
    message = refused("--model", MODEL, "--http-port", 0, "--grpc-port", 0, flag, value)
    assert said in message
    assert flag in message or flag in ("--model", "--kv-budget", "--host")


@pytest.mark.parametrize("line, said", [
    ("thread = 1", "unknown key"), ("threads = 1\nthreads = 2", ":2:"), ("kv_budget = \"12GB\"", ":1: kv_budget"),
    ("http_port = 70000", ":1: http_port"), ("model = \"a\\u0000b\"", "NUL"), ("threads = \"2\"", "is a string"),
])
def test_a_bad_line_of_the_file_is_refused_with_file_and_line(tmp_path, line, said):
    path = tmp_path / "kvasir.toml"
    path.write_text(line + "\n")
    message = refused("--config", path)
    assert said in message and f"{path}:" in message


def test_a_bad_variable_is_refused_by_name():
    assert "environment: KVASIR_THREADS" in refused("--model", MODEL, KVASIR_THREADS="0")


@pytest.mark.parametrize("name, value, said", [
    ("context", "100000", "more than the model's"), ("kv_budget", "5000000000000", "does not fit into memory"),
    ("kv_budget", "100", "less than one block"), ("model", "/nonexistent.gguf", "does not exist"), ("model", __file__, "test_command_line"),
    ("chat_template", "/nonexistent.jinja", "does not exist"), ("ready_file", "/nonexistent/ready", "folder that does not exist"),
    ("host", "192.0.2.1", "cannot listen"), ("served_model_name", ",", "no name"),
])
def test_what_is_found_after_the_table_names_its_origin_too(tmp_path, name, value, said):
    free = {"KVASIR_HTTP_PORT": "0", "KVASIR_GRPC_PORT": "0", "KVASIR_MODEL": MODEL}
    variable = "KVASIR_" + name.upper()
    message = refused(**free | {variable: value})
    assert said in message and f"environment: {variable}" in message
    path = tmp_path / "k.toml"
    path.write_text(f"\n{name} = " + (value if value.isdigit() else f'"{value}"') + "\n")
    message = refused("--config", path, **{key: text for key, text in free.items() if key != variable})
    assert said in message and f"{path}:2: {name}" in message


def test_a_fifo_as_model_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in refused("--model", tmp_path / "fifo")


def test_a_metrics_listener_that_cannot_be_had_is_told_before_a_model_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = refused("--model", "missing.gguf", "--http-port", 0, "--grpc-port", 0, "--metrics-port", port)
        assert f"127.0.0.1:{port}" in message and "metrics-port" in message
    message = refused("--model", "missing.gguf", "--http-port", port, "--grpc-port", 0, "--metrics-port", port)
    assert "--metrics-port" in message and "--http-port" in message
    message = refused("--model", "missing.gguf", "--http-port", 0, "--grpc-port", 0, "--metrics-host", "127.0.0.1")
    assert "--metrics-host" in message and "--metrics-port" in message


def test_a_taken_port_is_told_with_host_and_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in refused("--model", MODEL, "--http-port", port)
        message = refused("--model", MODEL, KVASIR_HTTP_PORT=str(port))
        assert f"127.0.0.1:{port}" in message and "environment: KVASIR_HTTP_PORT" in message
        assert "--grpc-port" in refused("--model", MODEL, "--http-port", 0, "--grpc-port", port)


def test_one_port_cannot_serve_both_doors():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert "--grpc-port" in refused("--model", MODEL, "--http-port", port, "--grpc-port", port)


def test_serve_writes_its_ready_file_answers_the_healthcheck_and_stops_on_a_signal(tmp_path):
    path = tmp_path / "ready.json"
    process = serve("--ready-file", path, KVASIR_THREDS="3")
    ready = wait_ready(process, path)
    assert ready["pid"] == process.pid
    assert run("healthcheck", "--http-port", ready["http_port"]).returncode == 0
    process.send_signal(signal.SIGTERM)
    log = process.communicate(timeout=START_SECONDS)[1]
    assert process.returncode == 0, log
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []
    for said in ("threads: 1 (command line: --threads decided)", "for weights", "for KV arena", "in all", "KVASIR_THREDS", "stopped"):
        assert said in log, log
    done = run("healthcheck", "--http-port", ready["http_port"])
    assert done.returncode == 1 and "not ready" in done.stderr


def test_log_lines_are_json_objects_when_asked(tmp_path):
    process = serve("--ready-file", tmp_path / "ready", "--log-format", "json", "--served-model-name", "a\"b\nc\x1b")
    wait_ready(process, tmp_path / "ready")
    process.send_signal(signal.SIGINT)
    log = process.communicate(timeout=START_SECONDS)[1]
    assert process.returncode == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert any("a\"b\nc\x1b" in line["message"] for line in lines)


def test_healthcheck_needs_a_port_to_ask():
    assert run("healthcheck", "--http-port", 0).returncode == 2


def test_tokenize_and_back_give_the_text():
    text = "Hello wörld\n  42"
    ids = run("tokenize", "--model", MODEL, text)
    assert ids.returncode == 0, ids.stderr
    assert run("tokenize", "--model", MODEL, text=text).stdout == ids.stdout
    back = run("tokenize", "--model", MODEL, "--detokenize", text=ids.stdout)
    assert back.stdout == text
    assert run("tokenize", "--model", MODEL, "--detokenize", "99999999").returncode == 2


def test_tokenize_refuses_what_is_not_utf8():
    done = subprocess.run([BINARY, "tokenize", "--model", MODEL], input=b"\xff", capture_output=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 2 and b"UTF-8" in done.stderr


def test_generate_gives_the_same_text_again_and_with_any_threads():
    def generate(*more):
        done = run("generate", "--model", MODEL, "--kv-budget", "1MiB", "--max-tokens", 12, "--seed", 3, "--ignore-eos", "--quiet",
                   "Hello", *more)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout
    first = generate("--threads", 1)
    assert len(first) > 1
    assert generate("--threads", 2) == first
    assert generate("--threads", 1, "--step-tokens", 1) == first


def test_generate_refuses_what_the_validator_refuses():
    done = run("generate", "--model", MODEL, "--quiet", "--temperature", 3, "Hello")
    assert done.returncode == 2 and "temperature" in done.stderr and done.stdout == ""


def bench(*arguments):
    return run("bench", "--model", MODEL, "--threads", 1, "--rounds", 1, "--new-tokens", 2, "--prompt-tokens", 8, *arguments)


def test_bench_prints_a_table_and_nothing_else_where_nobody_watches():
    done = bench("--workload", "prefill,decode:2,mixed:2", "--no-roofline")
    assert done.returncode == 0 and done.stderr == ""
    for said in ("machine: ", "model: tiny llama-gqa", "load: ", "HTTP are not in it", "prefill:8", "decode:2", "mixed:2", "peak memory"):
        assert said in done.stdout, done.stdout


def test_bench_gives_json_with_a_share_of_the_bound():
    done = bench("--workload", "decode:1,decode:3,prefill:20", "--json", "--kv-type", "f32", "--isa", "scalar", "--step-tokens", 16)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    said = json.loads(done.stdout)
    assert said["machine"]["isa"] == "scalar" and said["machine"]["threads"] == 1 and said["machine"]["kv_type"] == "f32"
    shapes = [(row["workload"], row["sequences"], row["prompt_tokens"]) for row in said["results"]]
    assert shapes == [("decode", 1, 8), ("decode", 3, 8), ("prefill", 1, 20)]
    for row in said["results"]:
        assert row["tokens_per_second"] > 0 and row["percent_of_bound"] > 0, row
    assert said["load_seconds"] > 0 and said["peak_rss_bytes"] > 1 << 20
    assert said["machine"]["activations"] == "int8" and "scalar" in said["machine"]["kernels"]


@pytest.mark.parametrize("flag, value, said", [
    ("--model", "/nonexistent.gguf", "does not exist"), ("--workload", "decoed:8", '"decoed:8" is no workload; allowed: prefill'),
    ("--workload", "prefill:100000", "more than the context"), ("--workload", "decode:4096", "--step-tokens is 512"),
    ("--rounds", "0", "1 to 1000"), ("--new-tokens", "x", "1 to"), ("--isa", "neon", "auto, scalar"),
])
def test_bench_refuses_what_it_cannot_run_in_one_line(flag, value, said):
    done = bench(flag, value)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done
    assert said in done.stderr and flag in done.stderr


def small_commands():
    return [("generate", "--model", MODEL, "--kv-budget", "1MiB", "--threads", "1", "--max-tokens", "4", "--quiet", "Hello"),
            ("bench", "--model", MODEL, "--threads", "1", "--rounds", "1", "--workload", "prefill:4", "--no-roofline"),
            ("tokenize", "--model", MODEL, "Hello"), ("tokenize", "--model", MODEL, "--detokenize", "5 6"), ("inspect", MODEL),
            ("inspect", MODEL, "--json"), ("config-doc",), ("--help",), ("--version",)]


@pytest.mark.parametrize("command", small_commands(), ids=" ".join)
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"], ids=["full", "closed"])
def test_output_that_cannot_be_written_is_a_failure(command, redirection):
    """All of them exited with 0, whatever became of what they printed."""
    done = subprocess.run(["bash", "-c", f'"$0" "$@" {redirection}', BINARY, *command], capture_output=True, text=True,
                          timeout=START_SECONDS, env=ENVIRONMENT, check=False)
    assert done.returncode == 1, done
    assert "standard output cannot be written" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_reader_that_leaves_ends_a_command_quietly():
    done = subprocess.run(["bash", "-c", '"$0" inspect "$1" | head -1; exit ${PIPESTATUS[0]}', BINARY, MODEL], capture_output=True,
                          text=True, timeout=START_SECONDS, env=ENVIRONMENT, check=False)
    assert done.returncode in (0, 128 + signal.SIGPIPE) and done.stderr == "" and done.stdout.count("\n") == 1


def test_an_unknown_command_and_a_missing_value_are_told_in_words():
    done = run("sreve", "--http-port", "0")
    assert done.returncode == 2 and '"sreve" is no command; allowed: serve, generate' in done.stderr
    assert "config-doc" not in done.stderr
    assert "--http-port: has no value; allowed: a whole number from 0 to 65535" in refused("--http-port")
    assert "--http-port: has no value" in refused("--http-port", "--grpc-port", "0")
    done = run("generate", "--seed")
    assert done.returncode == 2 and "--seed: has no value" in done.stderr


def test_a_log_that_nobody_reads_stops_neither_answers_nor_the_end(tmp_path):
    """The end of the log pipe that is read holds one page; logging everything fills it long before the last answer."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    process = subprocess.Popen([BINARY, "serve", "--model", MODEL, "--http-port", "0", "--grpc-port", "0", "--kv-budget", "1MiB",
                                "--threads", "1", "--log-level", "debug", "--served-model-name", "n" * 3000,
                                "--ready-file", str(tmp_path / "ready")], stderr=writing, env=ENVIRONMENT)
    os.close(writing)
    try:
        end = time.monotonic() + START_SECONDS
        while not (tmp_path / "ready").exists():
            assert process.poll() is None and time.monotonic() < end, "no ready file"
            time.sleep(0.01)
        port = json.loads((tmp_path / "ready").read_text())["http_port"]
        for _ in range(20):
            assert run("healthcheck", "--http-port", port).returncode == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=START_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reading)


def test_the_version_names_commit_and_build(tmp_path):
    process = serve("--ready-file", tmp_path / "ready")
    port = wait_ready(process, tmp_path / "ready")["http_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/version", timeout=START_SECONDS) as answer:
        said = json.load(answer)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=START_SECONDS)
    checkout = (ROOT / ".git").exists()
    assert re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?" if checkout else "unknown", said["commit"]), said
    assert re.match(r"\w+, (GNU|Clang) \d+", said["build"]), said


def test_help_names_every_option_with_its_variable():
    done = run("serve", "--help")
    assert done.returncode == 0
    for said in ("--kv-budget", "KVASIR_KV_BUDGET", "--ready-file", "1GiB", "--kv-budget SIZE", "--threads N|auto", "--kv-type f32|f16|bf16",
                 "--prefix-cache true|false", "--model FILE", "[default]"):
        assert said in done.stdout


def test_without_a_command_the_commands_are_asked_for():
    done = run()
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_plan_prints_a_table_or_the_json_of_the_route():
    table = run("plan", "--preset", "llama-2-7b", "--context", 4096, "--prompt-tokens", 4, "--new-tokens", 6)
    assert (table.returncode, table.stderr) == (0, "")
    for said in ("2 x 32 layers x 32 KV heads x 128 x 2 bytes = 524288", "512 KiB", "2 GiB", "12.6 GiB", "0.16", "9", "39", "45", "155"):
        assert re.search(rf"(^|\s){re.escape(said)}(\s|$)", table.stdout, re.M), said
    plan = json.loads(run("plan", "--preset", "llama-2-7b", "--batch", 8, "--budget", "24GiB", "--json").stdout)
    assert plan["object"] == "kv.plan" and plan["total_bytes"] == 16 << 30 and plan["sequences_in_budget"] == 12
    ungrouped = run("plan", "--preset", "llama-3-8b", "--no-grouping", "--kv-type", "f32", "--json")
    assert json.loads(ungrouped.stdout)["bytes_per_token"] == 8 * 128 << 10
    own = run("plan", "--layers", 32, "--kv-heads", 8, "--query-heads", 32, "--head-dim", 128, "--context-tokens", 32768, "--json")
    assert json.loads(own.stdout)["total_bytes"] == 4 << 30 and json.loads(own.stdout)["grouping_ratio"] == 4


def test_plan_of_a_model_file_and_of_the_last_of_two_values():
    plan = json.loads(run("plan", "--model", MODEL, "--batch", 2, "--batch", 3, "--window", 8, "--window-pattern", "1:1", "--json").stdout)
    assert plan["bytes_per_token"] == 256 and plan["batch"] == 3
    assert [(group["layers"], group["window_tokens"]) for group in plan["groups"]] == [(1, 8), (1, 0)]


def test_plan_help_states_every_default():
    text = run("plan", "--help").stdout
    assert text.count("Default: ") == 13  # the model has none, and switches are off


@pytest.mark.parametrize("arguments, said", [
    ((), "--preset, --model, or --layers"), (("--preset", "llama-4"), "smollm2-135m"), (("--layers", 3), "--kv-heads or --query-heads"),
    (("--preset", "llama-2-7b", "--layers", 3), "--layers must be absent beside --preset"), (("--layers", "1e3"), "--layers"),
    (("--preset", "llama-2-7b", "--batch", 0), "--batch must be an integer from 1"), (("--batch",), "--batch"),
    (("--preset", "llama-2-7b", "--budget", "24GB"), "--budget-bytes"), (("--preset", "llama-2-7b", "--kv-type", "q8"), "f32, f16 or bf16"),
    (("--preset", "llama-2-7b", "--window-pattern", "5:1"), "--window-tokens"), (("--model", "/nonexistent"), "does not exist"),
    (("--model", __file__), "test_command_line.py"), (("--preset", "llama-2-7b", "--context", -1), "--context-tokens"),
    (("--preset", "llama-2-7b", "--prompt-tokens", 1 << 64), "--prompt-tokens"), (("--nonsense", 1), "--nonsense"),
])
def test_plan_refuses_in_one_line_that_names_the_option(arguments, said):
    done = run("plan", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and done.stderr.count("\n") == 1

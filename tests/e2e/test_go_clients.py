"""grpcurl and grpc-health-probe against the gRPC door: clients of another gRPC implementation, by reflection alone."""

import json
import os
import pathlib
import subprocess

import grpc
import pytest

import prompts
from daemon import eventually
from stubs import pb

_CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")))
TOOLS = pathlib.Path(os.environ.get("KVASIR_GO_TOOLS", _CACHE / "kvasir" / "go-tools"))
pytestmark = [pytest.mark.all, pytest.mark.skipif(
    not (TOOLS / "built").exists(), reason="grpcurl and grpc-health-probe are not built (tests/support/build_go_tools.sh)")]


def run(tool: str, *arguments, stdin: str | None = None) -> subprocess.CompletedProcess:
    return subprocess.run([TOOLS / tool, *arguments], input=stdin, capture_output=True, text=True, timeout=120)


@pytest.fixture
def grpcurl(daemon):
    """grpcurl at the daemon's door; with a body, calls a method and returns the messages that came."""
    address = f"127.0.0.1:{daemon.grpc_port}"

    def call(*words: str, body: dict | None = None, options: tuple = ()):
        data = ("-d", json.dumps(body)) if body is not None else ()
        done = run("grpcurl", "-plaintext", *options, *data, address, *words)
        assert done.returncode == 0, done.stderr
        if body is None:
            return done.stdout
        messages, rest, decoder = [], done.stdout.strip(), json.JSONDecoder()
        while rest:
            message, end = decoder.raw_decode(rest)
            messages.append(message)
            rest = rest[end:].lstrip()
        return messages

    return call


def test_list_and_describe(grpcurl):
    assert {"kvasir.v1.Inference", "grpc.health.v1.Health"} <= set(grpcurl("list").split())
    assert "kvasir.v1.Inference.CompleteStream" in grpcurl("list", "kvasir.v1.Inference").split()
    method = grpcurl("describe", "kvasir.v1.Inference.ChatStream")
    assert "returns ( stream .kvasir.v1." in method
    assert "temperature" in grpcurl("describe", "kvasir.v1.CompleteRequest")
    assert "rpc Watch" in grpcurl("describe", "grpc.health.v1.Health")


def test_calls_answer_as_grpcio_is_answered(daemon, grpcurl):
    body = {"prompt": [{"text": "Once upon a time"}], "max_tokens": 12, "seed": 3, "n": 2}
    expected = daemon.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text="Once upon a time")], max_tokens=12, seed=3,
                                                       n=2))
    texts = [c.text for c in expected.choices]
    (whole,) = grpcurl("kvasir.v1.Inference/Complete", body=body)
    assert [c["text"] for c in whole["choices"]] == texts
    chunks = grpcurl("kvasir.v1.Inference/CompleteStream", body=body)
    joined = {}
    for choice in (c for chunk in chunks for c in chunk.get("choices", [])):
        index = choice.get("index", 0)
        joined[index] = joined.get(index, "") + choice.get("text", "")
    assert len(chunks) > 4 and [joined[i] for i in sorted(joined)] == texts
    (chat,) = grpcurl("kvasir.v1.Inference/Chat", body={
        "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0})
    assert int(chat["usage"]["completion_tokens"]) >= 1 and chat["choices"][0]["text"]
    (models,) = grpcurl("kvasir.v1.Inference/ListModels", body={})
    assert models["models"][0]["id"] == "smollm2"
    assert grpcurl("grpc.health.v1.Health/Check", body={}) == [{"status": "SERVING"}]


def test_a_refusal_shows_its_details(daemon):
    done = run("grpcurl", "-plaintext", "-d", json.dumps({"prompt": [{"text": "x"}], "temperature": 9}),
               f"127.0.0.1:{daemon.grpc_port}", "kvasir.v1.Inference/Complete")
    assert done.returncode == 64 + grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "InvalidArgument" in done.stderr and "google.rpc.BadRequest" in done.stderr and '"temperature"' in done.stderr


def test_a_deadline_of_grpcurl_ends_the_call(daemon):
    ids = prompts.token_ids(daemon, 2, 6000)
    before = daemon.status().cancelled_total
    done = run("grpcurl", "-plaintext", "-max-time", "0.5", "-d",
               json.dumps({"prompt": [{"token_ids": {"ids": ids}}], "max_tokens": 500, "ignore_eos": True}),
               f"127.0.0.1:{daemon.grpc_port}", "kvasir.v1.Inference/Complete")
    assert done.returncode == 64 + grpc.StatusCode.DEADLINE_EXCEEDED.value[0], done.stderr
    daemon.wait_idle()
    eventually(lambda: sum(getattr(daemon.status().cancelled_total, c) - getattr(before, c)
                           for c in ("deadline", "grpc_cancel")) == 1, "it was ended once")


def probe(daemon, *arguments) -> int:
    return run("grpc-health-probe", f"-addr=127.0.0.1:{daemon.grpc_port}", "-connect-timeout=10s", "-rpc-timeout=10s",
               *arguments).returncode


@pytest.mark.parametrize("service", ["", "kvasir.v1.Inference", "grpc.health.v1.Health"])
def test_the_probe_finds_it_healthy(daemon, service):
    assert probe(daemon, f"-service={service}") == 0


def test_the_probe_tells_a_service_that_is_not_there(daemon):
    assert probe(daemon, "-service=nobody") == 3  # the call failed: NOT_FOUND


def test_the_probe_finds_a_draining_daemon_unhealthy(start_daemon):
    daemon = start_daemon(shutdown_grace_ms=20000)
    stream = daemon.stub.CompleteStream(pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=4000,
                                                           ignore_eos=True))
    next(stream)
    daemon.process.terminate()
    eventually(lambda: daemon.http.get("/readyz").status_code == 503, "not ready any more")
    assert probe(daemon) != 0
    stream.cancel()
    assert daemon.process.wait(timeout=60) == 0

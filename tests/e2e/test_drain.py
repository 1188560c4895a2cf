"""SIGTERM under load, over both doors: readiness turns at once, new work is refused, what runs ends properly, the exit code
is 0; past the grace time what is left ends with an error; a second signal does not wait for it."""

import concurrent.futures
import contextlib
import json
import signal
import socket
import threading

import grpc
import httpx
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

import answers
import prompts
from daemon import eventually
from stubs import pb, pb_grpc

TOKENS = 100  # of a stream that is to end by itself


def body(number: int, tokens: int = TOKENS, **fields) -> dict:
    return {"prompt": prompts.text(number, 12), "max_tokens": tokens, "temperature": 0, "ignore_eos": True} | fields


def message(number: int, tokens: int = TOKENS):
    fields = body(number, tokens)
    return pb.CompleteRequest(prompt=[pb.Prompt(text=fields.pop("prompt"))], **fields)


class RestStream:
    """A REST stream read by a thread of its own, so that its client keeps up."""

    def __init__(self, daemon, fields: dict):
        self.began = threading.Event()
        self.lines, self.whole = [], False
        self.thread = threading.Thread(target=self._read, args=(daemon.url, fields))
        self.thread.start()

    def _read(self, url: str, fields: dict):
        with contextlib.suppress(httpx.RemoteProtocolError), httpx.Client(base_url=url, timeout=120) as http, http.stream(
                "POST", "/v1/completions", json=fields | {"stream": True}) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self.lines.append(line.removeprefix("data: "))
                    self.began.set()
            self.whole = True  # the body's end was sent: httpx raises where it is not

    def finish(self) -> list[str]:
        self.thread.join(timeout=120)
        assert not self.thread.is_alive() and self.whole
        return self.lines

    def text(self) -> str:
        lines = self.finish()
        assert lines[-1] == "[DONE]"
        chunks = [json.loads(line) for line in lines[:-1]]
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)


class GrpcStream:
    def __init__(self, stub, request):
        self.call = stub.CompleteStream(request)
        self.chunks = [next(self.call)]
        self.thread = threading.Thread(target=self._read)
        self.thread.start()
        self.error = None

    def _read(self):
        try:
            self.chunks += self.call
        except grpc.RpcError as error:
            self.error = error

    def finish(self):
        self.thread.join(timeout=120)
        assert not self.thread.is_alive()
        return self.error


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except (ConnectionRefusedError, ConnectionResetError):  # the latter in the moment in which the listener closes
        return False
    return True


def reason_of(error: grpc.RpcError) -> str:
    info = error_details_pb2.ErrorInfo()
    for detail in rpc_status.from_call(error).details:
        if detail.Unpack(info):
            return info.reason
    return ""


def test_what_runs_ends_properly_and_nothing_new_begins(start_daemon):
    daemon = start_daemon()
    solo = {n: daemon.http.post("/v1/completions", json=body(n)).json()["choices"][0]["text"] for n in range(4)}
    health = health_pb2_grpc.HealthStub(daemon.channel)
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    rest = [RestStream(daemon, body(n)) for n in (0, 1)]
    streams = [GrpcStream(daemon.stub, message(n)) for n in (2, 3)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        unary = pool.submit(httpx.post, daemon.url + "/v1/completions", json=body(0), timeout=120)
        for stream in rest:
            assert stream.began.wait(timeout=60)
        eventually(lambda: daemon.status().running_sequences + daemon.status().waiting_sequences == 5, "all run")
        other, states = daemon.new_channel(), []
        assert pb_grpc.InferenceStub(other).ListModels(pb.ListModelsRequest()).models
        other.subscribe(states.append)
        eventually(lambda: states[-1:] == [grpc.ChannelConnectivity.READY], "the other connection is open")
        daemon.process.send_signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert daemon.http.get("/readyz").status_code == 503
        assert daemon.http.get("/livez").status_code == 200
        eventually(lambda: not listens(daemon.grpc_port), "nobody connects any more")
        eventually(lambda: states[-1] == grpc.ChannelConnectivity.IDLE, "the other connection was told to go")
        assert all(stream.thread.is_alive() for stream in streams), "what runs goes on meanwhile"
        for fields in (body(9, 1), body(9, 1, stream=True)):
            refused = daemon.http.post("/v1/completions", json=fields)
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
            assert 1 <= int(refused.headers["retry-after"]) <= 120
        for channel in (daemon.channel, other, daemon.new_channel()):
            with pytest.raises(grpc.RpcError) as error:
                pb_grpc.InferenceStub(channel).Complete(message(9, 1), timeout=20)
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        assert unary.result().json()["choices"][0]["text"] == solo[0]
    assert [stream.text() for stream in rest] == [solo[0], solo[1]]
    for number, stream in zip((2, 3), streams, strict=True):
        assert stream.finish() is None
        assert answers.of_grpc_stream(stream.chunks)[0].text == solo[number]
    assert daemon.process.wait(timeout=60) == 0


def test_past_the_grace_what_is_left_ends_with_an_error(start_daemon):
    daemon = start_daemon(shutdown_grace_ms=300, max_sequences=2)
    rest = RestStream(daemon, body(0, 4000))
    assert rest.began.wait(timeout=60)
    stream = GrpcStream(daemon.stub, message(1, 4000))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # two that wait, of which no byte was sent
        queued = pool.submit(httpx.post, daemon.url + "/v1/completions", json=body(2), timeout=120)
        queued_call = daemon.stub.Complete.future(message(3))
        eventually(lambda: daemon.status().waiting_sequences == 2, "two wait")
        daemon.process.send_signal(signal.SIGTERM)
        lines = rest.finish()
        assert json.loads(lines[-1])["error"]["code"] == "draining" and "[DONE]" not in lines
        for error in (stream.finish(), queued_call.exception()):
            assert error.code() == grpc.StatusCode.UNAVAILABLE and reason_of(error) == "draining"
        answer = queued.result()
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "draining"
    assert daemon.process.wait(timeout=60) == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(start_daemon, second):
    daemon = start_daemon(shutdown_grace_ms=3_600_000)
    rest = RestStream(daemon, body(0, 4000))
    assert rest.began.wait(timeout=60)
    stream = GrpcStream(daemon.stub, message(1, 4000))
    daemon.process.send_signal(signal.SIGTERM)
    eventually(lambda: daemon.http.get("/readyz").status_code == 503, "the drain began")
    daemon.process.send_signal(signal.SIGHUP)  # changes nothing
    daemon.exit_code = 128 + second
    daemon.process.send_signal(second)
    assert daemon.process.wait(timeout=60) == daemon.exit_code
    assert stream.finish().code() == grpc.StatusCode.UNAVAILABLE
    rest.thread.join(timeout=60)
    assert not rest.whole


def test_an_open_watch_or_reflection_does_not_hold_the_end_up(start_daemon):
    daemon = start_daemon(shutdown_grace_ms=3_600_000)
    watch = health_pb2_grpc.HealthStub(daemon.channel).Watch(health_pb2.HealthCheckRequest())
    next(watch)
    silent = threading.Event()

    def requests():
        silent.wait(timeout=120)
        yield from ()

    reflection = daemon.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")(requests())
    eventually(lambda: daemon.is_idle(), "idle")
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(timeout=60) == 0
    silent.set()
    for call in (watch, reflection):
        with pytest.raises(grpc.RpcError):
            list(call)

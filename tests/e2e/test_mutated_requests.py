"""Two thousand bad requests of every kind over both doors, beside eight good streams: the daemon neither dies nor answers
5xx nor leaks, and each good stream is, byte for byte, what it is alone."""

import functools
import json
import os
import socket

import grpc
import httpx
import pytest

import answers
import crowd
from bad_requests import COMPLETIONS, BadRequests, REFUSALS_OF_HTTP
from stubs import pb, pb_grpc

NUM_REQUESTS = int(os.environ.get("KVASIR_TEST_MUTATED_REQUESTS", "2000"))
SEED = int(os.environ.get("KVASIR_TEST_MUTATED_SEED", "20261130"))
# A request that a mutation left valid is short: its answer is bounded by the context, its choices by the option.
FLAGS = {"context": 256, "max_choices": 8, "log_format": "json", "kv_budget": "64MiB", "header_timeout_ms": 1000,
         "body_timeout_ms": 1000}
GRPC_VERDICTS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.RESOURCE_EXHAUSTED}


class RawConnection:
    """Sends bytes and reads one whole answer of whatever kind; the connection is kept as long as the server does."""

    def __init__(self, port: int):
        self.port = port
        self.socket = None
        self.received = b""

    def send(self, raw: bytes) -> tuple[int, dict, bytes]:
        """Status, fields and body. What the server closes while we still send is judged by what it had answered."""
        if self.socket is None:
            self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=60)
            self.received = b""
        try:
            self.socket.sendall(raw)
        except (BrokenPipeError, ConnectionResetError):
            pass
        head = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        status = int(head[0].split(" ")[1])
        fields = {}
        for line in head[1:]:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        if "content-length" in fields:
            body = self._take(int(fields["content-length"]))
        elif fields.get("transfer-encoding") == "chunked":
            body = self._chunks()
        else:
            body = b""
        if fields.get("connection", "").lower() == "close":
            self.expect_end()
        return status, fields, body

    def expect_end(self):
        """The server closes and sends nothing more: no second answer."""
        rest = self.received
        try:
            while data := self.socket.recv(65536):
                rest += data
        except ConnectionResetError:
            pass
        assert rest == b"", f"more than one answer: {rest[:200]!r}"
        self.close()

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _more(self):
        data = self.socket.recv(65536)
        assert data, f"closed in the middle of an answer: {self.received[:200]!r}"
        self.received += data

    def _until(self, mark: bytes) -> bytes:
        while mark not in self.received:
            self._more()
        taken, _, self.received = self.received.partition(mark)
        return taken

    def _take(self, size: int) -> bytes:
        while len(self.received) < size:
            self._more()
        taken, self.received = self.received[:size], self.received[size:]
        return taken

    def _chunks(self) -> bytes:
        body = b""
        while True:
            size = int(self._until(b"\r\n"), 16)
            body += self._take(size)
            self._take(2)
            if size == 0:
                return body


def check_http(request, status: int, fields: dict, body: bytes):
    assert status in request.statuses, (request.kind, status, body[:300], request.raw[:600])
    assert status < 500 or status in REFUSALS_OF_HTTP
    assert fields.get("x-request-id"), request.kind
    if request.closes:
        assert fields.get("connection", "").lower() == "close", (request.kind, request.raw[:300])
    if status != 200:
        assert fields["content-type"].startswith("application/json")
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["code"]
        assert not any(byte < 32 for byte in body), "raw control characters came back"


def good_rest(daemon, index: int) -> bytes:
    """Every event of a stream, less what differs by nature."""
    text = ""
    with httpx.Client(base_url=daemon.url, timeout=120) as http:
        with http.stream("POST", COMPLETIONS, json={"prompt": f"Story number {index}: the sea", "max_tokens": 60, "stream": True,
                                                    "temperature": 0.8, "seed": index, "logprobs": 2, "return_token_ids": True,
                                                    "ignore_eos": True}) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                text += line + "\n"
    assert text.endswith("data: [DONE]\n\n")
    joined = []
    for line in text.splitlines():
        if line.startswith("data: {"):
            choice = json.loads(line[6:])["choices"][0]
            joined.append((choice["text"], choice["token_ids"], choice["logprobs"], choice["finish_reason"]))
    tokens = [t for _, ids, _, _ in joined for t in ids]
    logprobs = [v for _, _, l, _ in joined if l for v in l["token_logprobs"]]
    return json.dumps(["".join(t for t, *_ in joined), tokens, logprobs, joined[-1][3]]).encode()


def good_grpc(stub, index: int) -> bytes:
    request = pb.CompleteRequest(prompt=[pb.Prompt(text=f"Story number {index}: the sea")], max_tokens=60, temperature=0.8,
                                 seed=index, logprobs=2, ignore_eos=True)
    return repr(answers.of_grpc_stream(stub.CompleteStream(request, timeout=120))).encode()


class GoodStreams(crowd.Beside):
    """Eight streams, four a door, each over and over; every answer must be the one it gives alone."""

    def __init__(self, daemon):
        self.channel = daemon.new_channel()
        stub = pb_grpc.InferenceStub(self.channel)
        self.jobs = [lambda i=i: good_rest(daemon, i) for i in range(4)] + [lambda i=i: good_grpc(stub, i) for i in range(4)]
        self.alone = [job() for job in self.jobs]
        super().__init__([functools.partial(self._compare, i) for i in range(len(self.jobs))])

    def _compare(self, index: int):
        assert self.jobs[index]() == self.alone[index], f"stream {index} differs from what it is alone"

    def __exit__(self, *error):
        try:
            super().__exit__(*error)
        finally:
            self.channel.close()


def send_all(daemon, made: BadRequests, count: int) -> dict:
    """A tenth over gRPC, the others over HTTP; returns how often each kind was answered how."""
    seen: dict = {}
    connection = RawConnection(daemon.http_port)
    for number in range(count):
        if number % 10 == 9:
            request = made.grpc()
            kind = daemon.channel.unary_stream if request.method.endswith("Stream") else daemon.channel.unary_unary
            try:
                result = kind(f"/kvasir.v1.Inference/{request.method}")(request.message, timeout=120)
                if request.method.endswith("Stream"):
                    list(result)
                verdict = "OK"
                assert request.may_pass, (request.kind, request.method, request.message)
            except grpc.RpcError as error:
                verdict = error.code().name
                assert error.code() in GRPC_VERDICTS, (request.kind, error.code(), error.details(), request.message)
        else:
            request = made.http()
            try:
                status, fields, body = connection.send(request.raw)
            except (AssertionError, ConnectionError, TimeoutError) as error:
                raise AssertionError(f"request {number}, {request.kind}: {error!r}\n{request.raw[:800]!r}") from error
            check_http(request, status, fields, body)
            verdict = status
        seen[(request.kind, verdict)] = seen.get((request.kind, verdict), 0) + 1
    connection.close()
    return seen


@pytest.mark.timeout(900)
def test_mutated_requests_beside_good_streams(start_daemon):
    daemon = start_daemon(**FLAGS)
    print(f"seed {SEED}, {NUM_REQUESTS} requests")
    # Once before the counting, so that what is made once and kept (connections, threads, buffers) is there.
    send_all(daemon, BadRequests(SEED + 1), 60)
    with daemon.unharmed():
        with GoodStreams(daemon) as good:
            seen = send_all(daemon, BadRequests(SEED), NUM_REQUESTS)
    for (kind, verdict), count in sorted(seen.items(), key=str):
        print(f"{kind:16} {verdict!s:20} {count}")
    print(f"{sum(good.rounds)} good streams beside them")
    assert {kind for kind, _ in seen} >= {"framing", "nesting", "duplicate", "changed_bytes", "grpc_range", "grpc_bytes"}
    for line in daemon.log().splitlines():
        json.loads(line)
        assert not any(ord(c) < 32 or ord(c) == 0x7f for c in line), line

"""Clients that leave: the work ends, the blocks come home, and the count of the cause goes up by one each."""

import json
import socket
import struct
import subprocess

import grpc
import pytest

import prompts
from daemon import eventually
from leaving import Leaving
from stubs import pb


class RawClient:
    """A REST request over a plain socket, so that the test decides how the connection ends."""

    def __init__(self, daemon, fields: dict):
        body = json.dumps({"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "temperature": 0} | fields).encode()
        self.socket = socket.create_connection(("127.0.0.1", daemon.http_port), timeout=60)
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                            b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def read_events(self, count: int):
        seen = b""
        while seen.count(b"data: ") < count:
            got = self.socket.recv(65536)
            assert got, seen
            seen += got

    def leave(self, how: str):
        if how == "rst":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "half_close":
            self.socket.shutdown(socket.SHUT_WR)
            return
        self.socket.close()


def gone(daemon) -> int:
    return daemon.status().cancelled_total.client_gone


def admitted_since(daemon, before) -> int:
    """prompt_tokens_total once the first request after `before` was admitted."""
    return eventually(lambda: daemon.status().prompt_tokens_total > before.prompt_tokens_total
                      and daemon.status().prompt_tokens_total, "the first was admitted")


WAYS = ["fin", "rst"]


@pytest.mark.parametrize("how", [*WAYS, "half_close"])
def test_leaving_a_stream_in_the_middle(daemon, how):
    with daemon.unharmed():
        before = gone(daemon)
        client = RawClient(daemon, {"stream": True})
        client.read_events(5)
        client.leave(how)
        daemon.wait_idle()
        assert gone(daemon) == before + 1
        client.socket.close()


@pytest.mark.parametrize("how", WAYS)
def test_leaving_a_request_that_does_not_stream(daemon, how):
    with daemon.unharmed():
        before = gone(daemon)
        client = RawClient(daemon, {})
        eventually(lambda: daemon.status().running_sequences == 1, "the request runs")
        client.leave(how)
        daemon.wait_idle()
        assert gone(daemon) == before + 1


class Curl:
    """curl as a user has it, killed where the test wants."""

    def __init__(self, daemon, **fields):
        body = json.dumps({"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "temperature": 0} | fields)
        self.process = subprocess.Popen(["curl", "-sN", daemon.url + "/v1/completions", "-H", "Content-Type: application/json",
                                         "-d", body], stdout=subprocess.PIPE)

    def read_events(self, count: int):
        while count:
            line = self.process.stdout.readline()
            assert line, "curl ended"
            count -= line.startswith(b"data: ")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.mark.parametrize("stream", [True, False])
def test_killed_curl_stops_the_work_within_a_step(daemon, stream):
    with daemon.unharmed():
        leaving = Leaving(daemon)
        curl = Curl(daemon, stream=stream)
        if stream:
            curl.read_events(5)
        generated = leaving.status.generation_tokens_total + 5
        eventually(lambda: daemon.status().generation_tokens_total >= generated, "it generates")
        curl.kill()
        leaving.check("client_gone")
        assert daemon.status().generation_tokens_total < generated + 1900


def test_killed_curl_of_a_queued_request_never_starts(daemon_with):
    daemon = daemon_with(max_sequences=1)
    with daemon.unharmed():
        before = daemon.status()
        first = Curl(daemon, stream=True)
        first.read_events(1)
        prompt_tokens = admitted_since(daemon, before)
        leaving = Leaving(daemon)
        queued = Curl(daemon, prompt="Another")
        eventually(lambda: daemon.status().waiting_sequences == 1, "the second request waits")
        queued.kill()
        eventually(lambda: daemon.status().waiting_sequences == 0, "it left the queue")
        leaving.check_counted("client_gone")
        assert daemon.status().running_sequences == 1 and daemon.status().prompt_tokens_total == prompt_tokens
        leaving = Leaving(daemon)
        first.kill()
        leaving.check("client_gone")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", WAYS)
def test_leaving_the_queue_never_starts(daemon_with, how, stream):
    daemon = daemon_with(max_sequences=1)
    with daemon.unharmed():
        before = daemon.status()
        first = RawClient(daemon, {"stream": True})
        first.read_events(1)
        prompt_tokens = admitted_since(daemon, before)
        queued = RawClient(daemon, {"stream": stream, "prompt": "Another"})
        eventually(lambda: daemon.status().waiting_sequences == 1, "the second request waits")
        queued.leave(how)
        eventually(lambda: daemon.status().waiting_sequences == 0, "it left the queue")
        assert gone(daemon) == before.cancelled_total.client_gone + 1
        first.leave("fin")
        daemon.wait_idle()
        assert gone(daemon) == before.cancelled_total.client_gone + 2
        assert daemon.status().prompt_tokens_total == prompt_tokens, "the queued prompt was never admitted"


@pytest.mark.parametrize("how", WAYS)
def test_leaving_during_the_prefill_of_a_long_prompt(daemon_with, how):
    daemon = daemon_with(step_tokens=16)
    with daemon.unharmed():
        before = daemon.status()
        prompt = prompts.token_ids(daemon, WAYS.index(how), 4000)
        client = RawClient(daemon, {"prompt": prompt, "max_tokens": 10})
        eventually(lambda: daemon.status().computed_tokens_total >= before.computed_tokens_total + 32,
                   "the prefill has begun")
        client.leave(how)
        daemon.wait_idle()
        status = daemon.status()
        assert gone(daemon) == before.cancelled_total.client_gone + 1
        assert status.generation_tokens_total == before.generation_tokens_total
        assert status.computed_tokens_total < before.computed_tokens_total + 4000, "the rest was not computed"


def test_fifty_leave_at_once(daemon):
    with daemon.unharmed():
        before = gone(daemon)
        clients = [RawClient(daemon, {"stream": i % 2 == 0, "prompt": prompts.text(i, 5)}) for i in range(50)]
        eventually(lambda: daemon.status().running_sequences + daemon.status().waiting_sequences == 50, "all are in")
        for i, client in enumerate(clients):
            client.leave(WAYS[i % 2])
        daemon.wait_idle()
        assert gone(daemon) == before + 50


def test_leaving_after_the_last_token_counts_nothing_twice(daemon):
    """Closed as soon as the last event is there: finished, or gone, but only one of the two."""
    with daemon.unharmed():
        status = daemon.status()
        before = status.finished_length_total + status.cancelled_total.client_gone
        for i in range(10):
            client = RawClient(daemon, {"stream": True, "max_tokens": 3, "prompt": prompts.text(i, 4)})
            client.read_events(3)
            client.leave(WAYS[i % 2])
        daemon.wait_idle()
        status = daemon.status()
        assert status.finished_length_total + status.cancelled_total.client_gone == before + 10


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_leaving_the_queue_by_grpc_never_starts(daemon_with, how, streaming):
    daemon = daemon_with(max_sequences=1)
    with daemon.unharmed():
        before = daemon.status()
        request = pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=2000, ignore_eos=True)
        first = daemon.stub.CompleteStream(request)
        next(first)
        prompt_tokens = admitted_since(daemon, before)
        method = daemon.stub.CompleteStream if streaming else daemon.stub.Complete.future
        queued = method(request, timeout=1.5 if how == "deadline" else 100)
        eventually(lambda: daemon.status().waiting_sequences == 1, "the second call waits")
        if how == "cancel":
            queued.cancel()
        eventually(lambda: daemon.status().waiting_sequences == 0, "it left the queue")
        if how == "deadline":
            with pytest.raises(grpc.RpcError) as error:
                next(queued) if streaming else queued.result()
            assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            eventually(lambda: daemon.status().cancelled_total.deadline == before.cancelled_total.deadline + 1,
                       "counted as a deadline, by the door or by the planner")
        else:
            eventually(lambda: daemon.status().cancelled_total.grpc_cancel == before.cancelled_total.grpc_cancel + 1,
                       "counted")
        first.cancel()
        daemon.wait_idle()
        assert daemon.status().prompt_tokens_total == prompt_tokens


def test_timeout_in_the_queue_is_408_and_never_starts(daemon_with):
    daemon = daemon_with(max_sequences=1)
    before = daemon.status()
    first = RawClient(daemon, {"stream": True})
    first.read_events(1)
    prompt_tokens = admitted_since(daemon, before)
    for stream in (False, True):
        response = daemon.http.post("/v1/completions", json={"prompt": "x", "timeout_ms": 200, "stream": stream})
        assert response.status_code == 408 and response.json()["error"]["code"] == "deadline_exceeded"
    assert daemon.status().prompt_tokens_total == prompt_tokens
    first.leave("fin")
    daemon.wait_idle()


@pytest.mark.parametrize("cause", ["client_gone", "grpc_cancel", "deadline", "stop_string"])
def test_each_cause_of_an_abort_counts_once_in_the_metrics(daemon, cause):
    request = pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=2000, ignore_eos=True, temperature=0)

    def aborts():
        return {c: daemon.metric("kvasir_requests_total", finish_reason="abort", cause=c)
                for c in ("client_gone", "grpc_cancel", "deadline", "slow_client", "drain")} | {
                    "stop_string": daemon.metric("kvasir_requests_total", finish_reason="stop")}

    daemon.wait_idle()
    before = aborts()
    if cause == "client_gone":
        client = RawClient(daemon, {"stream": True})
        client.read_events(2)
        client.leave("fin")
    elif cause == "grpc_cancel":
        stream = daemon.stub.CompleteStream(request)
        next(stream)
        stream.cancel()
    elif cause == "deadline":
        response = daemon.http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2000, "ignore_eos": True,
                                                             "timeout_ms": 300})
        assert response.status_code == 408
    else:
        text = daemon.stub.Complete(pb.CompleteRequest(prompt=request.prompt, max_tokens=8, ignore_eos=True,
                                                       temperature=0)).choices[0].text
        before = aborts()
        request.stop.append(text[3:])
        assert daemon.stub.Complete(request).choices[0].stop_string
    eventually(lambda: daemon.is_idle() and aborts() != before, "counted")
    assert aborts() == before | {cause: before[cause] + 1}


@pytest.mark.all
def test_grpc_reader_that_stops_reading_is_cut_off_and_others_go_on(start_daemon):
    daemon = start_daemon()
    alone = list(daemon.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text="Tell me")], max_tokens=50,
                                                         temperature=0)).choices[0].token_ids)
    channel = daemon.new_channel(http2_stream_lookahead_bytes=65536, **{"http2.bdp_probe": 0})
    stream = type(daemon.stub)(channel).CompleteStream(pb.CompleteRequest(
        prompt=[pb.Prompt(text="Once")], max_tokens=7000, ignore_eos=True, logprobs=20))
    next(stream)  # and no more

    def cut_off():
        response = daemon.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text="Tell me")], max_tokens=50,
                                                           temperature=0))
        assert list(response.choices[0].token_ids) == alone
        return daemon.status().cancelled_total.slow_client == 1

    eventually(cut_off, "the slow reader is cut off", 280)
    stream.cancel()
    channel.close()
    daemon.wait_idle()
    assert daemon.metric("kvasir_requests_total", finish_reason="abort", cause="slow_client") == 1


@pytest.mark.all
def test_fifty_rest_readers_that_never_read(start_daemon):
    """At most 256 KiB wait for each; whatever becomes of them, good requests are answered as before."""
    daemon = start_daemon()
    good = {"prompt": "Tell me", "max_tokens": 30, "temperature": 0}
    alone = daemon.http.post("/v1/completions", json=good).json()["choices"]
    clients = []
    with daemon.unharmed():
        for i in range(50):
            clients.append(RawClient(daemon, {"stream": True, "max_tokens": 1000, "prompt": prompts.text(i, 5)}))
        for _ in range(3):
            assert daemon.http.post("/v1/completions", json=good).json()["choices"] == alone
        for client in clients:
            client.leave("rst")
        daemon.wait_idle()

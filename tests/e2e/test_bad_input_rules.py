"""What holds for every bad input, whatever it is: an answer at once, of four members, never a 5xx; the daemon alive and
answering probes; a good stream beside it unchanged; one line in the log, JSON, without a byte of the client's; nothing
left behind. The inputs are those of the tests of each door; times are judged only where the run is for that."""

import json
import time

import grpc
import httpx
import pytest

import crowd
import test_bad_inputs_grpc as over_grpc
import test_bad_inputs_rest as over_rest
from bad_requests import CHAT, COMPLETIONS, post
from stubs import pb
from test_mutated_requests import RawConnection, good_rest

SECRET = "pineapple"  # stands in every prompt here and must not reach the log
ANSWER_SECONDS, LIVEZ_SECONDS = 1.0, 0.1


class Probe(crowd.Beside):
    """Asks /livez and runs a good stream, over and over, beside what is tested."""

    def __init__(self, daemon):
        super().__init__([self._probe, self._stream])
        self.daemon = daemon
        self.alone = good_rest(daemon, 0)
        self.slowest = 0.0

    def _probe(self):
        start = time.monotonic()
        response = self.client.get("/livez")
        self.slowest = max(self.slowest, time.monotonic() - start)
        assert response.status_code == 200, response.text
        self.ending.wait(0.02)  # a probe's pace, not a wait for anything

    def _stream(self):
        assert good_rest(self.daemon, 0) == self.alone, "the good stream differs from what it is alone"

    def told(self) -> str:
        probes, streams = self.rounds
        return f"slowest /livez {self.slowest * 1000:.0f} ms of {probes}, {streams} good streams beside them"

    def __enter__(self):
        self.client = httpx.Client(base_url=self.daemon.url, timeout=60)
        return super().__enter__()

    def __exit__(self, *error):
        try:
            super().__exit__(*error)
        finally:
            self.client.close()


def http_cases():
    """(name, bytes of the whole request)"""
    for path in (COMPLETIONS, CHAT):
        for name, body in over_rest.BODIES.items():
            yield f"{path} body {name}", post(path, body)
        base = {"prompt": SECRET, "max_tokens": 16} if path == COMPLETIONS else {
            "messages": [{"role": "user", "content": SECRET}], "max_tokens": 16}
        own = over_rest.COMPLETION_ONLY if path == COMPLETIONS else over_rest.CHAT_ONLY
        for stream in (False, True):
            for field, value in over_rest.SHARED + own:
                if stream and field == "stream":
                    continue
                body = over_rest.body_with(base | {"stream": stream}, field, value)
                yield f"{path} stream={stream} {field}={over_rest.names(value)}", post(path, body)
        for kind in ("text/plain", "image/png"):
            yield f"{path} {kind}", post(path, b"{}").replace(b"application/json", kind.encode())
        for opened in ("[", '{"a":'):
            for field in ("messages", "metadata", "unknown"):
                yield f"{path} deep {field}", post(path, f'{{"{field}":{opened * 100_000}'.encode())
        yield f"{path} duplicate", post(path, f'{{"prompt":"{SECRET}","max_tokens":1,"max_tokens":2}}'.encode())
        yield f"{path} escape", post(path, f'{{"prompt":"{SECRET}","user":"a\\r\\n\\u001b[2J\\u202e","n":0}}'.encode(),
                                     "x-request-id: a\x1b[2Jb")
        yield f"{path} long id", post(path, f'{{"prompt":"{SECRET}","n":0}}'.encode(), "x-request-id: " + "a" * 10_000)
    for line in ("GET " + CHAT, "PUT " + CHAT, "POST /v1/../metrics", f"POST {CHAT}/", "GET /%00", "GET /%0d%0aX:1", "GET /\x7f"):
        yield line, post("", b"{}", line=line + " HTTP/1.1")


def check_log(daemon, lines: list[str], ids: set[str]):
    """One line for each request, all of them JSON, none with a control character or a word of a prompt."""
    seen: dict[str, int] = {}
    for line in lines:
        assert all(ord(c) >= 32 and ord(c) != 0x7f and c != "\u202e" for c in line), repr(line)
        json.loads(line)
        assert SECRET not in line, line
        for word in line.replace('"', " ").split():
            if word.startswith("id="):
                seen[word[3:]] = seen.get(word[3:], 0) + 1
    wrong = {i: seen.get(i, 0) for i in ids if seen.get(i, 0) != 1}
    assert not wrong, f"requests with another number of lines than one: {wrong}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("judges_times", [False, pytest.param(True, marks=pytest.mark.all)], ids=["", "times"])
def test_rules_hold_for_every_bad_request(start_daemon, judges_times):
    daemon = start_daemon(log_format="json", kv_budget="64MiB")
    wrong, ids, slowest = [], set(), (0.0, "")
    # Once, so that what is made once and kept is there before the counting.
    connection = RawConnection(daemon.http_port)
    connection.send(post(COMPLETIONS, b"{}"))
    with daemon.unharmed():
        first_line = len(daemon.log().splitlines())
        with Probe(daemon) as probe:
            for name, raw in http_cases():
                start = time.monotonic()
                try:
                    status, fields, body = connection.send(raw)
                    took = time.monotonic() - start
                    error = json.loads(body)["error"]
                    good = 400 <= status < 500 or status in (501, 505)
                    if not good or set(error) != {"message", "type", "param", "code"} or any(b < 32 for b in body):
                        wrong.append(f"{name}: {status} {body[:200]!r}")
                    if fields["x-request-id"] in ids:
                        wrong.append(f"{name}: the id {fields['x-request-id']} was another request's")
                    ids.add(fields["x-request-id"])
                    slowest = max(slowest, (took, name))
                except (AssertionError, ValueError, KeyError, OSError) as error:
                    wrong.append(f"{name}: {error!r}")
                    connection.close()
        print(f"{len(ids)} requests; slowest answer {slowest[0] * 1000:.0f} ms ({slowest[1]}), {probe.told()}")
    connection.close()
    assert not wrong, "\n".join(wrong)
    check_log(daemon, daemon.log().splitlines()[first_line:], ids)
    if judges_times:
        assert slowest[0] < ANSWER_SECONDS, slowest
        assert probe.slowest < LIVEZ_SECONDS


@pytest.mark.timeout(900)
@pytest.mark.parametrize("judges_times", [False, pytest.param(True, marks=pytest.mark.all)], ids=["", "times"])
def test_rules_hold_for_every_bad_call(start_daemon, judges_times):
    daemon = start_daemon(log_format="json", kv_budget="64MiB")
    wrong, slowest, calls = [], (0.0, ""), 0
    tables = (("Complete", pb.CompleteRequest, {"prompt": [pb.Prompt(text=SECRET)], "max_tokens": 16}, over_grpc.COMPLETE),
              ("Chat", pb.ChatRequest, {"messages": [pb.ChatMessage(role="user", content=SECRET)], "max_tokens": 16}, over_grpc.CHAT))
    with daemon.unharmed():
        first_line = len(daemon.log().splitlines())
        with Probe(daemon) as probe:
            for method, kind, base, cases in tables:
                for field, values in cases.items():
                    for value in values:
                        start = time.monotonic()
                        calls += 1
                        try:
                            getattr(daemon.stub, method)(kind(**(base | {field: value})), timeout=60)
                            wrong.append(f"{method} {field}={str(value)[:40]}: taken")
                        except grpc.RpcError as error:
                            slowest = max(slowest, (time.monotonic() - start, f"{method} {field}={str(value)[:40]}"))
                            if error.code() != grpc.StatusCode.INVALID_ARGUMENT:
                                wrong.append(f"{method} {field}={str(value)[:40]}: {error.code()} {error.details()}")
        print(f"{calls} calls; slowest answer {slowest[0] * 1000:.0f} ms ({slowest[1]}), {probe.told()}")
    assert not wrong, "\n".join(wrong)
    lines = daemon.log().splitlines()[first_line:]
    check_log(daemon, lines, set())
    assert sum("INVALID_ARGUMENT" in line or "invalid_" in line or "missing_" in line for line in lines) >= calls
    if judges_times:
        assert slowest[0] < ANSWER_SECONDS, slowest
        assert probe.slowest < LIVEZ_SECONDS

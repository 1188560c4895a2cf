"""What the openai client makes of refusals: its error classes, how often it asks again, and the headers it reads."""

import contextlib

import httpx
import openai
import pytest

from daemon import eventually
from stubs import pb

MESSAGES = [{"role": "user", "content": "Name three colours."}]
LONG = {"model": "smollm2", "prompt": "Once", "max_tokens": 4000, "temperature": 0, "extra_body": {"ignore_eos": True}}


class Counted:
    """The openai client with the retries it has by default, beside the count of the requests that it sent."""

    def __init__(self, daemon, **options):
        self.requests = []
        self.http = httpx.Client(event_hooks={"request": [self.requests.append]})
        self.client = openai.OpenAI(**({"base_url": daemon.url + "/v1", "api_key": "unused", "timeout": 120,
                                        "http_client": self.http} | options))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()


@contextlib.contextmanager
def occupied(daemon, num_waiting: int):
    """A daemon with --max-sequences 1 whose place is taken, and behind it so many calls wait."""
    calls = []
    for i in range(1 + num_waiting):
        calls.append(daemon.stub.CompleteStream(
            pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=4000, ignore_eos=True)))
        if i == 0:
            next(calls[0])
        eventually(lambda n=i: daemon.status().waiting_sequences == n, "all but the first wait")
    try:
        yield
    finally:
        for call in calls:
            call.cancel()
        daemon.wait_idle()


@pytest.mark.parametrize(("fields", "code", "param"), [
    ({"temperature": 9}, "invalid_value", "temperature"),
    ({"max_tokens": 10_000_000}, "context_length_exceeded", None),
    ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
], ids=["range", "context", "unsupported"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_sent_once(daemon, fields, code, param, stream):
    with Counted(daemon) as counted:
        with pytest.raises(openai.BadRequestError) as error:
            counted.client.chat.completions.create(**({"model": "smollm2", "messages": MESSAGES, "stream": stream} | fields))
        assert error.value.status_code == 400 and error.value.code == code
        assert param is None or error.value.param == param
        assert error.value.request_id == error.value.response.headers["x-request-id"]
        assert len(counted.requests) == 1


@pytest.mark.parametrize("call", [
    lambda c: c.chat.completions.create(model="gpt-17", messages=MESSAGES), lambda c: c.models.retrieve("gpt-17"),
    lambda c: c.embeddings.create(model="smollm2", input="x"), lambda c: c.moderations.create(input="x"),
], ids=["chat model", "model", "embeddings", "moderations"])
def test_what_is_not_there_is_asked_for_once(daemon, call):
    with Counted(daemon) as counted:
        with pytest.raises(openai.NotFoundError) as error:
            call(counted.client)
        assert error.value.code in ("model_not_found", "unknown_url") and len(counted.requests) == 1


def test_a_wrong_key_raises_authentication_error(start_daemon, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# who may ask\nsk-right\n")
    daemon = start_daemon(api_key="sk-right", api_key_file=keys)
    for options in ({"api_key": "sk-wrong"}, {"api_key": "sk-right-and-more"}):
        with Counted(daemon, **options) as counted:
            for call in (lambda c: c.models.list(),
                         lambda c: c.chat.completions.create(model="smollm2", messages=MESSAGES, stream=True)):
                counted.requests.clear()
                with pytest.raises(openai.AuthenticationError) as error:
                    call(counted.client)
                assert error.value.code == "invalid_api_key" and len(counted.requests) == 1
                assert error.value.response.headers["www-authenticate"] == "Bearer"
                assert "sk-wrong" not in error.value.response.text
    with Counted(daemon, api_key="sk-right") as counted:
        answer = counted.client.chat.completions.create(model="smollm2", messages=MESSAGES, max_tokens=2)
        assert answer.usage.completion_tokens >= 1


def test_a_full_queue_raises_rate_limit_error_after_the_retries(daemon_with):
    daemon = daemon_with(max_sequences=1, max_waiting=1)
    with occupied(daemon, num_waiting=1), Counted(daemon) as counted:
        with pytest.raises(openai.RateLimitError) as error:
            counted.client.completions.create(**LONG)
        assert error.value.code == "queue_full" and error.value.type == "rate_limit_error"
        assert 1 <= int(error.value.response.headers["retry-after"]) <= 120
        assert len(counted.requests) == 3, "the client asks twice more, as Retry-After lets it"


def test_a_retry_gets_through_when_the_queue_has_room_again(daemon_with):
    daemon = daemon_with(max_sequences=1, max_waiting=1)
    with Counted(daemon) as counted:
        room = contextlib.ExitStack()
        room.enter_context(occupied(daemon, num_waiting=1))

        def make_room(response):
            if response.status_code == 429:
                room.close()

        counted.http.event_hooks["response"] = [make_room]
        answer = counted.client.completions.create(model="smollm2", prompt="Once", max_tokens=3)
        assert answer.choices[0].text and len(counted.requests) == 2


def test_the_clients_own_time_out_aborts_the_request(daemon_with):
    """It waits behind another, so that no fast machine can answer in time."""
    daemon = daemon_with(max_sequences=1, max_waiting=1)
    with occupied(daemon, num_waiting=0), Counted(daemon, max_retries=0, timeout=0.5) as counted:
        before = daemon.status().cancelled_total.client_gone
        with pytest.raises(openai.APITimeoutError):
            counted.client.completions.create(model="smollm2", prompt="Once", max_tokens=3)
        eventually(lambda: daemon.status().cancelled_total.client_gone == before + 1, "it was aborted")
        assert daemon.status().waiting_sequences == 0


def test_nobody_listening_raises_a_connection_error(start_daemon):
    daemon = start_daemon()
    daemon.process.terminate()
    assert daemon.process.wait(timeout=60) == 0
    with Counted(daemon, max_retries=0) as counted:
        with pytest.raises(openai.APIConnectionError):
            counted.client.models.list()


def test_draining_raises_503_to_the_new_and_an_error_event_to_the_running(start_daemon):
    daemon = start_daemon(shutdown_grace_ms=5000)
    with Counted(daemon, max_retries=0) as running, Counted(daemon, max_retries=0) as late:
        late.client.models.list()  # its connection is open before the drain begins
        stream = running.client.completions.create(stream=True, **LONG)
        next(stream)
        daemon.process.terminate()
        eventually(lambda: httpx.get(daemon.url + "/readyz").status_code == 503, "not ready any more")
        with pytest.raises(openai.InternalServerError) as refused:
            late.client.completions.create(model="smollm2", prompt="Once", max_tokens=1)
        assert refused.value.status_code == 503 and refused.value.code == "draining"
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 120
        with pytest.raises(openai.APIError, match="drain|shut"):
            for _ in stream:
                pass
    assert daemon.process.wait(timeout=60) == 0


def test_raw_answers_carry_the_headers(daemon, client):
    asked = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 2}
    raw = client.chat.completions.with_raw_response.create(**asked, extra_headers={"x-request-id": "mine:1.a_b-c"})
    assert raw.headers["x-request-id"] == raw.request_id == "mine:1.a_b-c"
    assert raw.headers["content-type"] == "application/json" and raw.headers["openai-processing-ms"].isdecimal()
    assert raw.parse()._request_id == "mine:1.a_b-c"
    ids = {client.models.with_raw_response.list().headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3 and all(ids), "each request gets an id"
    unsafe = client.models.with_raw_response.list(extra_headers={"x-request-id": "<script>"})
    assert unsafe.headers["x-request-id"] not in ("", "<script>")


def test_raw_streams_carry_the_headers(client):
    with client.chat.completions.with_streaming_response.create(model="smollm2", messages=MESSAGES, max_tokens=2,
                                                                stream=True) as raw:
        assert raw.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert raw.headers["cache-control"] == "no-cache" and raw.headers["x-accel-buffering"] == "no"
        assert "content-length" not in raw.headers and raw.headers["x-request-id"]
        lines = list(raw.iter_lines())
    assert lines[-2:] == ["data: [DONE]", ""] or lines[-1] == "data: [DONE]"
    assert all(line == "" or line.startswith("data: ") for line in lines)

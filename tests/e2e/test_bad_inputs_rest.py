"""Bad requests at the REST door, each with its right answer: status, code and the field at fault. After each one the
daemon is the same process, idle, with no block and no file descriptor left behind."""

import http.client
import json
import socket

import httpx
import pytest

import crowd

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hi"}
JSON = {"content-type": "application/json"}


def check_error(response: httpx.Response, status: int, code: str | None = None, param: str | None = None):
    assert response.status_code == status, (response.status_code, response.text[:500])
    assert response.headers["content-type"].startswith("application/json")
    assert not any(ord(c) < 32 and c not in "\n" for c in response.text), "raw control characters came back"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"]
    assert len(error["message"]) < 1000
    if code is not None:
        assert error["code"] == code, error
    if param is not None:
        assert error["param"] == param, error


def post(daemon, path, body, headers=JSON):
    content = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return daemon.http.post(path, content=content, headers=headers)


def names(case):
    return str(case)[:60] if not isinstance(case, bytes) else repr(case[:30])


# ---- B06: bodies that are no JSON object ----

BODIES = {
    "empty": b"", "png": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "form": b"prompt=hi&max_tokens=3",
    "utf16": '{"prompt":"x"}'.encode("utf-16"), "array": b'[{"prompt":"x"}]', "two": b'{"prompt":"x"}{"prompt":"y"}',
    "garbage": b'{"prompt":"x"} oops', "string": b'"x"', "null": b"null", "cut": b'{"prompt":"x',
    # B10: ill-formed UTF-8 and lone surrogates
    "fffe": b'{"prompt":"a\xff\xfeb"}', "overlong": b'{"prompt":"a\xc0\xafb"}', "surrogate": b'{"prompt":"\xed\xa0\x80"}',
    "escape": b'{"prompt":"\\ud800"}', "cut_char": b'{"prompt":"\xe4\xb8"}', "control": b'{"prompt":"a\x01b"}',
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize", "/v1/kv/plan"])
def test_body_that_is_no_json_object(daemon, path):
    with daemon.unharmed():
        for body in BODIES.values():
            check_error(post(daemon, path, body), 400, "invalid_json")


def test_wrong_content_type(daemon):
    with daemon.unharmed():
        good = json.dumps({"prompt": "x", "max_tokens": 1})
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "image/png",
                     "application/jsonp"):
            check_error(post(daemon, COMPLETIONS, good, {"content-type": kind}), 415)
        check_error(post(daemon, COMPLETIONS, good, JSON | {"content-encoding": "gzip"}), 415)
        for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
            assert post(daemon, COMPLETIONS, good, {"content-type": kind}).status_code == 200
        assert post(daemon, COMPLETIONS, b"\xef\xbb\xbf" + good.encode()).status_code == 200


# ---- B07: routes and methods ----

@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", CHAT, 405), ("PUT", CHAT, 405), ("DELETE", COMPLETIONS, 405), ("POST", "/v1/models", 405),
    ("POST", "/v1/../metrics", 404), ("POST", CHAT + "/", 404), ("GET", "/%00", 404), ("GET", "/nothing", 404),
    ("POST", "/completions", 404), ("POST", "/chat/completions", 404),
])
def test_wrong_route_or_method(daemon, method, path, status):
    with daemon.unharmed():
        # Raw, because clients tidy paths.
        response = raw_request(daemon, method, path)
        check_error(response, status, {404: "unknown_url", 405: "method_not_supported"}[status])
        assert bool(response.headers.get("allow")) == (status == 405)


@pytest.mark.parametrize(("sent", "status"), [
    (bytes.fromhex("16030100c8010000c40303") + bytes(189), "400"),  # a TLS ClientHello
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"),
    (b"GET /livez HTTP/3.0\r\nHost: x\r\n\r\n", "505"),
], ids=["tls", "h2c", "http3"])
def test_another_protocol_is_refused_and_the_connection_closed(daemon, sent, status):
    with daemon.unharmed():
        with socket.create_connection(("127.0.0.1", daemon.http_port), timeout=30) as raw:
            raw.sendall(sent)
            got = b""
            while data := raw.recv(65536):  # to the end: the server closes
                got += data
        assert got.startswith(b"HTTP/1.1 " + status.encode() + b" "), got[:200]
        assert got.count(b"HTTP/1.1 ") == 1 and b"connection: close" in got.lower()
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"]


def raw_request(daemon, method: str, path: str) -> httpx.Response:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=30)
    connection.putrequest(method, path, skip_accept_encoding=True)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "2")
    connection.endheaders(b"{}")
    got = connection.getresponse()
    response = httpx.Response(got.status, headers=got.getheaders(), content=got.read())
    connection.close()
    return response


# ---- B08, B09: depth and duplicates ----

def test_deep_nesting_is_refused_by_the_parser(daemon):
    deep = "[" * 100_000
    objects = '{"a":' * 100_000
    with daemon.unharmed():
        for body in ('{"messages":' + deep, '{"messages":[],"tools":[{"type":"function","function":{"parameters":' + objects,
                     '{"metadata":' + objects, '{"unknown":' + deep, deep, '{"prompt":' + deep + "]" * 100_000 + "}"):
            check_error(post(daemon, CHAT, body), 400, "json_too_deep")


@pytest.mark.parametrize("body", [
    '{"max_tokens":1,"messages":[{"role":"user","content":"x"}],"max_tokens":100000}',
    '{"messages":[{"role":"user","content":"x","content":"y"}]}',
    '{"messages":[{"role":"user","content":"x"}],"response_format":{"schema":{"type":"a","type":"b"}}}',
    '{"messages":[{"role":"user","content":"x"}],"m\\u0061x_tokens":1,"max_tokens":2}',
])
def test_duplicate_keys_are_refused_by_name(daemon, body):
    with daemon.unharmed():
        response = post(daemon, CHAT, body)
        check_error(response, 400)
        assert any(key in response.json()["error"]["message"] for key in ("max_tokens", "content", "type"))


# ---- B11 to B19: values ----

def values(field, *bad, raw=()):
    return [(field, value) for value in bad] + [(field, RawJson(text)) for text in raw]


class RawJson(str):
    """JSON text put into the body as it is: numbers that Python would not write."""


def body_with(base: dict, field: str, value) -> bytes:
    if isinstance(value, RawJson):
        rest = {k: v for k, v in base.items() if k != field}
        return (json.dumps(rest)[:-1] + f', "{field}": {value}}}').encode()
    return json.dumps(base | {field: value}).encode()


SHARED = [
    *values("max_tokens", True, "5", 2.9, -1, 0, raw=["9223372036854775808", "1e30"]),
    *values("n", 1_000_000_000, 0, -1, 129, "1", True),
    *values("temperature", -0.1, 2.1, "NaN", "1", True, [], raw=["1e400", "-1e400", "1e39"]),
    *values("top_p", -0.1, 1.1, "x", raw=["1e400"]), *values("min_p", -0.1, 1.1, raw=["1e400"]),
    *values("presence_penalty", -2.1, 2.1, raw=["1e400"]), *values("frequency_penalty", -2.1, 2.1, raw=["1e400"]),
    *values("repetition_penalty", 0, -1, 10.1, raw=["1e400", "1e-400"]), *values("top_k", -2, 1.5, "3"),
    *values("logit_bias", {"49152": 1}, {"-1": 1}, {"abc": 1}, {"1.5": 1}, {"1": 101}, {"1": "x"}, {"": 1}, {"01": 1},
            {"99999999999999999999": 1}, {str(i): 1 for i in range(20_000)}, [], "x"),
    *values("stop_token_ids", [49152], [-1], [2**31], ["a"], 5, raw=["[9223372036854775808]"]),
    *values("stop", "", [""], ["x"] * 17, "y" * 2**20, [1], {}, 5),
    *values("seed", "x", 1.5, raw=["9223372036854775808"]), *values("priority", 2**31, "x"),
    *values("timeout_ms", 0, -1, "x", 1.5), *values("min_tokens", -1, 17, "x"), *values("cache_salt", "", "x" * 1025, 5),
    *values("ignore_eos", 1, "true"), *values("stream", 1, "yes"), *values("return_token_ids", "x"),
    *values("model", 5),
]
COMPLETION_ONLY = [
    *values("prompt", "", [], [[]], [""], None, 5, {}, [49152], [-1], [2**31], [1, "a"], [[[1]]], [[1], 2], ["a", 1],
            [True], [1.5], raw=["[9223372036854775808]"]),
    *values("logprobs", 21, -1, 1_000_000, True, "1"), *values("best_of", 2), *values("suffix", "x"),
    *values("prompt_embeds", "x"),
]
CHAT_ONLY = [
    *values("messages", [], [{}], [123], "x", None, [{"role": "x", "content": "y"}], [{"role": "user", "content": 123}],
            [{"role": "user", "content": None}], [{"role": "user"}], [{"content": "x"}], [USER, {"role": "tool", "content": "x"}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}], [USER] * 2049),
    *values("top_logprobs", 21, -1, 5), *values("logprobs", 5, "x"), *values("max_completion_tokens", 0, "x", 5),
    *values("chat_template", "{% for i in range(10**9) %}x{% endfor %}"), *values("tools", []),
    *values("modalities", ["audio"]), *values("audio", {}), *values("web_search_options", {}),
    *values("chat_template_kwargs", {"chat_template": "x"}, {"tokenize": True}, {"messages": []}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "base", "cases"), [
    (COMPLETIONS, {"prompt": "x", "max_tokens": 16}, SHARED + COMPLETION_ONLY),
    (CHAT, {"messages": [USER], "max_tokens": 16}, SHARED + CHAT_ONLY),
], ids=["completions", "chat"])
def test_bad_values_are_refused_by_name(daemon, path, base, cases, stream):
    wrong = []
    with daemon.unharmed():
        steps = daemon.status().steps_total
        for field, value in cases:
            if field == "stream" and stream:
                continue
            response = post(daemon, path, body_with(base | {"stream": stream}, field, value))
            shown = f"{field}={names(value)}"
            try:
                check_error(response, 400)
                param = response.json()["error"]["param"]
                code = response.json()["error"]["code"]
                # A number outside of a double cannot be told from damaged JSON by every parser.
                if not (code == "invalid_json" and isinstance(value, RawJson)):
                    assert param is not None and (param == field or param.startswith((field + "[", field + "."))), param
            except AssertionError as error:
                wrong.append(f"{shown}: {error}")
        assert not wrong, "\n".join(wrong)
        assert daemon.status().steps_total == steps, "no step ran for any of them"


def test_values_at_the_edge_are_taken(daemon):
    edge = [{"max_tokens": 16.0}, {"max_tokens": None}, {"temperature": 0}, {"temperature": 2}, {"top_p": 0}, {"top_p": 1},
            {"top_k": 0}, {"top_k": -1}, {"n": None}, {"stop": None}, {"stop": ["x"] * 16}, {"stop": "y" * 256},
            {"logit_bias": {"49151": 100, "0": -100}}, {"logit_bias": None}, {"seed": -2**63}, {"seed": 2**63 - 1},
            {"stop_token_ids": [49151]}, {"min_tokens": 2}, {"cache_salt": "x" * 1024}, {"user": "me", "vendor": {"a": 1}},
            {"repetition_penalty": 10}, {"presence_penalty": -2, "frequency_penalty": 2}, {"priority": -2**31}]
    with daemon.unharmed():
        for fields in edge:
            response = post(daemon, COMPLETIONS, {"prompt": "x", "max_tokens": 2} | fields)
            assert response.status_code == 200, (fields, response.text)


def test_n_times_prompts_is_bounded(daemon):
    with daemon.unharmed():
        check_error(post(daemon, COMPLETIONS, {"prompt": ["a", "b"], "n": 128}), 400, "invalid_value", "n")
        check_error(post(daemon, COMPLETIONS, {"prompt": ["a"] * 129}), 400, "invalid_value", "prompt")


def test_banning_every_token_ends_with_an_answer(daemon):
    with daemon.unharmed():
        response = post(daemon, COMPLETIONS, {"prompt": "x", "max_tokens": 2, "logit_bias": {str(i): -100 for i in range(1000)}})
        assert response.status_code == 200


def test_body_of_nine_mebibytes_is_refused(daemon):
    with daemon.unharmed():
        with httpx.Client(base_url=daemon.url, timeout=60) as http:
            try:
                response = http.post(COMPLETIONS, content=b'{"prompt":"' + b"a" * (9 << 20) + b'"}', headers=JSON)
                check_error(response, 413, "body_too_large")
            except (httpx.WriteError, httpx.ReadError):
                pass  # closed while we were still sending, as it may be


def test_eight_mebibytes_of_digits_are_refused_before_tokenising(daemon):
    with daemon.unharmed():
        response = post(daemon, COMPLETIONS, {"prompt": "7" * (8 * 1000 * 1000), "max_tokens": 1})
        check_error(response, 400, "context_length_exceeded", "prompt")
        assert "at least" in response.json()["error"]["message"]


def test_good_stream_beside_bad_requests_is_as_alone(daemon):
    good = {"prompt": "The sea is", "max_tokens": 60, "temperature": 0, "logprobs": 1, "return_token_ids": True}
    alone = post(daemon, COMPLETIONS, good).json()["choices"]

    def bad():
        with httpx.Client(base_url=daemon.url, timeout=60) as http:
            for field, value in SHARED[:40]:
                response = http.post(COMPLETIONS, content=body_with({"prompt": "x"}, field, value), headers=JSON)
                assert response.status_code == 400
            for body in BODIES.values():
                assert http.post(COMPLETIONS, content=body, headers=JSON).status_code == 400

    with daemon.unharmed():
        results = crowd.at_once([lambda: post(daemon, COMPLETIONS, good).json()["choices"], bad, bad])
        assert results[0] == alone


def test_log_keeps_one_line_per_request_and_no_prompt(daemon):
    secret = "pineapple-\\u001b[2J-secret"
    post(daemon, COMPLETIONS, '{"prompt":"' + secret + '","max_tokens":2,"user":"a\\r\\nb\\u001b[31m"}',
         JSON | {"x-request-id": "bad\x1bid"})
    post(daemon, COMPLETIONS, {"prompt": "pineapple secret", "temperature": 9})
    daemon.wait_idle()
    log = daemon.log()
    assert "pineapple" not in log and "\x1b" not in log


def test_request_id_of_the_client_comes_back_only_if_it_is_plain(daemon):
    body = json.dumps({"prompt": "x", "max_tokens": 1})
    assert post(daemon, COMPLETIONS, body, JSON | {"x-request-id": "a.B-9:_"}).headers["x-request-id"] == "a.B-9:_"
    for bad in ("a b", "x" * 129, "a<b>", "a;b"):
        given = post(daemon, COMPLETIONS, body, JSON | {"x-request-id": bad}).headers["x-request-id"]
        assert given and given != bad

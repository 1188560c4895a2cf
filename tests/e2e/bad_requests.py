"""Makes bad requests by kind, seeded: what is sent over HTTP as raw bytes or over gRPC as a message, and which answers
are right for it. A request that a mutation left valid may be answered: what never is right is a 5xx, a hang or a death."""

import dataclasses
import json
import random

from stubs import pb

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BAD_REQUEST = frozenset({400})
# What a request may get whose bytes were changed at random: whatever is the client's fault, or an answer.
ANY_VERDICT = frozenset({200, 400, 404, 405, 408, 411, 413, 414, 415, 417, 431, 501, 505})
# 501 and 505 are refusals of what HTTP lets a client ask for; all other 5xx say that the server is at fault.
REFUSALS_OF_HTTP = frozenset({501, 505})


@dataclasses.dataclass(frozen=True)
class HttpRequest:
    kind: str
    raw: bytes
    statuses: frozenset
    closes: bool = False  # the connection must end with the answer


@dataclasses.dataclass(frozen=True)
class GrpcRequest:
    kind: str
    method: str
    message: bytes
    may_pass: bool  # a mutated message may still be a valid one


GOOD = {
    COMPLETIONS: {"model": "smollm2", "prompt": "The sea is", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 7,
                  "n": 1, "stop": ["\n\n"], "logprobs": 1, "logit_bias": {"42": -1.5}, "stream": False, "top_k": 5,
                  "min_p": 0.01, "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1,
                  "stop_token_ids": [9], "min_tokens": 1, "priority": 1, "timeout_ms": 60000, "cache_salt": "s",
                  "ignore_eos": False, "skip_special_tokens": True, "include_stop_str_in_output": False,
                  "return_token_ids": True, "user": "me", "unknown_extra": {"a": [1, 2]}},
    CHAT: {"model": "smollm2", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
           "max_tokens": 3, "temperature": 0, "logprobs": True, "top_logprobs": 2, "stream": True,
           "stream_options": {"include_usage": True}, "stop": "x", "n": 2, "seed": 1},
}
NUMBERS = {"temperature": (0, 2), "top_p": (0, 1), "min_p": (0, 1), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2),
           "repetition_penalty": (0, 10)}
INTEGERS = {"max_tokens": (1, None), "n": (1, 8), "top_k": (-1, 2**31 - 1), "min_tokens": (0, None), "timeout_ms": (1, 604_800_000),
            "priority": (-2**31, 2**31 - 1), "seed": (-2**63, 2**63 - 1)}
SWITCHES = ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "return_token_ids", "stream")
VOCABULARY = 49152


def post(path: str, body: bytes, *fields: str, length: bool = True, line: str | None = None) -> bytes:
    head = [line or f"POST {path} HTTP/1.1", "Host: test", "Content-Type: application/json", *fields]
    if length:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def dumped(body: dict) -> bytes:
    return json.dumps(body).encode()


class BadRequests:
    """`http()` and `grpc()` give one request each, of a kind drawn at random; equal seeds give equal requests."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.http_kinds = (self.framing, self.length, self.head, self.route, self.nesting, self.duplicate, self.ill_formed_text,
                           self.cut_json, self.wrong_type, self.out_of_range, self.prompt_shape, self.messages_shape,
                           self.tokens, self.stops, self.logprobs, self.changed_bytes, self.changed_bytes)
        self.grpc_kinds = (self.grpc_range, self.grpc_tokens, self.grpc_bytes, self.grpc_bytes)

    def http(self) -> HttpRequest:
        return self.rng.choice(self.http_kinds)()

    def grpc(self) -> GrpcRequest:
        return self.rng.choice(self.grpc_kinds)()

    # ---- HTTP framing ----

    def path(self) -> str:
        return self.rng.choice((COMPLETIONS, CHAT))

    def framing(self) -> HttpRequest:
        """Two lengths, unknown codings, folded fields, no Host or two: what follows is never read as a request."""
        path = self.path()
        body = dumped(GOOD[path])
        smuggled = b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n"
        choice = self.rng.randrange(7)
        if choice == 0:
            fields = ["Transfer-Encoding: chunked", f"Content-Length: {self.rng.randrange(1, 40)}"]
            self.rng.shuffle(fields)
            return HttpRequest("framing", post(path, b"0\r\n\r\n" + smuggled, *fields, length=False), BAD_REQUEST, True)
        if choice == 1:
            coding = self.rng.choice(("xchunked", "chunked, gzip", "identity", "gzip", "chunked,chunked", "x"))
            raw = post(path, smuggled, f"Transfer-Encoding: {coding}", length=False)
            return HttpRequest("framing", raw, frozenset({400, 501}), True)
        if choice == 2:
            raw = post(path, body, "X-Folded: a\r\n b")
            return HttpRequest("framing", raw, BAD_REQUEST, True)
        if choice == 3:
            return HttpRequest("framing", post(path, body, "Host: other"), BAD_REQUEST, True)
        if choice == 4:
            return HttpRequest("framing", post(path, body).replace(b"Host: test\r\n", b""), BAD_REQUEST, True)
        if choice == 5:
            raw = post(path, b"", "Transfer-Encoding: chunked", length=False)
            size = self.rng.choice((b"FFFFFFFFFFFFFFFF", b"-1", b"0x5", b"G", b"x", b"10000000000000000000"))
            return HttpRequest("framing", raw + size + b"\r\n\r\n", frozenset({400, 413}), True)
        expectation = self.rng.choice(("200-ok", "100-continue, x", ""))
        return HttpRequest("framing", post(path, body, f"Expect: {expectation}"), frozenset({200, 400, 417}))

    def length(self) -> HttpRequest:
        path = self.path()
        bad = self.rng.choice(("-1", "+4", "4 4", "0x4", "4,5", "9223372036854775807", "99999999999999999999999", "", "a", "4\r\nContent-Length: 5"))
        raw = post(path, b"{}{}", f"Content-Length: {bad}", length=False)
        return HttpRequest("length", raw, frozenset({400, 411, 413}), True)

    def head(self) -> HttpRequest:
        """Too much of the head: 431 or 414."""
        path = self.path()
        choice = self.rng.randrange(3)
        if choice == 0:
            return HttpRequest("head", post(path, b"{}", "X-Big: " + "a" * self.rng.randrange(17 << 10, 40 << 10)), frozenset({431}), True)
        if choice == 1:
            fields = [f"X-{i}: {i}" for i in range(self.rng.randrange(101, 200))]
            return HttpRequest("head", post(path, b"{}", *fields), frozenset({431}), True)
        long = path + "?" + "a" * self.rng.randrange(9 << 10, 14 << 10)
        return HttpRequest("head", post(long, b"{}"), frozenset({414}), True)

    def route(self) -> HttpRequest:
        line, status = self.rng.choice((
            (f"GET {CHAT} HTTP/1.1", 405), (f"PUT {COMPLETIONS} HTTP/1.1", 405), ("POST /v1/../metrics HTTP/1.1", 404),
            (f"POST {CHAT}/ HTTP/1.1", 404), ("GET /%00 HTTP/1.1", 404), (f"POST {COMPLETIONS} HTTP/3.0", 505),
            ("POST /v1/models HTTP/1.1", 405), (f"\x01\x02 {CHAT} HTTP/1.1", 400), ("NONSENSE", 400),
            (f"POST http:// HTTP/1.1", 404), ("PATCH /livez HTTP/1.1", 405)))
        return HttpRequest("route", post("", b"{}", line=line), frozenset({status}), status in (400, 505))

    # ---- JSON ----

    def nesting(self) -> HttpRequest:
        depth = self.rng.randrange(65, 100_000)
        where = self.rng.choice(("messages", "prompt", "metadata", "unknown", "stop", "logit_bias"))
        opened, closed = self.rng.choice((("[", "]"), ('{"a":', "}")))
        tail = closed * depth + "}" if self.rng.random() < 0.5 else ""
        return HttpRequest("nesting", post(self.path(), f'{{"{where}":{opened * depth}{tail}'.encode()), BAD_REQUEST)

    def duplicate(self) -> HttpRequest:
        path = self.path()
        body = dumped(GOOD[path])
        key = self.rng.choice(sorted(GOOD[path]))
        return HttpRequest("duplicate", post(path, body[:-1] + f', "{key}": {self.rng.choice(("1", "null", "[]"))}}}'.encode()), BAD_REQUEST)

    def ill_formed_text(self) -> HttpRequest:
        path = self.path()
        bad = self.rng.choice((b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b"\\ud800", b"\\udc00x", b"\xe4\xb8", b"\xf5\x80\x80\x80",
                               b"\x01", b"\n", b"\x7f\x80", b"\\x", b"\\u12g4"))
        target = b"The sea is" if path == COMPLETIONS else b"Be brief."
        body = dumped(GOOD[path])
        at = body.index(target) + self.rng.randrange(len(target))
        return HttpRequest("ill_formed_text", post(path, body[:at] + bad + body[at:]), BAD_REQUEST)

    def cut_json(self) -> HttpRequest:
        path = self.path()
        body = dumped(GOOD[path])
        cut = body[:self.rng.randrange(len(body))] if self.rng.random() < 0.6 else body + self.rng.choice((b"x", b"{}", b",", b"\x00", b"]"))
        return HttpRequest("cut_json", post(path, cut), BAD_REQUEST)

    def set_field(self, kind: str, field: str, text: str, path: str | None = None) -> HttpRequest:
        """The good request with one field's JSON text put in as it is."""
        path = path or self.path()
        rest = {k: v for k, v in GOOD[path].items() if k != field}
        return HttpRequest(kind, post(path, dumped(rest)[:-1] + f', "{field}": {text}}}'.encode()), BAD_REQUEST)

    def wrong_type(self) -> HttpRequest:
        field = self.rng.choice((*NUMBERS, *INTEGERS, *SWITCHES, "model", "stop", "logit_bias", "cache_salt", "stop_token_ids"))
        wrong = ['"x"', '"1"', "[1]", "[[]]", '{"a":1}', "true", "2.5", "1e400"]
        if field in NUMBERS:
            wrong.remove("2.5")
        if field in SWITCHES:
            wrong.remove("true")
        if field in ("model", "stop", "cache_salt"):  # texts are right for them
            wrong = ["[1]", '{"a":1}', "true", "2.5", "7"]
        if field == "stop_token_ids":
            wrong.remove("[1]")
        if field == "logit_bias":
            wrong = ['"x"', "[1]", "true", "2.5", '{"1":"x"}', '{"1":[]}', '{"1":true}']
        return self.set_field("wrong_type", field, self.rng.choice(wrong))

    def out_of_range(self) -> HttpRequest:
        if self.rng.random() < 0.5:
            field = self.rng.choice(sorted(NUMBERS))
            low, high = NUMBERS[field]
            step = 10.0 ** self.rng.randrange(-5, 6)
            bad = high + step if self.rng.random() < 0.5 else low - step
            return self.set_field("out_of_range", field, self.rng.choice((repr(bad), "1e400", "-1e400", "1e309")))
        field = self.rng.choice(sorted(INTEGERS))
        low, high = INTEGERS[field]
        far = self.rng.choice((1, 2, 1000, 2**40, 2**64))
        bad = low - far if high is None or self.rng.random() < 0.5 else high + far
        return self.set_field("out_of_range", field, self.rng.choice((str(bad), "9223372036854775808", "1e30", "0.5")))

    def prompt_shape(self) -> HttpRequest:
        text = self.rng.choice(('""', "[]", "[[]]", '[""]', "null", "5", "{}", '[1,"a"]', '["a",1]', "[[[1]]]", "[[1],2]", "[true]",
                                "[1.5]", "[null]", '[["a"]]', json.dumps(["a"] * 129), '"' + "7" * 100_000 + '"'))
        return self.set_field("prompt_shape", "prompt", text, COMPLETIONS)

    def messages_shape(self) -> HttpRequest:
        text = self.rng.choice(("[]", "[{}]", "[123]", '"x"', "null", '[{"role":"x","content":"y"}]', '[{"role":"user","content":123}]',
                                '[{"role":"user","content":null}]', '[{"role":"user"}]', '[{"content":"x"}]', '[{"role":5,"content":"x"}]',
                                '[{"role":"tool","content":"x"}]', '[{"role":"user","content":[]}]', '[{"role":"user","content":[1]}]',
                                '[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]',
                                '[{"role":"user","content":[{"type":"text"}]}]', json.dumps([{"role": "user", "content": "x"}] * 2049)))
        return self.set_field("messages_shape", "messages", text, CHAT)

    def bad_id(self) -> int:
        return self.rng.choice((VOCABULARY, VOCABULARY + 1, -1, 2**31, 2**31 - 1, 2**32 + 5, -2**63, 2**63 - 1, self.rng.randrange(VOCABULARY, 2**62)))

    def tokens(self) -> HttpRequest:
        bad = self.bad_id()
        choice = self.rng.randrange(3)
        if choice == 0:
            return self.set_field("tokens", "prompt", json.dumps([5, bad, 7]), COMPLETIONS)
        if choice == 1:
            return self.set_field("tokens", "stop_token_ids", json.dumps([bad]))
        keys = (str(bad), "abc", "1.5", "", "01", " 1", "+1", "99999999999999999999")
        return self.set_field("tokens", "logit_bias", json.dumps({self.rng.choice(keys): 1}))

    def stops(self) -> HttpRequest:
        text = self.rng.choice(('""', '[""]', json.dumps(["x"] * 17), json.dumps("y" * 257), "[1]", "{}", '["a",null]', json.dumps("z" * 2**20)))
        return self.set_field("stops", "stop", text)

    def logprobs(self) -> HttpRequest:
        if self.rng.random() < 0.5:
            return self.set_field("logprobs", "top_logprobs", self.rng.choice(("21", "-1", "1000000", "true", "4294967296")), CHAT)
        return self.set_field("logprobs", "logprobs", self.rng.choice(("21", "-1", "1000000", "true", '"1"', "4294967296")), COMPLETIONS)

    def changed_bytes(self) -> HttpRequest:
        """A good request with some bytes changed, anywhere in it but its length, which always fits."""
        path = self.path()
        body = bytearray(dumped(GOOD[path]))
        head = bytearray(f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n".encode())
        target = body if self.rng.random() < 0.8 else head
        for _ in range(self.rng.randrange(1, 6)):
            at = self.rng.randrange(len(target))
            action = self.rng.randrange(4)
            if action == 0:
                target[at] = self.rng.randrange(256)
            elif action == 1:
                target[at] ^= 1 << self.rng.randrange(8)
            elif action == 2:
                del target[at:at + self.rng.randrange(1, 8)]
            else:
                target[at:at] = target[max(0, at - 8):at] if self.rng.random() < 0.5 else self.rng.randbytes(self.rng.randrange(1, 6))
            if not target:
                target.extend(b"x")
        raw = bytes(head) + f"Content-Length: {len(body)}\r\n\r\n".encode() + bytes(body)
        return HttpRequest("changed_bytes", raw, ANY_VERDICT)

    # ---- gRPC ----

    def good_message(self):
        if self.rng.random() < 0.5:
            return "Complete", pb.CompleteRequest(prompt=[pb.Prompt(text="The sea is")], max_tokens=3, temperature=0.5, seed=7,
                                                  stop=["\n\n"], logit_bias={42: -1.5}, stop_token_ids=[9], logprobs=1)
        return "Chat", pb.ChatRequest(messages=[pb.ChatMessage(role="user", content="Hi")], max_tokens=3, n=2, logprobs=True,
                                      top_logprobs=2, stop=["x"])

    def method(self, name: str) -> str:
        return name + self.rng.choice(("", "Stream"))

    def grpc_range(self) -> GrpcRequest:
        name, message = self.good_message()
        if self.rng.random() < 0.5:
            field = self.rng.choice(sorted(NUMBERS))
            low, high = NUMBERS[field]
            bad = self.rng.choice((low - 0.5, high + 0.5, float("nan"), float("inf"), float("-inf"), 1e300))
        else:
            field = self.rng.choice(sorted(set(INTEGERS) - {"seed"}))
            low, high = INTEGERS[field]
            bad = low - 1 if high is None or self.rng.random() < 0.5 else high + 1
        setattr(message, field, bad)
        return GrpcRequest("grpc_range", self.method(name), message.SerializeToString(), False)

    def grpc_tokens(self) -> GrpcRequest:
        bad = self.bad_id()
        message = pb.CompleteRequest(prompt=[pb.Prompt(text="x")], max_tokens=2)
        choice = self.rng.randrange(3)
        if choice == 0:
            message.prompt[0].token_ids.ids.extend([5, bad])
        elif choice == 1:
            message.stop_token_ids.append(bad)
        else:
            message.logit_bias[bad] = 1.0
        return GrpcRequest("grpc_tokens", self.method("Complete"), message.SerializeToString(), False)

    def grpc_bytes(self) -> GrpcRequest:
        name, message = self.good_message()
        wire = bytearray(message.SerializeToString())
        for _ in range(self.rng.randrange(1, 6)):
            at = self.rng.randrange(len(wire))
            if self.rng.random() < 0.7:
                wire[at] = self.rng.randrange(256)
            else:
                del wire[at:at + self.rng.randrange(1, 4)]
            if not wire:
                wire.append(0)
        return GrpcRequest("grpc_bytes", self.method(name), bytes(wire), True)

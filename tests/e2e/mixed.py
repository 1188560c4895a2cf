"""Mixed requests, the same in every run: short and long prompts, alone or with a prefix of a family, one choice or three,
over both doors, streamed or not; some whose client leaves in the middle, some with a deadline that may pass."""

import json
import random

import grpc
import httpx

import answers
import prompts
from stubs import pb

FAMILIES, FAMILY_TOKENS = 3, 110  # three full blocks of 32 and a piece
DOORS = ("grpc", "grpc_stream", "rest", "rest_stream")
WHOLE, LEFT, DEADLINE = "whole", "left", "deadline"  # how a request ended for its client


class MixedRequest:
    def __init__(self, daemon, number: int):
        chance = random.Random(number)
        self.number, self.door = number, DOORS[number % 4]
        own = chance.choice((5, 9, 17, 30, 45, 63, 100)) if number % 9 else chance.randrange(250, 400)
        shared = prompts.token_ids(daemon, 3000 + number % FAMILIES, FAMILY_TOKENS) if number % 2 else []
        self.prompt = shared + prompts.token_ids(daemon, 4000 + number, own)
        # Most answers are short and some grow far past what one may expect of them.
        self.fields = {"max_tokens": chance.choice((3, 6, 10, 14, 60)), "ignore_eos": True, "logprobs": 0,
                       "stop_token_ids": [prompts.NEVER_SAMPLED], "n": 3 if number % 7 == 3 else 1}
        self.fields |= {"temperature": 0.0} if number % 3 else {"temperature": 0.8, "seed": number}
        self.leaves = number % 10 in (1, 7) and self.door.endswith("stream")
        if self.leaves:
            self.fields["max_tokens"] = 200
        self.has_deadline = not self.leaves and number % 6 == 2
        if self.has_deadline:
            self.fields |= {"timeout_ms": chance.choice((40, 300, 1500, 60_000))}

    def num_cached_tokens(self) -> int:
        """What it needs in the cache by itself, in tokens."""
        return len(self.prompt) + self.fields["n"] * (self.fields["max_tokens"] - 1)

    def expected_ends(self) -> set:
        return {WHOLE} | ({LEFT} if self.leaves else set()) | ({DEADLINE} if self.has_deadline else set())

    def ask(self, daemon, salt: str):
        """(how it ended, its answers where it is whole)"""
        ask = getattr(self, "_over_" + self.door)
        end, found = ask(daemon, self.fields | {"cache_salt": salt})
        assert end in self.expected_ends(), (end, self.number)
        if end == WHOLE:
            assert [len(answer.token_ids) for answer in found] == [self.fields["max_tokens"]] * self.fields["n"]
            assert all(len(a.logprobs) == len(a.token_ids) and a.finish_reason == "length" for a in found)
        return end, found

    def alone(self, daemon):
        """What it answers when nothing else is asked, nothing is cached for it and no time passes."""
        patient = {key: value for key, value in self.fields.items() if key != "timeout_ms"}
        end, found = self._over_grpc(daemon, patient | {"cache_salt": f"alone-{self.number}"})
        assert end == WHOLE
        return found

    def _grpc_request(self, fields):
        return pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=self.prompt))], **fields)

    def _over_grpc(self, daemon, fields):
        try:
            return WHOLE, answers.of_grpc(daemon.stub.Complete(self._grpc_request(fields), timeout=250))
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
            return DEADLINE, None

    def _over_grpc_stream(self, daemon, fields):
        call = daemon.stub.CompleteStream(self._grpc_request(fields), timeout=250)
        chunks = []
        try:
            for chunk in call:
                chunks.append(chunk)
                if self.leaves and len(chunks) == 2:
                    call.cancel()
                    return LEFT, None
            return WHOLE, answers.of_grpc_stream(chunks)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
            return DEADLINE, None

    def _over_rest(self, daemon, fields):
        response = daemon.http.post("/v1/completions", json=fields | {"prompt": self.prompt, "return_token_ids": True},
                                    timeout=250)
        if response.status_code == 408:
            assert response.json()["error"]["code"] == "deadline_exceeded"
            return DEADLINE, None
        assert response.status_code == 200, response.text
        return WHOLE, answers.of_completion(response.json())

    def _over_rest_stream(self, daemon, fields):
        body = fields | {"prompt": self.prompt, "return_token_ids": True, "stream": True}
        with daemon.http.stream("POST", "/v1/completions", json=body, timeout=250) as response:
            if response.status_code == 408:
                return DEADLINE, None
            assert response.status_code == 200, response.read()
            events = []
            for line in response.iter_lines():
                if not line.startswith("data: "):
                    continue
                events.append(line.removeprefix("data: "))
                if self.leaves and len(events) == 2:
                    return LEFT, None
        if len(events) == 0 or events[-1] != "[DONE]":
            assert json.loads(events[-1])["error"]["code"] == "deadline_exceeded", events[-1]
            return DEADLINE, None
        return WHOLE, answers.of_completion({"choices": joined(map(json.loads, events[:-1]))})


def joined(chunks) -> list[dict]:
    """The choices of a stream, put together as the whole answer has them."""
    whole = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            its = whole.setdefault(choice["index"], {"text": "", "token_ids": [], "logprobs": {"token_logprobs": []},
                                                     "finish_reason": None})
            assert its["finish_reason"] is None, "a piece after the finish"
            its["text"] += choice["text"]
            its["token_ids"] += choice.get("token_ids") or []
            if choice["logprobs"]:
                its["logprobs"]["token_logprobs"] += choice["logprobs"]["token_logprobs"]
            its["finish_reason"] = choice["finish_reason"]
    return [whole[index] for index in sorted(whole)]


def pooled_http(daemon, num_clients: int) -> httpx.Client:
    """A client for so many threads at once."""
    limits = httpx.Limits(max_connections=num_clients + 8, max_keepalive_connections=num_clients + 8)
    return httpx.Client(base_url=daemon.url, timeout=250, limits=limits)

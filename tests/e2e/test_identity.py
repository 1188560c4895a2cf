"""The heart: 32 clients at once, with mixed prompt lengths, each get what they get alone. Compared are token ids,
logprobs (all bits), text and finish reason, over both doors, streamed and not, greedy and seeded; for step budgets,
thread counts, cold and warm prefixes, and a KV budget so small that sequences are preempted."""

import json

import httpx
import pytest

import answers
import crowd
import prompts
from stubs import pb

LENGTHS = [5, 530, 17, 63, 9, 31, 95, 12, 7, 94, 30, 127, 11, 260, 27, 6, 62, 20, 61, 8, 159, 15, 93, 24, 10, 29, 13, 60,
           5, 32, 126, 22]  # tokens; many end just below a border of 32, so that answers grow over it
SHARED_PREFIX_TOKENS = 70  # two full blocks of 32 and a piece
BYTES_PER_TOKEN = 23040  # SmolLM2-135M, f16: 2 * 30 layers * 3 KV heads * 64 * 2 bytes
DOORS = ["grpc", "grpc_stream", "rest", "rest_stream"]


class Case:
    """One client's request; `ask` sends it through the case's own door or another."""

    def __init__(self, daemon, number: int, num_prompt: int | None = None, **fields):
        length = num_prompt or LENGTHS[number]
        prefix = prompts.token_ids(daemon, 1000, SHARED_PREFIX_TOKENS) if length > SHARED_PREFIX_TOKENS else []
        self.number = number
        self.prompt = prefix + prompts.token_ids(daemon, number, length - len(prefix))
        self.door = DOORS[number % 4]
        self.fields = {"max_tokens": 10 + 5 * (number % 3), "logprobs": 2, "ignore_eos": number % 5 == 0}
        # Both kinds at every door.
        if (number // 4) % 2 == 0:
            self.fields |= {"temperature": 0.0}
        else:
            self.fields |= {"temperature": 0.8, "seed": 42 + number}
        self.fields |= fields

    def ask(self, daemon, salt: str):
        fields = self.fields | {"cache_salt": salt}
        if self.door.startswith("grpc"):
            request = pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=self.prompt))], **fields)
            if self.door == "grpc":
                return answers.of_grpc(daemon.stub.Complete(request))
            return answers.of_grpc_stream(daemon.stub.CompleteStream(request))
        body = fields | {"prompt": self.prompt, "return_token_ids": True}
        with httpx.Client(base_url=daemon.url, timeout=240) as http:
            if self.door == "rest":
                response = http.post("/v1/completions", json=body)
                assert response.status_code == 200, response.text
                return answers.of_completion(response.json())
            return answers.of_completion(joined_stream(http, body))


def joined_stream(http: httpx.Client, body: dict) -> dict:
    """One choice's chunks put together as the non-streamed body."""
    whole = {"text": "", "token_ids": [], "logprobs": {"token_logprobs": []}, "finish_reason": None}
    with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    for line in lines[:-1]:
        for choice in json.loads(line)["choices"]:
            assert whole["finish_reason"] is None
            whole["text"] += choice["text"]
            whole["token_ids"] += choice.get("token_ids") or []
            if choice["logprobs"]:
                whole["logprobs"]["token_logprobs"] += choice["logprobs"]["token_logprobs"]
            whole["finish_reason"] = choice["finish_reason"]
            whole["stop_reason"] = choice.get("stop_reason")
    return {"choices": [whole]}


@pytest.fixture(scope="module")
def cases(daemon):
    return [Case(daemon, i) for i in range(len(LENGTHS))]


@pytest.fixture(scope="module")
def alone(daemon, cases):
    """Each request by itself: no neighbour, and a salt of its own, so that no prefix is shared."""
    daemon.wait_idle()
    solo = []
    for case in cases:
        solo.append(case.ask(daemon, f"alone-{case.number}"))
    for case, (answer,) in zip(cases, solo, strict=True):
        assert len(answer.logprobs) == len(answer.token_ids) > 0
        if case.fields["ignore_eos"]:
            assert len(answer.token_ids) == case.fields["max_tokens"]
    return solo


def assert_as_alone(daemon, cases, alone, salt: str):
    together = crowd.at_once([lambda c=case: c.ask(daemon, salt) for case in cases])
    different = [f"client {c.number} ({c.door}, {len(c.prompt)} prompt tokens, {c.fields}): {got} != {want}"
                 for c, got, want in zip(cases, together, alone, strict=True) if got != want]
    assert not different, "\n".join(different)


def crowd_twice(daemon, cases, alone):
    """Cold, then warm: the second round finds the first one's prefixes."""
    salt = f"crowd-{daemon.status().prompt_tokens_total}"  # new to a daemon that has served others
    assert_as_alone(daemon, cases, alone, salt)
    cold = daemon.status()
    assert_as_alone(daemon, cases, alone, salt)
    warm = daemon.status()
    return cold, warm


def test_thirty_two_clients_at_once_with_the_default_flags(daemon, cases, alone):
    """The default flags are 512 tokens a step and two threads."""
    assert_finds_prefixes(*crowd_twice(daemon, cases, alone))
    daemon.wait_idle()


@pytest.mark.parametrize(("step_tokens", "threads"), [(16, 1), (16, 2), (512, 1)])
def test_step_budget_and_thread_count_change_nothing(daemon_with, cases, alone, step_tokens, threads):
    daemon = daemon_with(step_tokens=step_tokens, threads=threads)
    cold, warm = crowd_twice(daemon, cases, alone)
    assert_finds_prefixes(cold, warm)
    assert warm.preemptions_total == 0, "the budget of this test has room for all"
    daemon.wait_idle()


def assert_finds_prefixes(cold, warm):
    hits = warm.prefix_hit_tokens_total - cold.prefix_hit_tokens_total
    assert hits >= sum(32 * ((length - 1) // 32) for length in LENGTHS) // 2, "the second round must find its prefixes"


@pytest.mark.parametrize(("step_tokens", "threads"), [(16, 2), (512, 1)])
def test_budget_of_little_more_than_the_longest_changes_nothing(daemon_with, cases, alone, step_tokens, threads):
    longest = max(len(c.prompt) + c.fields["max_tokens"] for c in cases)
    daemon = daemon_with(step_tokens=step_tokens, threads=threads, kv_budget=(longest + 32) * BYTES_PER_TOKEN)
    assert daemon.status().bytes_per_token == BYTES_PER_TOKEN
    assert_as_alone(daemon, cases, alone, "crowd")
    daemon.wait_idle()


@pytest.fixture(scope="module")
def growing(daemon):
    """32 requests that start with one block and need two in the end, and their answers alone."""
    requests = [Case(daemon, i, num_prompt=12 + 7 * i % 20, max_tokens=24, ignore_eos=True,
                     stop_token_ids=[prompts.NEVER_SAMPLED]) for i in range(32)]
    return requests, [request.ask(daemon, f"growing-{request.number}") for request in requests]


@pytest.mark.parametrize(("step_tokens", "threads"), [(16, 1), (16, 2), (512, 1), (512, 2)])
def test_preemption_changes_nothing(daemon_with, growing, step_tokens, threads):
    """In ten blocks ten requests start that are believed to be short. While others wait no block is free, so whatever the
    order in which they came, the first that grows takes one from another."""
    daemon = daemon_with(step_tokens=step_tokens, threads=threads, kv_budget=10 * 32 * BYTES_PER_TOKEN)
    daemon.expect_short_answers()
    assert_as_alone(daemon, *growing, "crowd")
    status = daemon.status()
    assert status.preemptions_total > 0 and status.recomputed_tokens_total > 0
    daemon.wait_idle()


def test_another_cache_layout_agrees_with_its_own_solo_run(daemon_with, cases):
    """Bits are promised for one KV type; here the crowd is compared with what the same daemon gives alone."""
    some = cases[::4] + cases[9::8]
    daemon = daemon_with(kv_budget=1280 * BYTES_PER_TOKEN, kv_type="f32", prefix_cache="false")
    solo = [case.ask(daemon, f"solo-{case.number}") for case in some]
    assert_as_alone(daemon, some, solo, "crowd")
    assert daemon.status().prefix_hit_tokens_total == 0
    daemon.wait_idle()


class Long:
    """Two hundred tokens with five logprobs beside each: greedy, and seeded at 0.8."""

    SAMPLING = ({"temperature": 0.0}, {"temperature": 0.8, "seed": 42})

    def __init__(self, daemon):
        self.prompt = prompts.token_ids(daemon, 2000, 75)
        self.others = [Case(daemon, i, max_tokens=60 + 20 * i, ignore_eos=True) for i in range(4)]

    def over_grpc(self, daemon, salt: str, sampling: dict):
        """The answer, and every logprob in it by its bits."""
        request = pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=self.prompt))], max_tokens=200, logprobs=5,
                                     ignore_eos=True, cache_salt=salt, **sampling)
        response = daemon.stub.Complete(request, timeout=240)
        entries = response.choices[0].logprobs
        assert [len(entry.top) for entry in entries] == [5] * 200
        return (answers.of_grpc(response), [entry.SerializeToString(deterministic=True) for entry in entries],
                response.usage.cached_tokens)

    def over_rest(self, daemon, salt: str, sampling: dict):
        body = {"prompt": self.prompt, "max_tokens": 200, "logprobs": 5, "ignore_eos": True, "cache_salt": salt,
                "return_token_ids": True} | sampling
        with httpx.Client(base_url=daemon.url, timeout=240) as http:
            return answers.of_completion(http.post("/v1/completions", json=body).json())


@pytest.fixture(scope="module")
def long_alone(daemon):
    daemon.wait_idle()
    asked = Long(daemon)
    return asked, [asked.over_grpc(daemon, f"long-alone-{i}", sampling)[:2] for i, sampling in enumerate(Long.SAMPLING)]


@pytest.mark.parametrize("threads", [1, 2])
def test_two_hundred_tokens_alone_beside_seven_and_cached(daemon_with, long_alone, threads):
    asked, alone = long_alone
    daemon = daemon_with(threads=threads)
    watched = [lambda s=s, i=i: asked.over_grpc(daemon, f"long-{i}", s) for i, s in enumerate(Long.SAMPLING)]
    watched += [lambda s=s, i=i: asked.over_rest(daemon, f"long-rest-{i}", s) for i, s in enumerate(Long.SAMPLING)]
    beside = crowd.at_once(watched + [lambda c=c: c.ask(daemon, "long-others") for c in asked.others])
    assert [(answer, bits) for answer, bits, _ in beside[:2]] == alone
    assert beside[2:4] == [answer for answer, _ in alone]
    cached = [ask() for ask in watched[:2]]
    assert [(answer, bits) for answer, bits, _ in cached] == alone
    assert all(cached_tokens >= 64 for _, _, cached_tokens in cached)
    daemon.wait_idle()

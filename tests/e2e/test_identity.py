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

LENGTHS = [5, 600, 17, 64, 9, 33, 180, 12, 7, 96, 31, 128, 11, 250, 40, 6, 65, 20, 50, 8, 300, 15, 97, 24, 10, 45, 13,
           70, 5, 32, 160, 22]  # tokens; around the block borders and far from them
SHARED_PREFIX_TOKENS = 70  # two full blocks of 32 and a piece
DOORS = ["grpc", "grpc_stream", "rest", "rest_stream"]


class Case:
    """One client's request; `ask` sends it through the case's own door or another."""

    def __init__(self, daemon, number: int):
        length = LENGTHS[number]
        prefix = prompts.token_ids(daemon, 1000, SHARED_PREFIX_TOKENS) if length > SHARED_PREFIX_TOKENS else []
        self.number = number
        self.prompt = prefix + prompts.token_ids(daemon, number, length - len(prefix))
        self.door = DOORS[number % 4]
        self.fields = {"max_tokens": 14 + 9 * (number % 3), "logprobs": 2, "ignore_eos": number % 5 == 0}
        # Both kinds at every door.
        if (number // 4) % 2 == 0:
            self.fields |= {"temperature": 0.0}
        else:
            self.fields |= {"temperature": 0.8, "seed": 42 + number}

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


def test_thirty_two_clients_at_once_with_the_default_flags(daemon, cases, alone):
    assert_as_alone(daemon, cases, alone, "crowd")


@pytest.mark.parametrize(("step_tokens", "threads"), [(16, 1), (16, 2), (512, 1), (512, 2)])
def test_step_budget_and_thread_count_change_nothing(start_daemon, cases, alone, step_tokens, threads):
    daemon = start_daemon(step_tokens=step_tokens, threads=threads)
    assert_as_alone(daemon, cases, alone, "cold")
    cold = daemon.status()
    assert_as_alone(daemon, cases, alone, "cold")  # the same salt: warm now
    warm = daemon.status()
    hits = warm.prefix_hit_tokens_total - cold.prefix_hit_tokens_total
    assert hits >= sum(32 * ((length - 1) // 32) for length in LENGTHS) // 2, "the second round must find its prefixes"
    assert warm.preemptions_total == 0, "the budget of this test has room for all"
    daemon.wait_idle()


def smallest_budget(cases) -> int:
    """Bytes with which the longest case fits and little else does; 23,040 bytes per token of SmolLM2-135M with f16."""
    return (max(len(c.prompt) + c.fields["max_tokens"] for c in cases) + 64) * 23040


@pytest.mark.parametrize(("step_tokens", "threads"), [(16, 2), (512, 1)])
def test_preemption_changes_nothing(start_daemon, cases, alone, step_tokens, threads):
    daemon = start_daemon(step_tokens=step_tokens, threads=threads, kv_budget=smallest_budget(cases))
    assert daemon.status().bytes_per_token == 23040
    for salt in ("cold", "cold"):
        assert_as_alone(daemon, cases, alone, salt)
    daemon.wait_idle()


@pytest.mark.parametrize("step_tokens", [16, 512])
def test_growing_sequences_are_preempted_and_nobody_sees_it(start_daemon, step_tokens):
    """Ten sequences start with a block each and need four in the end; the budget is twenty: whatever the order in
    which they arrive, some must give way."""
    daemon = start_daemon(step_tokens=step_tokens, kv_budget=20 * 32 * 23040)

    def ask(number, salt):
        fields = {"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0.0}
        return answers.of_grpc(daemon.stub.Complete(pb.CompleteRequest(
            prompt=[pb.Prompt(text=prompts.text(number, 20))], max_tokens=90, ignore_eos=True, logprobs=1,
            cache_salt=salt, **fields)))

    solo = [ask(i, f"solo-{i}") for i in range(10)]
    assert daemon.status().preemptions_total == 0
    assert crowd.at_once([lambda n=i: ask(n, "crowd") for i in range(10)]) == solo
    status = daemon.status()
    assert status.preemptions_total > 0 and status.recomputed_tokens_total > 0
    daemon.wait_idle()


@pytest.mark.parametrize("flags", [{"kv_type": "f32", "prefix_cache": "false"}, {"block_tokens": 16}],
                         ids=["f32", "block16"])
def test_other_cache_layouts_agree_with_their_own_solo_run(start_daemon, cases, flags):
    """Bits are promised for one KV type; here the crowd is compared with what the same daemon gives alone."""
    some = cases[::4] + cases[9::8]
    daemon = start_daemon(kv_budget=2 * smallest_budget(some), **flags)
    solo = [case.ask(daemon, f"solo-{case.number}") for case in some]
    assert_as_alone(daemon, some, solo, "crowd")
    assert_as_alone(daemon, some, solo, "crowd")
    assert (daemon.status().prefix_hit_tokens_total > 0) == ("prefix_cache" not in flags)
    daemon.wait_idle()

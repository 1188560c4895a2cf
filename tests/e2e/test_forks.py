"""Eight choices of one prompt share its blocks: what each says is the same over both doors, in a crowd, under a budget
that preempts and without the prefix cache, and the blocks that are held prove that the prompt is there once."""

import httpx
import pytest

import answers
import crowd
import prompts
from stubs import pb

N = 8
BLOCK_TOKENS = 32
BYTES_PER_BLOCK = 23040 * BLOCK_TOKENS  # SmolLM2-135M, f16
PROMPT_TOKENS = 43  # a full block and eleven tokens
MAX_TOKENS = 30  # to 72 cached tokens: each choice has two blocks of its own in the end
FIELDS = {"max_tokens": MAX_TOKENS, "temperature": 0.9, "seed": 7, "logprobs": 2, "ignore_eos": True,
          "stop_token_ids": [prompts.NEVER_SAMPLED]}


def over_grpc(daemon, prompt, n=N, **fields):
    request = pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=prompt))], n=n, **FIELDS | fields)
    response = daemon.stub.Complete(request, timeout=240)
    return answers.of_grpc(response), response.usage


def over_rest(daemon, prompt, n=N, **fields):
    body = FIELDS | {"prompt": prompt, "n": n, "return_token_ids": True} | fields
    response = httpx.post(daemon.url + "/v1/completions", json=body, timeout=240)
    assert response.status_code == 200, response.text
    return answers.of_completion(response.json()), response.json()["usage"]


@pytest.fixture(scope="module")
def prompt(daemon):
    return prompts.token_ids(daemon, 77, PROMPT_TOKENS)


@pytest.fixture(scope="module")
def alone(daemon, prompt):
    """The request with nothing beside it."""
    daemon.wait_idle()
    choices, usage = over_grpc(daemon, prompt, cache_salt="forks-alone")
    assert [len(c.token_ids) for c in choices] == [MAX_TOKENS] * N
    assert len({c.token_ids for c in choices}) == N, "each choice draws its own numbers"
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (PROMPT_TOKENS, N * MAX_TOKENS, 0)
    return choices


def test_rest_and_grpc_give_the_same_choices(daemon, prompt, alone):
    choices, usage = over_rest(daemon, prompt, cache_salt="forks-rest")
    assert choices == alone
    assert usage["prompt_tokens"] == PROMPT_TOKENS
    assert usage["completion_tokens"] == N * MAX_TOKENS
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    _, again = over_rest(daemon, prompt, cache_salt="forks-rest")
    assert again["prompt_tokens_details"]["cached_tokens"] == PROMPT_TOKENS - 1, "what the first choice found in the cache"
    daemon.wait_idle()


def test_fewer_choices_are_the_first_of_more(daemon, prompt, alone):
    for n in (1, 3):
        assert over_grpc(daemon, prompt, n=n, cache_salt=f"forks-{n}")[0] == alone[:n]
    daemon.wait_idle()


def test_a_list_of_prompts_gives_each_its_choices(daemon, prompt, alone):
    other = prompts.token_ids(daemon, 78, 20)
    expected = over_rest(daemon, other, n=3, cache_salt="forks-other")[0]
    body = FIELDS | {"prompt": [other, prompt, other], "n": 3, "return_token_ids": True, "cache_salt": "forks-list"}
    response = daemon.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    assert answers.of_completion(response.json()) == expected + alone[:3] + expected
    daemon.wait_idle()


def test_a_crowd_changes_nothing(daemon, prompt, alone):
    neighbours = [prompts.token_ids(daemon, 100 + i, 10 + 9 * i) for i in range(6)]
    asked = [lambda: over_grpc(daemon, prompt, cache_salt="forks-crowd"),
             lambda: over_rest(daemon, prompt, cache_salt="forks-crowd")]
    asked += [lambda p=p: over_rest(daemon, p, n=2) for p in neighbours]
    together = crowd.at_once(asked)
    assert together[0][0] == alone
    assert together[1][0] == alone
    daemon.wait_idle()


@pytest.mark.parametrize("prefix_cache", ["true", "false"])
def test_a_budget_that_preempts_changes_nothing(daemon_with, prompt, alone, prefix_cache):
    """Eight choices need 1 + 8 * 2 blocks in the end; there are seven, and in the least budget three."""
    for num_blocks in (7, 3):
        daemon = daemon_with(kv_budget=num_blocks * BYTES_PER_BLOCK, prefix_cache=prefix_cache)
        daemon.expect_short_answers()
        before = daemon.status().preemptions_total
        assert over_grpc(daemon, prompt)[0] == alone
        assert daemon.status().preemptions_total > before
        daemon.wait_idle()


def test_steps_apart_without_the_prefix_cache_change_nothing(daemon_with, prompt, alone):
    daemon = daemon_with(max_sequences=3, step_tokens=16, prefix_cache="false")
    assert over_rest(daemon, prompt)[0] == alone
    assert daemon.status().preemptions_total == 0
    daemon.wait_idle()


class Peak(crowd.Beside):
    """The most blocks that were held while it watched. It may miss the very top, but what it has seen was there."""

    def __init__(self, daemon):
        super().__init__([self._look])
        self.daemon, self.blocks = daemon, 0

    def _look(self):
        self.blocks = max(self.blocks, self.daemon.status().live_blocks)


@pytest.mark.parametrize("prefix_cache", ["true", "false"])
def test_a_long_prompt_is_held_and_computed_once(daemon_with, prefix_cache):
    """A budget in which two copies of the prompt do not fit holds eight choices of it, without a preemption."""
    num_prompt = 20 * BLOCK_TOKENS + 5
    daemon = daemon_with(kv_budget=(20 + N + 2) * BYTES_PER_BLOCK, prefix_cache=prefix_cache)
    prompt = prompts.token_ids(daemon, 79, num_prompt)
    before = daemon.status()
    with Peak(daemon) as peak:
        choices, _ = over_grpc(daemon, prompt, max_tokens=20)
    after = daemon.status()
    assert [len(c.token_ids) for c in choices] == [20] * N
    assert after.preemptions_total == before.preemptions_total
    # 664 cached tokens in the end: twenty blocks that all hold, and one of each choice's own.
    assert 20 + 2 <= peak.blocks <= 20 + N
    # The prompt once; of each other choice its last token; and all generated ones but the last.
    assert after.computed_tokens_total - before.computed_tokens_total == num_prompt + (N - 1) + N * 19
    daemon.wait_idle()


def test_a_client_that_leaves_takes_all_choices_along(daemon, prompt):
    call = daemon.stub.CompleteStream(pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=prompt))], n=N,
                                                         **FIELDS | {"max_tokens": 2000}))
    next(iter(call))
    call.cancel()
    daemon.wait_idle()

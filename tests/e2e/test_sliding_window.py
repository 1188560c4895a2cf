"""Gemma 3 270M, whose layers see 512 tokens but for every sixth: a budget that could not hold all layers whole serves a
prompt longer than the window, answers are the same bytes whatever is cached or slid, and blocks come back from behind it."""

import os

import pytest

import answers
import crowd
import prompts
from stubs import pb

GEMMA = os.environ.get("KVASIR_TEST_GEMMA", "")
pytestmark = [pytest.mark.all,
              pytest.mark.skipif(not os.path.isfile(GEMMA), reason="KVASIR_TEST_GEMMA names no file")]

BLOCK_BYTES = 32 * 3 * 2 * 256 * 2  # 32 tokens of three layers with one KV head of 256, f16
FULL_STRIPE, WINDOW_STRIPE = 1, 5   # blocks: 3 layers see everything, 15 see the window
PROMPT_TOKENS, STEP_TOKENS = 1200, 64
ALL_WHOLE = 38 * (FULL_STRIPE + WINDOW_STRIPE)  # blocks for 1200 tokens if no layer had a window
NUM_BLOCKS = 160  # 39 + 5 * 19 for 1240 tokens in steps of 64, and some for the neighbours


def ask(daemon, prompt, **fields):
    """(answer, cached tokens)"""
    request = pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=prompt))],
                                 **{"max_tokens": 40, "temperature": 0, "logprobs": 3, "ignore_eos": True} | fields)
    response = daemon.stub.Complete(request, timeout=250)
    return answers.of_grpc(response), response.usage.cached_tokens


@pytest.fixture(scope="module")
def cold(daemon_with):
    """Room for everything, long steps, nothing kept for later."""
    return daemon_with(model=GEMMA, prefix_cache="false", kv_budget="256MiB")


@pytest.fixture(scope="module")
def daemon(daemon_with):
    return daemon_with(model=GEMMA, step_tokens=STEP_TOKENS, kv_budget=NUM_BLOCKS * BLOCK_BYTES)


def test_shape_of_the_cache(daemon):
    status = daemon.http.get("/v1/kv/status").json()
    assert (status["bytes_per_token"], status["bytes_per_block"], status["total_blocks"]) == (18432, BLOCK_BYTES, NUM_BLOCKS)
    assert {(g["layers"], g["window_tokens"]) for g in status["layer_groups"]} == {(15, 512), (3, 0)}


def test_alone_beside_cached_and_after_sliding(daemon, cold):
    assert NUM_BLOCKS < ALL_WHOLE, "the budget would not hold eighteen layers without windows"
    prompt = prompts.token_ids(daemon, 900, PROMPT_TOKENS)
    expected, _ = ask(cold, prompt)
    before = daemon.http.get("/v1/kv/status").json()
    assert ask(daemon, prompt) == (expected, 0)
    slid = daemon.http.get("/v1/kv/status").json()
    returned = slid["window_returned_blocks_total"] - before["window_returned_blocks_total"]
    # Of 1239 tokens all stripes that end before what the last query sees have come back.
    assert returned == WINDOW_STRIPE * ((1239 - 1 - 511) // 32)

    warm, cached = ask(daemon, prompt)
    assert warm == expected and cached > 0

    longer = prompt + list(expected[0].token_ids) + prompts.token_ids(daemon, 910, 100)
    whole, cached = ask(daemon, longer)
    assert whole == ask(cold, longer)[0]
    assert cached == PROMPT_TOKENS + 39, "the window before the second turn is found, the answer in it"
    seeded = {"temperature": 0.8, "seed": 42}
    assert ask(daemon, longer, **seeded)[0] == ask(cold, longer, **seeded)[0]

    beside = crowd.at_once([lambda: ask(daemon, prompt, cache_salt="beside")]
                           + [lambda n=n: ask(daemon, prompts.token_ids(daemon, 901 + n, 50 + 40 * n)) for n in range(3)])
    assert beside[0][0] == expected
    for n in range(3):
        assert beside[1 + n][0] == ask(cold, prompts.token_ids(daemon, 901 + n, 50 + 40 * n))[0]
    daemon.wait_idle()
    status = daemon.http.get("/v1/kv/status").json()
    assert status["live_bytes"] == 0 and status["taken_blocks_total"] == status["returned_blocks_total"]

"""How prefill and decode share the steps: judged by counts of steps and tokens, never by a clock."""

import pytest

import prompts
from stubs import pb

STEP_TOKENS, NUM_STREAMS = 64, 3


@pytest.mark.parametrize("prompt_tokens", [1000, 2000])
def test_streams_get_a_token_in_every_step_of_a_long_prefill(daemon_with, prompt_tokens):
    """Twice the prompt is twice the steps, none of them longer: so nobody's gap between tokens grows with it."""
    daemon = daemon_with(step_tokens=STEP_TOKENS)
    request = pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=4000, ignore_eos=True, temperature=0)
    streams = [daemon.stub.CompleteStream(request) for _ in range(NUM_STREAMS)]
    for stream in streams:
        next(stream)  # prefilled: from now on each takes one token of every step
    before = daemon.status()
    response = daemon.stub.Complete(pb.CompleteRequest(
        prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=prompts.token_ids(daemon, prompt_tokens, prompt_tokens)))],
        max_tokens=1, temperature=0))
    after = daemon.status()
    assert response.usage.prompt_tokens == prompt_tokens and response.usage.cached_tokens == 0
    assert after.running_sequences == NUM_STREAMS, "the streams outlived the prefill"
    steps = after.steps_total - before.steps_total
    assert steps >= prompt_tokens // (STEP_TOKENS - NUM_STREAMS)
    generated = after.generation_tokens_total - before.generation_tokens_total
    assert generated == NUM_STREAMS * steps + 1, "each stream a token a step, and the prompt's own one"
    computed = after.computed_tokens_total - before.computed_tokens_total
    assert computed == prompt_tokens + NUM_STREAMS * steps <= STEP_TOKENS * steps
    for stream in streams:
        stream.cancel()
    daemon.wait_idle()

"""Receipts at both doors: what an answer says it cost in keys and values is what it cost, token for token and byte for
byte, and all receipts together are what the pool counted."""

import concurrent.futures

import pytest

import mixed
import prompts
from stubs import pb

BLOCK_TOKENS = 32
BYTES_PER_TOKEN = 23040  # SmolLM2-135M, f16: 2 * 30 layers * 3 KV heads * 64 * 2 bytes
BYTES_PER_BLOCK = BYTES_PER_TOKEN * BLOCK_TOKENS
SUMMED = ("peak_bytes", "shared_bytes", "cached_tokens", "computed_tokens", "token_passes", "token_passes_without_cache",
          "attention_scores", "attention_scores_without_cache", "preemptions", "recomputed_tokens", "taken_bytes",
          "returned_bytes")


def blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)


def over_rest(daemon, prompt, **fields):
    """(receipt, cached tokens of the usage)"""
    body = {"prompt": prompt, "temperature": 0.8, "seed": 1, "ignore_eos": True, "kv_receipt": True} | fields
    response = daemon.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    return usage["kv_cache"], usage["prompt_tokens_details"]["cached_tokens"]


def over_grpc(daemon, prompt, **fields):
    request = pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=prompt))],
                                 **{"temperature": 0.8, "seed": 1, "ignore_eos": True} | fields)
    usage = daemon.stub.Complete(request).usage
    return {field.name: getattr(usage.kv_cache, field.name) for field in usage.kv_cache.DESCRIPTOR.fields}, usage.cached_tokens


@pytest.mark.parametrize("door", [over_rest, over_grpc])
def test_cold_answer_passes_each_token_once(daemon_with, door):
    daemon = daemon_with()
    p, n = 43, 20
    receipt, cached = door(daemon, prompts.token_ids(daemon, 600, p), max_tokens=n, cache_salt=door.__name__)
    length = p + n - 1  # the last token is never computed
    assert cached == 0
    assert {name: receipt[name] for name in SUMMED} == {
        "peak_bytes": blocks(length) * BYTES_PER_BLOCK, "shared_bytes": 0,
        "cached_tokens": 0, "computed_tokens": length, "token_passes": length,
        "token_passes_without_cache": sum(p + k for k in range(n)),
        "attention_scores": length * (length + 1) // 2,
        "attention_scores_without_cache": sum((p + k) * (p + k + 1) // 2 for k in range(n)),
        "preemptions": 0, "recomputed_tokens": 0,
        "taken_bytes": blocks(length) * BYTES_PER_BLOCK, "returned_bytes": blocks(length) * BYTES_PER_BLOCK}
    assert receipt["bytes_per_token"] == BYTES_PER_TOKEN
    assert receipt["formula"] == "2 x 30 layers x 3 KV heads x 64 x 2 bytes = 23040"
    daemon.wait_idle()


@pytest.mark.parametrize("door", [over_rest, over_grpc])
def test_four_choices_say_what_they_share(daemon_with, door):
    """107 tokens of prompt are three full blocks and eleven tokens; with twenty more each choice ends in its fourth."""
    daemon = daemon_with()
    p, n, choices = 107, 20, 4
    receipt, _ = door(daemon, prompts.token_ids(daemon, 601, p), max_tokens=n, n=choices, cache_salt=door.__name__)
    assert {name: receipt[name] for name in SUMMED if "attention" not in name} == {
        "peak_bytes": 16 * BYTES_PER_BLOCK, "shared_bytes": 9 * BYTES_PER_BLOCK,
        "cached_tokens": 3 * (p - 1), "computed_tokens": p + 3 + choices * (n - 1),
        "token_passes": p + 3 + choices * (n - 1), "token_passes_without_cache": choices * sum(p + k for k in range(n)),
        "preemptions": 0, "recomputed_tokens": 0, "taken_bytes": 7 * BYTES_PER_BLOCK, "returned_bytes": 7 * BYTES_PER_BLOCK}
    daemon.wait_idle()


def common_prefix(one, other) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_later_turns_of_a_chat_find_all_that_was_said(daemon_with):
    """Exactly the tokens that agree: the generated answer too, and the tokens of a block that is not full."""
    daemon = daemon_with()
    messages, known = [pb.ChatMessage(role="system", content=prompts.text(602, 40))], []
    for turn in range(4):
        messages.append(pb.ChatMessage(role="user", content=f"Question {turn}: {prompts.text(610 + turn, 7)}?"))
        answer = daemon.stub.Chat(pb.ChatRequest(messages=messages, temperature=0, max_tokens=23, cache_salt="turns"))
        prompt = list(answer.prompt_token_ids[0].ids)
        expected = min(common_prefix(known, prompt), len(prompt) - 1)
        receipt = answer.usage.kv_cache
        assert (answer.usage.cached_tokens, receipt.cached_tokens) == (expected, expected)
        assert receipt.computed_tokens == len(prompt) - expected + answer.usage.completion_tokens - 1
        if turn > 0:
            assert expected > len(before), "the answer is found, not only the prompt"
        before = prompt
        known = prompt + list(answer.choices[0].token_ids)[:-1]
        messages.append(pb.ChatMessage(role="assistant", content=answer.choices[0].text))
    rest = daemon.http.post("/v1/chat/completions", json={
        "messages": [{"role": m.role, "content": m.content} for m in messages[:-1]], "temperature": 0, "max_tokens": 2,
        "cache_salt": "turns", "kv_receipt": True}).json()["usage"]
    assert rest["prompt_tokens_details"]["cached_tokens"] == rest["kv_cache"]["cached_tokens"] == len(before) - 1
    daemon.wait_idle()


def test_receipts_come_where_they_are_wanted(daemon, daemon_with):
    rest = {"prompt": "Once", "max_tokens": 1}
    grpc = pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=1)
    assert "kv_cache" not in daemon.http.post("/v1/completions", json=rest).json()["usage"]
    assert "kv_cache" in daemon.http.post("/v1/completions", json=rest | {"kv_receipt": True}).json()["usage"]
    assert daemon.stub.Complete(grpc).usage.HasField("kv_cache")
    grpc.kv_receipt = False
    assert not daemon.stub.Complete(grpc).usage.HasField("kv_cache")
    always = daemon_with(kv_receipt="true")
    assert "kv_cache" in always.http.post("/v1/completions", json=rest).json()["usage"]
    assert "kv_cache" not in always.http.post("/v1/completions", json=rest | {"kv_receipt": False}).json()["usage"]


def test_streams_end_with_the_receipt_of_the_whole(daemon):
    body = {"prompt": prompts.token_ids(daemon, 603, 40), "max_tokens": 9, "ignore_eos": True, "kv_receipt": True}
    whole = daemon.http.post("/v1/completions", json=body | {"cache_salt": "whole"}).json()["usage"]
    text = daemon.http.post("/v1/completions", json=body | {"cache_salt": "stream", "stream": True,
                                                            "stream_options": {"include_usage": True}}).text
    assert text.count('"kv_cache"') == 1
    request = pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=body["prompt"]))], max_tokens=9, ignore_eos=True,
                                 cache_salt="grpc")
    chunks = list(daemon.stub.CompleteStream(request))
    assert [chunk.usage.kv_cache.token_passes for chunk in chunks if chunk.HasField("usage")] == [48]
    assert whole["kv_cache"]["token_passes"] == 48 and '"token_passes":48' in text.replace(" ", "")


@pytest.mark.parametrize("num_blocks", [12, 200])
def test_all_receipts_together_are_what_the_pool_counted(daemon_with, num_blocks):
    """Of fifty mixed requests that all run to their end, with preemptions and without."""
    daemon = daemon_with(kv_budget=num_blocks * BYTES_PER_BLOCK)
    daemon.expect_short_answers()
    daemon.wait_idle()
    before = daemon.http.get("/v1/kv/status").json()

    def ask(number: int):
        fields = {"max_tokens": 10 + 7 * (number % 5), "n": 1 + 2 * (number % 2),
                  "stop_token_ids": [prompts.NEVER_SAMPLED], "cache_salt": "together"}
        shared = prompts.token_ids(daemon, 604, 70) if number % 3 else []
        return (over_rest, over_grpc)[number % 4 // 2](daemon, shared + prompts.token_ids(daemon, 620 + number, 20), **fields)[0]

    with concurrent.futures.ThreadPoolExecutor(16) as pool, mixed.pooled_http(daemon, 16) as http:
        daemon.http, kept = http, daemon.http
        receipts = list(pool.map(ask, range(50)))
        daemon.http = kept
    daemon.wait_idle()
    after = daemon.http.get("/v1/kv/status").json()
    total = {name: sum(receipt[name] for receipt in receipts) for name in SUMMED}
    moved = {name: after[name] - before[name] for name in after if name.endswith("_total") and name != "cancelled_total"}
    assert total["taken_bytes"] == moved["taken_blocks_total"] * BYTES_PER_BLOCK
    assert total["returned_bytes"] == moved["returned_blocks_total"] * BYTES_PER_BLOCK
    assert total["taken_bytes"] == total["returned_bytes"] > 0 and after["live_bytes"] == 0
    assert total["computed_tokens"] == moved["computed_tokens_total"]
    assert (total["preemptions"], total["recomputed_tokens"]) == (moved["preemptions_total"], moved["recomputed_tokens_total"])
    assert (total["preemptions"] > 0) == (num_blocks == 12)
    assert total["shared_bytes"] > 0 and total["token_passes"] < total["token_passes_without_cache"]

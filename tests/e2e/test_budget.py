"""The byte budget: whatever can fit is served to its end, whatever never can is refused at once with the numbers."""

import re
import subprocess
import time

import grpc
import httpx
import pytest

import answers
import crowd
import prompts
from daemon import binary_path, eventually, model_path
from stubs import pb

BYTES_PER_TOKEN = 23040  # SmolLM2-135M, f16: 2 * 30 layers * 3 KV heads * 64 * 2 bytes


def id_request(ids, **fields):
    return pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=ids))], **({"temperature": 0} | fields))


def test_budget_far_below_the_sum_serves_every_request_to_its_end(daemon_with):
    budget = 384 * BYTES_PER_TOKEN
    daemon = daemon_with(kv_budget=budget)
    before = daemon.status().finished_length_total
    requests = [id_request(prompts.token_ids(daemon, i, 10 + 14 * i), max_tokens=20, ignore_eos=True)
                for i in range(16)]
    assert sum(len(r.prompt[0].token_ids.ids) + 20 for r in requests) * BYTES_PER_TOKEN > 5 * budget
    calls = [daemon.stub.Complete.future(r) for r in requests]
    peak = 0
    while not all(c.done() for c in calls):
        status = daemon.status()
        peak = max(peak, status.live_blocks)
        time.sleep(0.01)
        assert status.live_blocks + status.free_blocks == status.total_blocks
        assert status.total_blocks * status.bytes_per_block <= budget
    assert all(len(c.result().choices[0].token_ids) == 20 for c in calls)
    assert peak > 0
    assert daemon.status().finished_length_total == before + 16
    daemon.wait_idle()


def never_fits(daemon, num_prompt_tokens: int, max_tokens: int) -> str:
    """Both doors refuse, at once and alike; returns the message."""
    ids = prompts.token_ids(daemon, 1, num_prompt_tokens)
    steps = daemon.status().steps_total
    messages = set()
    for stream in (False, True):
        rest = daemon.http.post("/v1/completions", json={"prompt": ids, "max_tokens": max_tokens, "stream": stream})
        assert rest.status_code == 400 and rest.json()["error"]["code"] == "context_length_exceeded"
        assert rest.json()["error"]["param"] == "prompt"
        messages.add(rest.json()["error"]["message"])
    for method in (daemon.stub.Complete, lambda r: list(daemon.stub.CompleteStream(r))):
        with pytest.raises(grpc.RpcError) as error:
            method(id_request(ids, max_tokens=max_tokens))
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        messages.add(error.value.details())
    assert len(messages) == 1
    assert daemon.status().steps_total == steps, "no work was done for it"
    return messages.pop()


def numbers_of(message: str) -> tuple[int, int, int]:
    """Bytes needed, bytes in the budget, tokens of the longest prompt that would fit."""
    found = re.fullmatch(r"the prompt of \d+ tokens with max_tokens \d+ needs (\d+) bytes of KV cache, but the whole budget is "
                         r"(\d+) bytes; the longest prompt that would fit has (\d+) tokens", message)
    assert found, message
    return tuple(int(number) for number in found.groups())


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(2000, 10), (500, 900)])
def test_request_that_can_never_fit_is_refused_with_the_numbers(daemon_with, num_prompt, max_tokens):
    daemon = daemon_with(kv_budget=1024 * BYTES_PER_TOKEN)
    block_tokens = daemon.status().block_tokens
    blocks = -(-(num_prompt + max_tokens - 1) // block_tokens)  # the last token is never stored
    longest = 1024 - max_tokens + 1
    assert numbers_of(never_fits(daemon, num_prompt, max_tokens)) == (
        blocks * block_tokens * BYTES_PER_TOKEN, 1024 * BYTES_PER_TOKEN, longest)
    # The number is true: so long a prompt is served, one token more is refused.
    assert numbers_of(never_fits(daemon, longest + 1, max_tokens)) == (
        1056 * BYTES_PER_TOKEN, 1024 * BYTES_PER_TOKEN, longest)
    stream = daemon.stub.CompleteStream(id_request(prompts.token_ids(daemon, 2, longest), max_tokens=max_tokens, ignore_eos=True))
    if max_tokens < 100:
        assert sum(len(choice.token_ids) for chunk in stream for choice in chunk.choices) == max_tokens
    else:
        next(stream)  # it runs; its end would take long
        stream.cancel()
    rest = daemon.http.post("/v1/completions", json={"prompt": prompts.token_ids(daemon, 3, 50), "max_tokens": 5})
    assert rest.status_code == 200 and rest.json()["usage"]["prompt_tokens"] == 50
    assert len(daemon.stub.Complete(id_request(prompts.token_ids(daemon, 3, 50), max_tokens=5)).choices) == 1
    daemon.wait_idle()


def test_the_longest_request_that_fits_runs_to_its_end(daemon_with):
    """Exactly the whole budget: prompt and answer fill every block."""
    daemon = daemon_with(kv_budget=160 * BYTES_PER_TOKEN)
    response = daemon.stub.Complete(id_request(prompts.token_ids(daemon, 4, 104), max_tokens=57, ignore_eos=True))
    assert len(response.choices[0].token_ids) == 57
    with pytest.raises(grpc.RpcError):
        daemon.stub.Complete(id_request(prompts.token_ids(daemon, 4, 104), max_tokens=58))
    daemon.wait_idle()


def test_absent_max_tokens_of_chat_fills_what_the_budget_leaves(daemon_with):
    daemon = daemon_with(kv_budget=160 * BYTES_PER_TOKEN)
    response = daemon.stub.Chat(pb.ChatRequest(messages=[pb.ChatMessage(role="user", content="Count on and on.")],
                                               temperature=0, ignore_eos=True))
    assert response.choices[0].finish_reason == pb.FINISH_REASON_LENGTH
    # The last generated token needs no slot.
    assert response.usage.total_tokens in (160, 161)
    daemon.wait_idle()


def test_absent_max_tokens_of_completions_is_sixteen(daemon):
    response = daemon.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text="Count:")], ignore_eos=True))
    assert response.usage.completion_tokens == 16


def test_over_long_prompt_is_refused_with_both_numbers_and_never_cut(daemon):
    context = daemon.context_tokens
    ids = prompts.token_ids(daemon, 5, context)
    cases = [(ids, 1), (ids * 3, 1), (ids[:context - 10], 11), (ids[:10], context + 1)]
    for prompt, max_tokens in cases:
        for stream in (False, True):
            rest = daemon.http.post("/v1/completions",
                                    json={"prompt": prompt, "max_tokens": max_tokens, "stream": stream})
            assert rest.status_code == 400 and rest.json()["error"]["code"] == "context_length_exceeded"
            message = rest.json()["error"]["message"]
            assert str(len(prompt)) in message and str(max_tokens) in message and str(context) in message
        with pytest.raises(grpc.RpcError) as error:
            daemon.stub.Complete(id_request(prompt, max_tokens=max_tokens))
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and error.value.details() == message


CODE_WORD = "The code word is ALBATROSS.\n{}\nWhat is the code word?"


def chat_refused(daemon, content: str, **limit) -> str:
    """Both doors refuse a chat, streamed or not, before any work, with one message."""
    before = daemon.status()
    messages = set()
    for stream in (False, True):
        rest = daemon.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}],
                                                              "stream": stream} | limit)
        assert rest.status_code == 400 and rest.json()["error"]["code"] == "context_length_exceeded"
        messages.add(rest.json()["error"]["message"])
    request = pb.ChatRequest(messages=[pb.ChatMessage(role="user", content=content)], **limit)
    for method in (daemon.stub.Chat, lambda r: list(daemon.stub.ChatStream(r))):
        with pytest.raises(grpc.RpcError) as error:
            method(request)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        messages.add(error.value.details())
    after = daemon.status()
    assert (after.steps_total, after.prompt_tokens_total) == (before.steps_total, before.prompt_tokens_total)
    assert len(messages) == 1
    return messages.pop()


def chat_tokens(daemon, content: str) -> int:
    return daemon.http.post("/tokenize", json={"messages": [{"role": "user", "content": content}]}).json()["count"]


def test_code_word_before_too_much_filler_is_refused_with_both_numbers(daemon_with):
    daemon = daemon_with(context=256)
    content = CODE_WORD.format(prompts.text(6, 256 + 500))
    counted = chat_tokens(daemon, content)
    assert counted >= 256 + 500
    assert chat_refused(daemon, content) == (
        f"the prompt has {counted} tokens and at least 1 must be generated, but the context is 256 tokens")
    assert chat_refused(daemon, content, max_tokens=40) == (
        f"the prompt has {counted} tokens and max_tokens is 40, but the context is 256 tokens")


def test_answer_of_a_chat_fills_the_context_and_no_more(daemon_with):
    """An explicit max_tokens that does not fit is refused; without one the answer may fill what is left."""
    daemon = daemon_with(context=256)
    contents = (CODE_WORD.format(prompts.text(8, num_words)) for num_words in range(200, 0, -1))
    content, counted = next((c, n) for c in contents if (n := chat_tokens(daemon, c)) <= 256 - 10)
    left = 256 - counted
    assert 10 <= left < 20
    assert chat_refused(daemon, content, max_tokens=left + 1) == (
        f"the prompt has {counted} tokens and max_tokens is {left + 1}, but the context is 256 tokens")
    for limit in ({}, {"max_tokens": left}):
        body = {"messages": [{"role": "user", "content": content}], "ignore_eos": True, "temperature": 0} | limit
        rest = daemon.http.post("/v1/chat/completions", json=body).json()
        assert rest["choices"][0]["finish_reason"] == "length" and rest["usage"]["completion_tokens"] == left
        answer = daemon.stub.Chat(pb.ChatRequest(messages=[pb.ChatMessage(role="user", content=content)], ignore_eos=True,
                                                 temperature=0, **limit))
        assert answer.choices[0].finish_reason == pb.FINISH_REASON_LENGTH and answer.usage.completion_tokens == left
        assert answer.choices[0].text == rest["choices"][0]["message"]["content"]


@pytest.mark.parametrize("budget", ["1KiB", str(BYTES_PER_TOKEN)])
def test_budget_under_one_sequence_is_refused_at_start(budget):
    run = subprocess.run([binary_path(), "serve", "--model", model_path(), "--kv-budget", budget, "--http-port", "0",
                          "--grpc-port", "0"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    lines = [line for line in run.stderr.splitlines() if line.startswith("kvasir:")]
    assert len(lines) == 1 and "kv-budget" in lines[0], run.stderr


def test_ten_times_the_queue_at_once_answers_every_request(start_daemon):
    daemon = start_daemon(max_sequences=2, max_waiting=4)

    def ask(number):
        def post():
            with httpx.Client(base_url=daemon.url, timeout=120) as http:
                return http.post("/v1/completions", json={"prompt": prompts.text(number, 10), "max_tokens": 8,
                                                          "temperature": 0, "ignore_eos": True})
        return post

    responses = crowd.at_once([ask(i) for i in range(40)])
    served = [r for r in responses if r.status_code == 200]
    refused = [r for r in responses if r.status_code == 429]
    assert len(served) + len(refused) == 40 and len(served) >= 6
    for response in refused:
        assert response.json()["error"]["code"] == "queue_full"
        assert 1 <= int(response.headers["retry-after"]) <= 120
    for response in served:
        assert response.json()["usage"]["completion_tokens"] == 8
    daemon.wait_idle()


def test_prefix_shared_by_waiting_requests_is_charged_once_it_runs(daemon_with):
    """Six requests with one long prefix in a budget of less than two: all end, and each as alone."""
    daemon = daemon_with(kv_budget=384 * BYTES_PER_TOKEN)
    prefix = prompts.token_ids(daemon, 7, 160)
    requests = [id_request(prefix + prompts.token_ids(daemon, 20 + i, 30), max_tokens=20, logprobs=0)
                for i in range(6)]
    alone = [answers.of_grpc(daemon.stub.Complete(r)) for r in requests]
    together = crowd.at_once([lambda r=r: answers.of_grpc(daemon.stub.Complete(r)) for r in requests])
    assert together == alone
    eventually(daemon.is_idle, "idle")

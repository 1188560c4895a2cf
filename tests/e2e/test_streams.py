"""Streams to the letter: what their chunks look like, and that joined they are the whole answer, over both doors, also
with echo, several choices, stop strings and characters of several tokens."""

import json

import pytest

import crowd
from answers import float32_bits
from stubs import pb

PROMPT = "The history of the lighthouse begins with"
REPEAT = "repeat: 🧪 漢字 é 👩‍👩‍👧"
REASONS = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


def events(daemon, path: str, body: dict) -> list[dict]:
    """The chunks of a stream, which must end in [DONE] and have nothing but data lines."""
    with daemon.http.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line[6:]) for line in lines[:-1]]
    for name in ("id", "object", "created", "model", "system_fingerprint"):
        assert len({chunk[name] for chunk in chunks}) == 1, name
    return chunks


def merge_logprobs(whole: dict | None, piece: dict | None) -> dict | None:
    if whole is None or piece is None:
        return whole or piece
    return {name: whole[name] + piece[name] if isinstance(piece[name], list) else piece[name] for name in piece}


def joined(chunks: list[dict]) -> list[dict]:
    """The choices of a stream in the shape of the whole answer's; every rule of the chunks is checked."""
    choices = {}
    for chunk in chunks:
        for piece in chunk["choices"]:
            chat = "delta" in piece
            first = piece["index"] not in choices
            choice = choices.setdefault(piece["index"], {"text": "", "token_ids": [], "logprobs": None,
                                                         "finish_reason": None})
            assert choice["finish_reason"] is None, "a chunk after the choice's last"
            if chat:
                delta = piece["delta"]
                if first:
                    assert delta == {"role": "assistant", "content": ""}
                elif piece["finish_reason"] is not None:
                    assert delta == {}
                else:
                    assert list(delta) == ["content"] and delta["content"]
                text = delta.get("content", "")
            else:
                text = piece["text"]
                assert text or piece["finish_reason"] is not None, "an empty chunk"
            assert "\ufffd" not in text
            choice["text"] += text
            choice["token_ids"] += piece.get("token_ids", [])
            choice["logprobs"] = merge_logprobs(choice["logprobs"], piece["logprobs"])
            choice["finish_reason"] = piece["finish_reason"]
            choice["stop_reason"] = piece.get("stop_reason")
    return [choices[i] for i in sorted(choices)]


def whole_choices(body: dict) -> list[dict]:
    return [{"text": c["text"] if "text" in c else c["message"]["content"], "token_ids": c["token_ids"],
             "logprobs": c["logprobs"], "finish_reason": c["finish_reason"], "stop_reason": c["stop_reason"]}
            for c in body["choices"]]


def rest(daemon, path: str, body: dict) -> dict:
    response = daemon.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def grpc_choices(messages) -> list[dict]:
    """Of one whole answer or the chunks of one."""
    choices = {}
    for message in messages:
        for piece in message.choices:
            choice = choices.setdefault(piece.index, {"text": "", "token_ids": [], "logprobs": [],
                                                      "finish_reason": None})
            choice["text"] += piece.text
            choice["token_ids"] += piece.token_ids
            choice["logprobs"] += [(e.token_id, float32_bits(e.logprob) if e.HasField("logprob") else None,
                                    tuple((t.token_id, float32_bits(t.logprob)) for t in e.top))
                                   for e in piece.logprobs]
            choice["finish_reason"] = REASONS.get(piece.finish_reason)
            which = piece.WhichOneof("stop_reason")
            choice["stop_reason"] = getattr(piece, which) if which else None
    return [choices[i] for i in sorted(choices)]


def grpc_prompt(prompt):
    return pb.Prompt(text=prompt) if isinstance(prompt, str) else pb.Prompt(token_ids=pb.TokenIds(ids=prompt))


def complete(daemon, prompt, **fields) -> list[dict]:
    """The choices of a completion, asked for in four ways that must agree; `prompt` is a text or token ids, or a list
    of those."""
    fields = {"max_tokens": 24, "temperature": 0} | fields
    prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    request = pb.CompleteRequest(prompt=[grpc_prompt(p) for p in prompts], **fields)
    body = fields | {"prompt": prompt, "return_token_ids": True}
    whole = whole_choices(rest(daemon, "/v1/completions", body))
    assert joined(events(daemon, "/v1/completions", body)) == whole
    called = grpc_choices([daemon.stub.Complete(request)])
    assert grpc_choices(daemon.stub.CompleteStream(request)) == called
    compare_doors(whole, called)
    for mine, theirs in zip(whole, called):
        numbers = (mine["logprobs"] or {"token_logprobs": []})["token_logprobs"]
        numbers = [number if number is None else float32_bits(number) for number in numbers]
        assert numbers == [logprob for _, logprob, _ in theirs["logprobs"]]
    return whole


def chat(daemon, content: str, **fields) -> list[dict]:
    """As complete, of one user's message."""
    fields = {"max_tokens": 24, "temperature": 0} | fields
    request = pb.ChatRequest(messages=[pb.ChatMessage(role="user", content=content)], **fields)
    body = fields | {"messages": [{"role": "user", "content": content}], "return_token_ids": True}
    whole = whole_choices(rest(daemon, "/v1/chat/completions", body))
    assert joined(events(daemon, "/v1/chat/completions", body)) == whole
    called = grpc_choices([daemon.stub.Chat(request)])
    assert grpc_choices(daemon.stub.ChatStream(request)) == called
    compare_doors(whole, called)
    return whole


def compare_doors(over_rest: list[dict], over_grpc: list[dict]):
    assert len(over_rest) == len(over_grpc)
    for mine, theirs in zip(over_rest, over_grpc):
        for name in ("text", "token_ids", "finish_reason", "stop_reason"):
            assert mine[name] == theirs[name], name


def pieces_of(daemon, content: str, max_tokens: int) -> list[str]:
    """The text of each token of a greedy answer whose tokens are all whole characters."""
    (choice,) = chat(daemon, content, max_tokens=max_tokens, logprobs=True)
    texts = [bytes(entry["bytes"]).decode() for entry in choice["logprobs"]["content"]]
    assert "".join(texts) == choice["text"]
    return texts


QUESTION = "Tell me about the lighthouse keeper's day."


@pytest.fixture(scope="module")
def answer(daemon):
    return pieces_of(daemon, QUESTION, 40)


def test_chat_stop_from_the_middle_of_one_token_into_a_third(daemon, answer):
    full = "".join(answer)
    at = next(i for i in range(3, len(answer) - 3) if len(answer[i]) > 2 and len(answer[i + 2]) > 2)
    stop = answer[at][1:] + answer[at + 1] + answer[at + 2][:-1]
    before = full[:full.index(stop)]
    for fields in ({}, {"logprobs": True}, {"n": 2}):
        for choice in chat(daemon, QUESTION, max_tokens=40, stop=[stop], **fields):
            assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (before, "stop", stop)
    (kept,) = chat(daemon, QUESTION, max_tokens=40, stop=[stop], include_stop_str_in_output=True)
    assert kept["text"] == before + stop


def test_chat_stop_whose_start_occurs_earlier_without_the_rest(daemon, answer):
    full = "".join(answer)
    # A stop late in the text whose first three letters are somewhere before it as well.
    at = next(i for i in range(len(full) // 2, len(full) - 8)
              if full[i:i + 3] in full[:i] and full.index(full[i:i + 8]) == i)
    stop = full[at:at + 8]
    assert full.index(stop[:3]) < at
    (choice,) = chat(daemon, QUESTION, max_tokens=40, stop=[stop])
    assert (choice["text"], choice["stop_reason"]) == (full[:at], stop)
    # One that never comes: all that was held back is released.
    (choice,) = chat(daemon, QUESTION, max_tokens=40, stop=[stop[:3] + "\x01"])
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (full, "length", None)


@pytest.mark.parametrize("ask, prompt", [(chat, REPEAT), (complete, "漢字" * 4)], ids=["chat", "completion"])
def test_characters_of_several_tokens_at_every_length(daemon, ask, prompt):
    """Each way to ask gives the same text, no half of a character, and grows by whole ones with max_tokens."""
    lengths = range(1, 31)
    texts = []
    for first in range(0, len(lengths), 10):
        texts += crowd.at_once([lambda n=n: ask(daemon, prompt, max_tokens=n, ignore_eos=True)[0]["text"]
                                for n in lengths[first:first + 10]])
    for shorter, longer in zip(texts, texts[1:]):
        assert longer.startswith(shorter)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_usage_in_streams(daemon, path):
    body = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, "n": 2}
    body |= {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [{"role": "user", "content": PROMPT}]}
    whole = rest(daemon, path, body)["usage"]
    for chunk in events(daemon, path, body):
        assert "usage" not in chunk and len(chunk["choices"]) == 1
    *chunks, last = events(daemon, path, body | {"stream_options": {"include_usage": True}})
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == whole["completion_tokens"] == 12
    assert last["usage"]["prompt_tokens"] == whole["prompt_tokens"]
    running = events(daemon, path, body | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    counts = [chunk["usage"]["completion_tokens"] for chunk in running]
    assert counts == sorted(counts) and counts[0] >= 1 and counts[-1] == 12
    assert running[-1]["choices"] == []
    for chunk in running:
        usage = chunk["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    without_last = events(daemon, path, body | {"stream_options": {"continuous_usage_stats": True}})
    assert all(chunk["choices"] and chunk["usage"] for chunk in without_last)


def test_echo_puts_the_prompt_first_in_every_way_to_ask(daemon):
    plain = complete(daemon, PROMPT, logprobs=2, n=2, seed=4, temperature=1)
    echoed = complete(daemon, PROMPT, logprobs=2, n=2, seed=4, temperature=1, echo=True)
    prompt_tokens = len(daemon.tokenize(PROMPT))
    for before, after in zip(plain, echoed):
        assert after["text"] == PROMPT + before["text"]
        assert after["token_ids"] == before["token_ids"]
        for name, entries in after["logprobs"].items():
            assert len(entries) == prompt_tokens + len(before["token_ids"]), name
            if name != "text_offset":
                assert entries[prompt_tokens:] == before["logprobs"][name]
        lists = after["logprobs"]
        assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
        assert None not in lists["token_logprobs"][1:]
        assert "".join(lists["tokens"]) == after["text"]
        assert lists["text_offset"] == [len("".join(lists["tokens"][:i])) for i in range(len(lists["tokens"]))]
    without = complete(daemon, PROMPT, echo=True)
    assert without[0]["text"].startswith(PROMPT) and without[0]["logprobs"] is None
    first, second = (choice["logprobs"]["token_logprobs"][:prompt_tokens] for choice in echoed)
    assert first == second


def test_echo_of_several_prompts_and_of_token_ids(daemon):
    texts = [PROMPT, "漢字 é 🧪", "One more"]
    for choice, text in zip(complete(daemon, texts, logprobs=0, echo=True, max_tokens=3), texts):
        assert choice["text"].startswith(text)
        offsets = choice["logprobs"]["text_offset"]
        assert offsets == sorted(offsets) and offsets[-4] <= len(text) <= offsets[-1] + 1
    as_ids = [daemon.tokenize(text) for text in texts]
    for mine, theirs in zip(complete(daemon, as_ids, logprobs=0, echo=True, max_tokens=3),
                            complete(daemon, texts, logprobs=0, echo=True, max_tokens=3)):
        assert mine == theirs


def test_echo_without_a_token_to_generate(daemon):
    (alone,) = complete(daemon, PROMPT, logprobs=1, echo=True, max_tokens=0)
    (longer,) = complete(daemon, PROMPT, logprobs=1, echo=True, max_tokens=2)
    assert (alone["text"], alone["finish_reason"], alone["token_ids"]) == (PROMPT, "length", [])
    for name, entries in alone["logprobs"].items():
        assert entries == longer["logprobs"][name][:len(entries)]
    (bare,) = complete(daemon, PROMPT, echo=True, max_tokens=0)
    assert (bare["text"], bare["finish_reason"], bare["logprobs"]) == (PROMPT, "length", None)


def test_what_lm_eval_asks_and_compares(daemon):
    """It sums token_logprobs[context:-1] and calls a continuation greedy where each equals max(top_logprobs)."""
    context = daemon.tokenize(PROMPT)
    (greedy,) = complete(daemon, context, max_tokens=12, ignore_eos=True, logprobs=1)
    continuation = greedy["token_ids"]
    cases = [context + continuation, context + continuation[:5] + [continuation[5] + 1] + continuation[6:]]
    choices = complete(daemon, cases, echo=True, max_tokens=1, logprobs=1)
    for case, choice in zip(cases, choices):
        lists = choice["logprobs"]
        assert {len(entries) for entries in lists.values()} == {len(case) + 1}
        assert len(choice["token_ids"]) == 1
    ends = slice(len(context), -1)
    is_greedy = [all(number == max(top.values()) for number, top in
                     zip(c["logprobs"]["token_logprobs"][ends], c["logprobs"]["top_logprobs"][ends])) for c in choices]
    assert is_greedy == [True, False]
    # What sampling said of the same tokens, to the last bit.
    assert choices[0]["logprobs"]["token_logprobs"][ends] == greedy["logprobs"]["token_logprobs"]
    assert choices[0]["logprobs"]["top_logprobs"][ends] == greedy["logprobs"]["top_logprobs"]


def prompt_logprobs_over_grpc(message) -> list[list]:
    """In the shape of REST's, with bits for numbers."""
    lists = []
    for index, prompt in enumerate(message.prompt_logprobs):
        assert prompt.prompt_index == index
        entries = []
        for token in prompt.tokens:
            if not token.HasField("logprob"):
                entries.append(None)
                continue
            entry = {str(token.token_id): (float32_bits(token.logprob), token.rank)}
            for rank, top in enumerate(token.top, 1):
                entry.setdefault(str(top.token_id), (float32_bits(top.logprob), rank))
            entries.append(entry)
        lists.append(entries)
    return lists


def bits_of(entries: list) -> list:
    return [entry and {token: (float32_bits(e["logprob"]), e["rank"]) for token, e in entry.items()}
            for entry in entries]


def test_prompt_logprobs_are_the_same_over_both_doors_and_from_any_cache(daemon):
    text = f"{PROMPT} 漢字 and a test of prompts that nobody asked before, number {daemon.process.pid}"
    body = {"prompt": text, "prompt_logprobs": 3, "max_tokens": 2, "n": 2, "temperature": 0}
    cold = rest(daemon, "/v1/completions", body)
    warm = rest(daemon, "/v1/completions", body)
    expected = cold["choices"][0]["prompt_logprobs"]
    assert len(expected) == cold["usage"]["prompt_tokens"] and expected[0] is None
    for choice in cold["choices"] + warm["choices"]:
        assert choice["prompt_logprobs"] == expected
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    for token, entry in zip(daemon.tokenize(text)[1:], expected[1:]):
        own = entry[str(token)]
        assert 3 <= len(entry) <= 4
        assert sorted(e["rank"] for e in entry.values())[:3] == [1, 2, 3]
        assert own["rank"] >= 1 and own["logprob"] <= 0 and isinstance(own["decoded_token"], str)
    request = pb.CompleteRequest(prompt=[pb.Prompt(text=text)], prompt_logprobs=3, max_tokens=2, n=2, temperature=0)
    (called,) = prompt_logprobs_over_grpc(daemon.stub.Complete(request))
    assert called == bits_of(expected)
    streamed = [chunk for chunk in daemon.stub.CompleteStream(request) if chunk.prompt_logprobs]
    assert len(streamed) == 1 and prompt_logprobs_over_grpc(streamed[0]) == [called]
    pieces = [c for chunk in events(daemon, "/v1/completions", body) for c in chunk["choices"]
              if "prompt_logprobs" in c]
    assert [c["index"] for c in pieces] == [0, 1] and all(c["prompt_logprobs"] == expected for c in pieces)
    # Beside others, all at once.
    for answer in crowd.at_once([lambda: rest(daemon, "/v1/completions", body)] * 4):
        assert answer["choices"][0]["prompt_logprobs"] == expected


def test_prompt_logprobs_of_a_chat(daemon):
    body = {"messages": [{"role": "user", "content": REPEAT}], "prompt_logprobs": 0, "max_tokens": 1, "temperature": 0}
    whole = rest(daemon, "/v1/chat/completions", body)
    entries = whole["prompt_logprobs"]
    assert len(entries) == whole["usage"]["prompt_tokens"]
    assert entries[0] is None and all(len(entry) == 1 for entry in entries[1:])
    request = pb.ChatRequest(messages=[pb.ChatMessage(role="user", content=REPEAT)], prompt_logprobs=0, max_tokens=1,
                             temperature=0)
    assert prompt_logprobs_over_grpc(daemon.stub.Chat(request)) == [bits_of(entries)]
    first, *others = events(daemon, "/v1/chat/completions", body)
    assert first["prompt_logprobs"] == entries
    assert not any("prompt_logprobs" in chunk for chunk in others)


def test_a_bias_against_many_tokens_gives_numbers(daemon):
    bias = {str(token): -100 for token in range(1024)}
    (choice,) = rest(daemon, "/v1/completions", {"prompt": PROMPT, "max_tokens": 8, "logit_bias": bias, "logprobs": 5,
                                                 "return_token_ids": True})["choices"]
    assert len(choice["token_ids"]) == 8 and all(token >= 1024 for token in choice["token_ids"])
    for top in choice["logprobs"]["top_logprobs"]:
        assert all(-9999.0 <= number <= 0 for number in top.values())

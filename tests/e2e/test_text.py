"""Text at the edges of tokens: stop strings that end inside them, characters that several tokens share."""

import json

import pytest

import crowd
from stubs import pb

PROMPT = "The history of the lighthouse begins with"


def greedy(daemon, prompt=PROMPT, **fields):
    """(text, finish, stop_reason) of the four ways to ask; all must agree."""
    fields = {"max_tokens": 40, "temperature": 0} | fields
    request = pb.CompleteRequest(prompt=[pb.Prompt(text=prompt)], **fields)
    whole = daemon.stub.Complete(request).choices[0]
    pieces = [c for chunk in daemon.stub.CompleteStream(request) for c in chunk.choices]
    body = fields | {"prompt": prompt}
    rest = daemon.http.post("/v1/completions", json=body)
    assert rest.status_code == 200, rest.text
    rest = rest.json()["choices"][0]
    with daemon.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ") and line != "data: [DONE]"]
    chunks = [c for line in lines for c in json.loads(line)["choices"]]
    texts = {whole.text, "".join(p.text for p in pieces), rest["text"], "".join(c["text"] for c in chunks)}
    assert len(texts) == 1, texts
    assert rest["finish_reason"] == chunks[-1]["finish_reason"]
    reason = getattr(whole, whole.WhichOneof("stop_reason")) if whole.WhichOneof("stop_reason") else None
    assert rest.get("stop_reason") == reason == chunks[-1].get("stop_reason")
    for piece in [p.text for p in pieces] + [c["text"] for c in chunks]:
        assert "\ufffd" not in piece
    return whole.text, rest["finish_reason"], reason


@pytest.fixture(scope="module")
def tokens(daemon):
    """The bytes of each token of the greedy answer."""
    response = daemon.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text=PROMPT)], max_tokens=40, temperature=0,
                                                       logprobs=0))
    return [entry.token.decode() for entry in response.choices[0].logprobs]


def test_stop_from_the_middle_of_one_token_into_a_third_cuts_exactly(daemon, tokens):
    full = "".join(tokens)
    tried = 0
    for i in range(2, 30, 3):
        first, second, third = tokens[i:i + 3]
        if len(first) < 3 or len(third) < 3:
            continue
        stop = first[len(first) // 2:] + second + third[:len(third) // 2]
        text, finish, reason = greedy(daemon, stop=[stop])
        assert (text, finish, reason) == (full[:full.index(stop)], "stop", stop)
        kept, _, _ = greedy(daemon, stop=[stop], include_stop_str_in_output=True)
        assert kept == full[:full.index(stop) + len(stop)]
        tried += 1
        if tried == 3:
            break
    assert tried == 3


def test_start_of_a_stop_that_turns_out_harmless_is_released(daemon, tokens):
    full = "".join(tokens)
    word = max(tokens, key=len)
    stop = word[:3] + "\x01never"
    assert greedy(daemon, stop=[stop])[0] == full
    # The same start earlier, the whole stop later.
    at = len(full) * 3 // 4
    stop = full[at:at + 8]
    earlier = full[10:13]
    text, finish, reason = greedy(daemon, stop=[earlier + "\x01", stop])
    assert (text, finish, reason) == (full[:full.index(stop)], "stop", stop)


def test_first_of_several_stops_in_the_text_wins(daemon, tokens):
    full = "".join(tokens)
    early, late = full[20:24], full[60:66]
    text, _, reason = greedy(daemon, stop=[late, early])
    assert (text, reason) == (full[:full.index(early)], early)


def test_tokens_after_a_stop_are_not_counted(daemon, tokens):
    stop = tokens[10].strip() or tokens[11].strip()
    request = pb.CompleteRequest(prompt=[pb.Prompt(text=PROMPT)], max_tokens=40, temperature=0, stop=[stop], logprobs=0)
    response = daemon.stub.Complete(request)
    (choice,) = response.choices
    assert len(choice.token_ids) == len(choice.logprobs) == response.usage.completion_tokens <= 12
    joined = b"".join(e.token for e in choice.logprobs).decode()
    assert joined.startswith(choice.text + stop), "the bytes are those before the cut"


def test_stop_token_id_is_named_and_counted(daemon):
    request = pb.CompleteRequest(prompt=[pb.Prompt(text=PROMPT)], max_tokens=40, temperature=0)
    ids = list(daemon.stub.Complete(request).choices[0].token_ids)
    chosen = ids[7]
    response = daemon.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text=PROMPT)], max_tokens=40, temperature=0,
                                                       stop_token_ids=[chosen]))
    (choice,) = response.choices
    assert choice.stop_token == chosen and list(choice.token_ids) == ids[:ids.index(chosen) + 1]
    assert response.usage.completion_tokens == len(choice.token_ids)


def test_min_tokens_bans_stop_tokens_before(daemon):
    request = pb.CompleteRequest(prompt=[pb.Prompt(text=PROMPT)], max_tokens=12, temperature=0)
    first = daemon.stub.Complete(request).choices[0].token_ids[0]
    response = daemon.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text=PROMPT)], max_tokens=12, temperature=0,
                                                       stop_token_ids=[first], min_tokens=6))
    assert first not in response.choices[0].token_ids[:6] and response.usage.completion_tokens >= 6


@pytest.mark.parametrize("prompt", ["🧪" * 12, "漢字" * 8, "👩‍👩‍👧" * 7], ids=["emoji", "cjk", "family"])
def test_characters_of_several_tokens_come_whole_at_every_length(daemon, prompt):
    """A character cut by max_tokens is dropped from the text, the same in all ways to ask."""
    longest = daemon.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text=prompt)], max_tokens=16, temperature=0,
                                                      logprobs=0, ignore_eos=True)).choices[0]
    pieces = [e.token for e in longest.logprobs]
    split = 0
    for piece in pieces:
        try:
            piece.decode()
        except UnicodeDecodeError:
            split += 1
    assert split > 0, "this prompt no longer makes the model split characters"

    def check(length):
        text, _, _ = greedy(daemon, prompt, max_tokens=length, ignore_eos=True)
        assert text == b"".join(pieces[:length]).decode(errors="ignore"), length

    for first in range(1, len(pieces) + 1, 8):
        crowd.at_once([lambda n=n: check(n) for n in range(first, min(first + 8, len(pieces) + 1))])

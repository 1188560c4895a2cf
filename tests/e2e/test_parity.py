"""One request model behind two doors: each request of a list is sent over REST and over gRPC, whole and streamed, and
must get the same answer (text, ids, logprobs with their best tokens, finish, usage), or the same verdict (status, code,
field, message). Requests are written once, as REST's JSON, and turned into messages here."""

import json

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

import answers
import prompts
from stubs import pb

STATUS = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 408: "DEADLINE_EXCEEDED", 413: "RESOURCE_EXHAUSTED",
          429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
LONG_WORDS = prompts.text(77, 9000)  # more tokens than the context has

COMMON_GOOD = [
    {}, {"temperature": 0}, {"temperature": 2, "seed": 1}, {"temperature": 0.8, "seed": 42}, {"temperature": 0.8, "seed": -2**63},
    {"temperature": 1, "top_p": 0, "seed": 5}, {"temperature": 1, "top_p": 0.5, "seed": 5}, {"temperature": 1, "top_k": 3, "seed": 5},
    {"temperature": 1, "top_k": -1, "seed": 5}, {"temperature": 1, "min_p": 0.3, "seed": 5},
    {"temperature": 0, "presence_penalty": 2, "frequency_penalty": -1}, {"temperature": 0, "repetition_penalty": 1.3},
    {"temperature": 0, "logit_bias": {"28": -100, "260": 5.5}}, {"temperature": 0, "stop": "e"},
    {"temperature": 0, "stop": ["zzz", "a", " the"], "include_stop_str_in_output": True, "max_tokens": 16},
    {"temperature": 0, "stop_token_ids": [28, 30, 198]}, {"temperature": 0, "min_tokens": 12, "max_tokens": 16, "stop_token_ids": [28]},
    {"temperature": 0, "ignore_eos": True, "max_tokens": 24}, {"temperature": 0, "skip_special_tokens": False},
    {"temperature": 0.9, "seed": 7, "n": 3}, {"temperature": 0, "cache_salt": "s" * 1024}, {"temperature": 0, "priority": -5},
    {"temperature": 0, "timeout_ms": 600_000}, {"temperature": 0, "model": "smollm2"}, {"temperature": 0, "max_tokens": 1},
]
COMMON_BAD = [
    {"temperature": -0.1}, {"temperature": 2.1}, {"top_p": -1}, {"top_p": 1.5}, {"top_k": -2}, {"top_k": 2**40}, {"min_p": 1.1},
    {"presence_penalty": 2.5}, {"frequency_penalty": -2.5}, {"repetition_penalty": 0}, {"repetition_penalty": 11},
    {"max_tokens": -1}, {"max_tokens": 100_000}, {"max_tokens": 2**62}, {"min_tokens": -1}, {"min_tokens": 20, "max_tokens": 10},
    {"n": 0}, {"n": 129}, {"n": 10**9}, {"logit_bias": {"-1": 1}}, {"logit_bias": {"49152": 1}}, {"logit_bias": {"1": 101}},
    {"stop": ""}, {"stop": ["x"] * 17}, {"stop": "x" * 257}, {"stop_token_ids": [-1]}, {"stop_token_ids": [49152]},
    {"stop_token_ids": [2**31]}, {"cache_salt": ""}, {"cache_salt": "s" * 1025}, {"priority": 2**31}, {"timeout_ms": 0},
    {"timeout_ms": -5}, {"model": "nobody"}, {"model": "nobody", "temperature": 9},
]


def completion(**fields):
    return {"prompt": "Once upon a time", "max_tokens": 8} | fields


def chat(**fields):
    return {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8} | fields


def message(role, content, **fields):
    return {"role": role, "content": content} | fields


GOOD = [("completions", completion(**fields)) for fields in COMMON_GOOD]
GOOD += [("chat", chat(**fields)) for fields in COMMON_GOOD if "stop" not in fields]
GOOD += [("completions", body) for body in (
    completion(temperature=0, logprobs=0), completion(temperature=0, logprobs=20),
    completion(temperature=0, prompt=[9707, 11, 1917]), completion(temperature=0, prompt=["One two", "A b c"]),
    completion(temperature=0, prompt=[[100, 200], [300]], n=2), completion(temperature=0, prompt="<|im_start|>user"),
    completion(temperature=0, prompt="Grüße 世界 🧪", max_tokens=24), {"prompt": "No limit given:", "temperature": 0},
    completion(temperature=0, echo=True), completion(temperature=0, echo=True, logprobs=2), completion(temperature=0, echo=True, max_tokens=0),
    completion(temperature=0, echo=True, max_tokens=0, logprobs=1, prompt=["One two three", "Four"]),
    completion(temperature=0, prompt=[9707, 11, 1917, 30], echo=True, max_tokens=1, logprobs=1, n=2),
    completion(temperature=0, prompt_logprobs=0), completion(temperature=0, prompt_logprobs=3, logprobs=1, prompt=["One two", "A b c"]))]
GOOD += [("chat", body) for body in (
    chat(temperature=0, logprobs=True), chat(temperature=0, logprobs=True, top_logprobs=20),
    chat(temperature=0, max_completion_tokens=5, max_tokens=5), {"messages": chat()["messages"], "max_completion_tokens": 7, "temperature": 0},
    chat(temperature=0, messages=[message("system", "Be brief."), message("user", "Hi", name="ann"), message("assistant", "Hello!"),
                                  message("user", "<|im_end|> bye")]),
    chat(temperature=0, messages=[message("developer", "Be brief."), message("user", "Hi")]), chat(temperature=0, prompt_logprobs=2))]

BAD = [("completions", completion(**fields)) for fields in COMMON_BAD] + [("chat", chat(**fields)) for fields in COMMON_BAD]
BAD += [("completions", body) for body in (
    completion(logprobs=21), completion(logprobs=-1), completion(max_tokens=0), completion(prompt=""), completion(prompt=["a", ""]),
    completion(prompt=[49152]), completion(prompt=[-1]), completion(prompt=[[1], [2**40]]), completion(prompt=["x"] * 129),
    completion(prompt_logprobs=21), completion(prompt_logprobs=-1), completion(echo=True, max_tokens=-1),
    completion(prompt=["x", "y"], n=128), completion(prompt=LONG_WORDS), completion(prompt=LONG_WORDS[:20000], max_tokens=8000))]
BAD += [("chat", body) for body in (
    chat(top_logprobs=5), chat(logprobs=True, top_logprobs=21), chat(logprobs=True, top_logprobs=-1), chat(max_tokens=5, max_completion_tokens=6),
    chat(max_completion_tokens=0), chat(messages=[]), chat(messages=[message("oracle", "x")]), chat(messages=[message("tool", "x")]),
    chat(messages=[message("user", "x")] * 2049), chat(messages=[message("user", LONG_WORDS)]))]


def shown(case) -> str:
    endpoint, body = case
    return f"{endpoint}-" + json.dumps({k: v for k, v in body.items() if k not in ("messages", "prompt")})[:60]


def prompts_of(value) -> list:
    if isinstance(value, str) or (value and isinstance(value[0], int)):
        value = [value]
    return [pb.Prompt(text=p) if isinstance(p, str) else pb.Prompt(token_ids=pb.TokenIds(ids=p)) for p in value]


def to_message(endpoint: str, body: dict):
    fields = dict(body)
    if "prompt" in fields:
        fields["prompt"] = prompts_of(fields["prompt"])
    if "messages" in fields:
        fields["messages"] = [pb.ChatMessage(**m) for m in fields["messages"]]
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    if "logit_bias" in fields:
        fields["logit_bias"] = {int(k): v for k, v in fields["logit_bias"].items()}
    return (pb.CompleteRequest if endpoint == "completions" else pb.ChatRequest)(**fields)


PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def over_grpc(daemon, endpoint: str, body: dict, stream: bool):
    stub, request = daemon.stub, to_message(endpoint, body)
    if not stream:
        return (stub.Complete if endpoint == "completions" else stub.Chat)(request)
    return list((stub.CompleteStream if endpoint == "completions" else stub.ChatStream)(request))


def bests_of_grpc(choice) -> list:
    return [[(answers.float32_bits(t.logprob), bytes(t.token)) for t in entry.top] for entry in choice.logprobs]


def bests_of_rest(endpoint: str, choice: dict):
    """As bests_of_grpc; completions print tokens as text, so only their numbers are compared, as a sorted list."""
    if not choice["logprobs"]:
        return []
    if endpoint == "chat":
        return [[(answers.float32_bits(t["logprob"]), bytes(t["bytes"] or [])) for t in entry["top_logprobs"]]
                for entry in choice["logprobs"]["content"]]
    return [sorted(answers.float32_bits(v) for v in (best or {}).values()) for best in choice["logprobs"]["top_logprobs"]]


def prompts_of_grpc(response) -> list:
    """For each prompt its tokens: those that are named there, with their logprobs, and the rank of the prompt's own."""
    return [[None if not token.HasField("logprob") else
             ({t.token_id: answers.float32_bits(t.logprob) for t in token.top} | {token.token_id: answers.float32_bits(token.logprob)},
              token.rank) for token in prompt.tokens] for prompt in response.prompt_logprobs]


def prompts_of_rest(whole: dict, ids: list) -> list:
    """The same of a REST answer; `ids` are the prompts' own tokens."""
    lists = [whole["prompt_logprobs"]] if "prompt_logprobs" in whole else [c["prompt_logprobs"] for c in whole["choices"]
                                                                           if "prompt_logprobs" in c]
    return [[None if entry is None else ({int(t): answers.float32_bits(e["logprob"]) for t, e in entry.items()},
                                         entry[str(own)]["rank"]) for entry, own in zip(entries, prompt, strict=True)]
            for entries, prompt in zip(lists, ids, strict=False)]


def usage_of(usage) -> tuple:
    if isinstance(usage, dict):
        return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def rest_stream(daemon, endpoint: str, body: dict) -> tuple[dict, tuple]:
    """Text and finish of each choice, and the usage, of a REST stream."""
    joined, usage = {}, None
    with daemon.http.stream("POST", PATHS[endpoint],
                            json=body | {"stream": True, "stream_options": {"include_usage": True}}) as response:
        assert response.status_code == 200, response.read()
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    for chunk in map(json.loads, events):
        usage = chunk["usage"] or usage
        for choice in chunk["choices"]:
            text, finish = joined.get(choice["index"], ("", None))
            piece = choice["text"] if endpoint == "completions" else choice["delta"].get("content", "")
            joined[choice["index"]] = (text + piece, choice["finish_reason"] or finish)
    return joined, usage_of(usage)


@pytest.mark.parametrize("case", GOOD, ids=shown)
def test_a_good_request_gets_the_same_answer_at_both_doors(daemon, case):
    endpoint, body = case
    if body.get("temperature", 1) != 0 and "seed" not in body:
        body = body | {"seed": 11}
    response = over_grpc(daemon, endpoint, body, stream=False)
    rest = daemon.http.post(PATHS[endpoint], json=body | {"return_token_ids": True})
    assert rest.status_code == 200, rest.text
    whole = rest.json()
    here = answers.of_grpc(response)
    there = answers.of_completion(whole) if endpoint == "completions" else answers.of_chat(whole)
    assert here == there
    assert answers.of_grpc_stream(over_grpc(daemon, endpoint, body, stream=True)) == here
    assert usage_of(response.usage) == usage_of(whole["usage"])
    scored = prompts_of_grpc(response)
    assert len(scored) == (len(response.prompt_token_ids) if "prompt_logprobs" in body else 0)
    assert scored == prompts_of_rest(whole, [list(p.ids) for p in response.prompt_token_ids])
    for mine, theirs in zip(response.choices, whole["choices"], strict=True):
        bests = bests_of_grpc(mine)
        if endpoint == "chat":
            assert bests == bests_of_rest(endpoint, theirs)
        elif mine.logprobs:  # REST adds the sampled token to the best ones, where it is none of them
            for entry, best, row in zip(mine.logprobs, bests, bests_of_rest(endpoint, theirs), strict=True):
                own = answers.float32_bits(answers.logprob_of(entry))
                assert {b for b, _ in best} | ({own} if own is not None else set()) == set(row)
    streamed, usage = rest_stream(daemon, endpoint, body)
    assert streamed == {i: (a.text, a.finish_reason) for i, a in enumerate(here)}
    assert usage == usage_of(whole["usage"])


def verdict_of(error: grpc.RpcError) -> tuple:
    """Status name, code, field and message; the details must agree with the status itself."""
    status = rpc_status.from_call(error)
    assert status is not None and status.code == error.code().value[0] and status.message == error.details()
    packed = {detail.TypeName(): detail for detail in status.details}
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    packed["google.rpc.ErrorInfo"].Unpack(info)
    assert ("google.rpc.RetryInfo" in packed) == (error.code().name in ("UNAVAILABLE", "RESOURCE_EXHAUSTED"))
    field = None
    if "google.rpc.BadRequest" in packed:
        packed["google.rpc.BadRequest"].Unpack(bad_request)
        (violation,) = bad_request.field_violations
        assert violation.description == status.message
        field = violation.field
    return error.code().name, info.reason, field, error.details()


@pytest.mark.parametrize("case", BAD, ids=shown)
def test_a_bad_request_gets_the_same_verdict_at_both_doors(daemon, case):
    endpoint, body = case
    verdicts = []
    for stream in (False, True):
        with pytest.raises(grpc.RpcError) as refused:
            over_grpc(daemon, endpoint, body, stream)
        verdicts.append(verdict_of(refused.value))
        rest = daemon.http.post(PATHS[endpoint], json=body | {"stream": stream})
        error = rest.json()["error"]
        assert rest.headers["content-type"] == "application/json"
        verdicts.append((STATUS[rest.status_code], error["code"], error["param"], error["message"]))
    assert len(set(verdicts)) == 1, verdicts


def test_the_lists_are_long_enough():
    assert len(GOOD) >= 50 and len(BAD) >= 80

"""The gRPC door with grpcio: calls, streams, cancellation, deadlines, health, reflection, status details."""

import re
import threading

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

import answers
import prompts
from daemon import eventually
from stubs import pb

SERVICES = ["", "kvasir.v1.Inference", "grpc.health.v1.Health"]


def complete_request(text="The capital of France is", **fields):
    return pb.CompleteRequest(prompt=[pb.Prompt(text=text)], **({"max_tokens": 12, "temperature": 0} | fields))


def chat_request(text="Say hello.", **fields):
    return pb.ChatRequest(messages=[pb.ChatMessage(role="user", content=text)],
                          **({"max_tokens": 12, "temperature": 0} | fields))


def long_request(seed=0, **fields):
    """Goes on until it is stopped: 4,000 tokens take far longer than any test waits."""
    return complete_request(prompts.text(seed, 20), **({"max_tokens": 4000, "ignore_eos": True} | fields))


def details(error: grpc.RpcError, kind):
    """The details of one type in grpc-status-details-bin, decoded by the public package."""
    status = rpc_status.from_call(error)
    assert status is not None and status.code == error.code().value[0] and status.message == error.details()
    found = []
    for packed in status.details:
        if packed.Is(kind.DESCRIPTOR):
            found.append(kind())
            packed.Unpack(found[-1])
    return found


@pytest.mark.parametrize("fields", [{}, {"logprobs": 3}, {"n": 3, "seed": 7, "temperature": 0.8},
                                    {"prompt": [pb.Prompt(text="One two"), pb.Prompt(text="A b c")], "n": 2}],
                         ids=["plain", "logprobs", "n", "prompts"])
def test_complete_equals_its_joined_stream(daemon, fields):
    request = complete_request(**fields) if "prompt" not in fields else pb.CompleteRequest(
        max_tokens=12, temperature=0, **fields)
    response = daemon.stub.Complete(request)
    whole = answers.of_grpc(response)
    assert whole == answers.of_grpc_stream(daemon.stub.CompleteStream(request))
    assert len(whole) == len(request.prompt) * (request.n or 1)
    assert response.usage.completion_tokens == sum(len(a.token_ids) for a in whole)
    assert response.usage.total_tokens == response.usage.prompt_tokens + response.usage.completion_tokens
    assert response.usage.prompt_tokens == sum(len(p.ids) for p in response.prompt_token_ids)
    assert response.id.startswith("cmpl-") and response.model == "smollm2" and response.created > 1_600_000_000
    for choice in response.choices:
        assert choice.text and choice.finish_reason != pb.FINISH_REASON_UNSPECIFIED
        assert len(choice.logprobs) == (len(choice.token_ids) if request.HasField("logprobs") else 0)
        for entry in choice.logprobs:
            assert len(entry.top) == 3 and entry.logprob <= 0
            assert [t.logprob for t in entry.top] == sorted((t.logprob for t in entry.top), reverse=True)


def test_chat_equals_its_joined_stream(daemon):
    request = chat_request(logprobs=True, top_logprobs=2)
    response = daemon.stub.Chat(request)
    assert answers.of_grpc(response) == answers.of_grpc_stream(daemon.stub.ChatStream(request))
    assert response.id.startswith("chatcmpl-")
    assert len(response.choices[0].logprobs[0].top) == 2


def test_stream_shares_its_head_and_starts_before_it_ends(daemon):
    chunks = list(daemon.stub.CompleteStream(complete_request(max_tokens=20)))
    assert len(chunks) > 3, "tokens must not wait for the end"
    assert len({(c.id, c.created, c.model, c.system_fingerprint) for c in chunks}) == 1
    assert [bool(c.prompt_token_ids) for c in chunks] == [True] + [False] * (len(chunks) - 1)


def test_rest_and_grpc_answer_alike(daemon):
    prompt = prompts.text(3, 30)
    for seeded in ({"temperature": 0.0}, {"temperature": 0.8, "seed": 42}, {"temperature": 1.3, "seed": -5, "top_p": 0.9,
                   "top_k": 40, "min_p": 0.01, "presence_penalty": 0.5, "frequency_penalty": 0.25,
                   "repetition_penalty": 1.1, "logit_bias": {260: 2.5, 28: -100}}):
        fields = seeded | {"max_tokens": 24}
        grpc_answer = answers.of_grpc(daemon.stub.Complete(complete_request(prompt, logprobs=0, **fields)))
        if "logit_bias" in fields:
            fields["logit_bias"] = {str(k): v for k, v in fields["logit_bias"].items()}
        body = daemon.http.post("/v1/completions",
                                json=fields | {"prompt": prompt, "logprobs": 0, "return_token_ids": True})
        assert body.status_code == 200, body.text
        assert answers.of_completion(body.json()) == grpc_answer
    body = daemon.http.post("/v1/chat/completions", json={
        "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12, "temperature": 0, "logprobs": True,
        "return_token_ids": True})
    assert answers.of_chat(body.json()) == answers.of_grpc(daemon.stub.Chat(chat_request(logprobs=True)))


def test_tokenize_and_detokenize(daemon):
    text = "Grüße, 世界! 🧪 <|im_start|>"
    response = daemon.stub.Tokenize(pb.TokenizeRequest(prompt=text))
    assert response.count == len(response.tokens) and response.max_model_len == daemon.context_tokens
    assert daemon.stub.Detokenize(pb.DetokenizeRequest(tokens=response.tokens)).prompt == text
    rest = daemon.http.post("/tokenize", json={"prompt": text}).json()
    assert rest["tokens"] == list(response.tokens)
    messages = [{"role": "user", "content": "Hi"}]
    chat = daemon.stub.Tokenize(pb.TokenizeRequest(messages=[pb.ChatMessage(**m) for m in messages]))
    assert list(chat.tokens) == daemon.http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    assert daemon.stub.Chat(chat_request("Hi")).prompt_token_ids[0].ids == list(chat.tokens)


def test_list_models(daemon):
    (model,) = daemon.stub.ListModels(pb.ListModelsRequest()).models
    (rest,) = daemon.http.get("/v1/models").json()["data"]
    assert {f: getattr(model, f) for f in ("id", "created", "owned_by", "max_model_len", "root")} == {
        f: rest[f] for f in ("id", "created", "owned_by", "max_model_len", "root")}


def test_list_models_names_the_aliases_too(start_daemon):
    daemon = start_daemon(served_model_name="first,second")
    models = daemon.stub.ListModels(pb.ListModelsRequest()).models
    assert [m.id for m in models] == ["first", "second"]
    assert [m["id"] for m in daemon.http.get("/v1/models").json()["data"]] == ["first", "second"]
    assert len({(m.created, m.owned_by, m.max_model_len, m.root) for m in models}) == 1
    assert daemon.stub.Complete(complete_request(model="second", max_tokens=1)).model == "first"


def test_status_is_the_same_at_both_doors(daemon):
    daemon.stub.Complete(complete_request())
    daemon.wait_idle()
    rest = daemon.http.get("/v1/kv/status").json()
    status = MessageToDict(daemon.status(), preserving_proto_field_name=True, always_print_fields_with_no_presence=True)

    def plain(value):
        """As JSON has it: MessageToDict makes texts of 64-bit numbers."""
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, list):
            return [plain(v) for v in value]
        return int(value) if isinstance(value, str) and value.isdecimal() else value

    assert rest.pop("object") == "kv.status"
    assert plain(status) == rest
    assert rest["formula"] == "2 x 30 layers x 3 KV heads x 64 x 2 bytes = 23040"
    assert rest["live_bytes"] + rest["free_bytes"] == rest["total_blocks"] * rest["bytes_per_block"] <= rest["budget_bytes"]


@pytest.mark.parametrize("message", [
    {"role": "function", "content": "42", "name": "f"}, {"role": "function", "content": "42"},
    {"role": "tool", "content": "42", "tool_call_id": "c1"}, {"role": "tool", "content": "42"}, {"role": "user"},
    {"content": "x"}, {"role": "oracle", "content": "x"}, {"role": "developer", "content": "Be brief."},
], ids=str)
def test_a_message_gets_the_same_verdict_at_both_doors(daemon, message):
    body = {"messages": [{"role": "user", "content": "x"}, message]}
    request = pb.TokenizeRequest(messages=[pb.ChatMessage(**m) for m in body["messages"]])
    rest = daemon.http.post("/tokenize", json=body)
    if rest.status_code == 200:
        assert rest.json()["tokens"] == list(daemon.stub.Tokenize(request).tokens)
        return
    with pytest.raises(grpc.RpcError) as error:
        daemon.stub.Tokenize(request)
    assert details(error.value, error_details_pb2.ErrorInfo)[0].reason == rest.json()["error"]["code"]
    (bad_request,) = details(error.value, error_details_pb2.BadRequest)
    assert bad_request.field_violations[0].field == rest.json()["error"]["param"]


def test_get_status_counts_what_ran(daemon):
    daemon.wait_idle()
    before = daemon.status()
    response = daemon.stub.Complete(complete_request(prompts.text(11, 40), cache_salt="status"))
    daemon.wait_idle()
    after = daemon.status()
    assert after.generation_tokens_total - before.generation_tokens_total == response.usage.completion_tokens
    assert after.prompt_tokens_total - before.prompt_tokens_total == response.usage.prompt_tokens
    assert after.finished_length_total - before.finished_length_total == 1
    assert after.steps_total > before.steps_total and after.total_blocks > 0
    assert after.bytes_per_block == after.bytes_per_token * after.block_tokens
    assert after.total_blocks * after.bytes_per_block <= after.budget_bytes
    assert after.readiness == "ready" and after.model == "smollm2" and after.kv_type == "f16"


def test_cancelled_stream_gives_its_blocks_back(daemon):
    with daemon.unharmed():
        before = daemon.status().cancelled_total.grpc_cancel
        stream = daemon.stub.CompleteStream(long_request())
        for _ in range(5):
            next(stream)
        assert daemon.status().live_blocks > 0
        stream.cancel()
        with pytest.raises(grpc.RpcError) as error:
            list(stream)
        assert error.value.code() == grpc.StatusCode.CANCELLED
        daemon.wait_idle()
        eventually(lambda: daemon.status().cancelled_total.grpc_cancel == before + 1, "one more grpc_cancel")


def test_cancelled_unary_call_gives_its_blocks_back(daemon):
    with daemon.unharmed():
        before = daemon.status().cancelled_total.grpc_cancel
        call = daemon.stub.Complete.future(long_request(1))
        eventually(lambda: daemon.status().running_sequences == 1, "the call runs")
        call.cancel()
        daemon.wait_idle()
        eventually(lambda: daemon.status().cancelled_total.grpc_cancel == before + 1, "one more grpc_cancel")


def test_closed_connection_gives_all_its_blocks_back(daemon):
    with daemon.unharmed():
        channel = daemon.new_channel()
        stub = type(daemon.stub)(channel)
        streams = [stub.CompleteStream(long_request(i)) for i in range(8)]
        for stream in streams:
            next(stream)
        channel.close()
        daemon.wait_idle()


@pytest.mark.parametrize("streaming", [False, True])
def test_deadline_of_the_call_ends_it(daemon, streaming):
    with daemon.unharmed():
        method = daemon.stub.CompleteStream if streaming else daemon.stub.Complete
        with pytest.raises(grpc.RpcError) as error:
            result = method(long_request(2), timeout=1.0)
            if streaming:
                list(result)
        assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("streaming", [False, True])
def test_timeout_ms_ends_a_call_with_deadline_exceeded(daemon, streaming):
    with daemon.unharmed():
        method = daemon.stub.CompleteStream if streaming else daemon.stub.Complete
        with pytest.raises(grpc.RpcError) as error:
            result = method(long_request(3, timeout_ms=700))
            if streaming:
                list(result)
        assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert details(error.value, error_details_pb2.ErrorInfo)[0].reason == "deadline_exceeded"


def test_health_checks_and_watches(daemon):
    health = health_pb2_grpc.HealthStub(daemon.channel)
    for service in SERVICES:
        request = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(request).status == health_pb2.HealthCheckResponse.SERVING
        watch = health.Watch(request)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
    with pytest.raises(grpc.RpcError) as error:
        health.Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert error.value.code() == grpc.StatusCode.NOT_FOUND
    watch = health.Watch(health_pb2.HealthCheckRequest(service="nobody"))
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


def test_watches_of_one_connection_are_bounded(daemon):
    channel = daemon.new_channel()
    health = health_pb2_grpc.HealthStub(channel)
    watches = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(16)]
    for watch in watches:
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as error:
        next(health.Watch(health_pb2.HealthCheckRequest()))
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert type(daemon.stub)(channel).Complete(complete_request(max_tokens=1)).choices, "work has limits of its own"
    watches[0].cancel()

    def watches_again():
        try:
            return next(health.Watch(health_pb2.HealthCheckRequest()))
        except grpc.RpcError:
            return None

    eventually(watches_again, "another watch, when one has ended")
    channel.close()


def test_reflection_describes_all_services(daemon):
    database = ProtoReflectionDescriptorDatabase(daemon.channel)
    assert {"kvasir.v1.Inference", "grpc.health.v1.Health"} <= set(database.get_services())
    pool = DescriptorPool(database)
    methods = {m.name for m in pool.FindServiceByName("kvasir.v1.Inference").methods}
    assert methods == {"Complete", "CompleteStream", "Chat", "ChatStream", "Tokenize", "Detokenize", "ListModels",
                       "GetStatus", "Plan"}
    assert "temperature" in pool.FindMessageTypeByName("kvasir.v1.CompleteRequest").fields_by_name
    assert pool.FindServiceByName("grpc.health.v1.Health").methods_by_name["Watch"].server_streaming


def test_invalid_field_is_named_in_the_details(daemon):
    with pytest.raises(grpc.RpcError) as error:
        daemon.stub.Chat(chat_request(temperature=3))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    (bad_request,) = details(error.value, error_details_pb2.BadRequest)
    assert [v.field for v in bad_request.field_violations] == ["temperature"]
    assert details(error.value, error_details_pb2.RetryInfo) == []
    assert details(error.value, error_details_pb2.ErrorInfo)[0].reason == "invalid_value"


def test_unknown_model_is_not_found(daemon):
    for method, request in ((daemon.stub.Complete, complete_request(model="gpt-17")),
                            (daemon.stub.Chat, chat_request(model="gpt-17")),
                            (daemon.stub.Tokenize, pb.TokenizeRequest(model="gpt-17", prompt="x")),
                            (daemon.stub.Detokenize, pb.DetokenizeRequest(model="gpt-17", tokens=[5]))):
        with pytest.raises(grpc.RpcError) as error:
            method(request)
        assert error.value.code() == grpc.StatusCode.NOT_FOUND
        assert details(error.value, error_details_pb2.BadRequest)[0].field_violations[0].field == "model"


def test_full_queue_is_resource_exhausted_with_retry_info(start_daemon):
    daemon = start_daemon(max_sequences=1, max_waiting=2)
    calls = [daemon.stub.CompleteStream(long_request(0))]
    next(calls[0])
    codes = []
    for i in range(4):
        stream = daemon.stub.CompleteStream(long_request(i + 1))
        calls.append(stream)
        if i < 2:
            eventually(lambda n=i + 1: daemon.status().waiting_sequences == n, "the call waits")
            continue
        with pytest.raises(grpc.RpcError) as error:
            next(stream)
        codes.append(error.value.code())
        assert details(error.value, error_details_pb2.RetryInfo)[0].retry_delay.seconds >= 1
        assert details(error.value, error_details_pb2.ErrorInfo)[0].reason == "queue_full"
    assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 2
    for call in calls:
        call.cancel()
    daemon.wait_idle()


def test_draining_ends_streams_with_unavailable_and_health_says_so(start_daemon):
    daemon = start_daemon(shutdown_grace_ms=1500)
    health = health_pb2_grpc.HealthStub(daemon.channel)
    seen = []
    watch = health.Watch(health_pb2.HealthCheckRequest())

    def follow():
        try:
            seen.extend(m.status for m in watch)
        except grpc.RpcError as error:
            seen.append(error.code())

    follower = threading.Thread(target=follow)
    follower.start()
    stream = daemon.stub.CompleteStream(long_request())
    next(stream)
    eventually(lambda: seen, "the first status")
    daemon.process.terminate()
    eventually(lambda: len(seen) > 1, "the second status")
    with pytest.raises(grpc.RpcError) as refused:  # new work, while the stream goes on
        daemon.stub.Complete(complete_request(), wait_for_ready=False)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.RpcError) as ended:
        list(stream)
    assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
    follower.join(timeout=60)
    assert seen[:2] == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
    assert daemon.process.wait(timeout=60) == 0


CALL_LINE = re.compile(r"grpc request id=(\S+) method=(\S+) status=(\S+) ms=\d+ prompt_tokens=(\d+) "
                       r"cached_tokens=\d+ completion_tokens=(\d+) outcome=(\S+)$", re.MULTILINE)


def test_every_call_leaves_one_line_without_the_clients_words(daemon):
    daemon.wait_idle()
    seen = len(daemon.log())
    stub, secret = daemon.stub, "Xylophone-7391"
    whole = stub.Complete(complete_request(secret, ignore_eos=True))
    streamed = list(stub.CompleteStream(complete_request(secret, ignore_eos=True)))[-1]
    chat = stub.Chat(chat_request(secret))
    list(stub.ChatStream(chat_request(secret, max_tokens=1)))
    stub.Tokenize(pb.TokenizeRequest(prompt=secret))
    stub.Detokenize(pb.DetokenizeRequest(tokens=[1]))
    stub.ListModels(pb.ListModelsRequest())
    for call in (lambda: stub.Complete(complete_request(secret, max_tokens=-1)),
                 lambda: list(stub.CompleteStream(complete_request(secret, model=secret))),
                 lambda: stub.Detokenize(pb.DetokenizeRequest(tokens=[-1]))):
        with pytest.raises(grpc.RpcError):
            call()
    cut = stub.CompleteStream(long_request(91))
    next(cut)
    cut.cancel()
    health = health_pb2_grpc.HealthStub(daemon.channel)
    health.Check(health_pb2.HealthCheckRequest())
    with pytest.raises(grpc.RpcError):
        health.Check(health_pb2.HealthCheckRequest(service=secret))
    watch = health.Watch(health_pb2.HealthCheckRequest())
    next(watch)
    watch.cancel()
    sizes = [(r.usage.prompt_tokens, r.usage.completion_tokens) for r in (whole, streamed, chat)]
    expected = [
        ("Complete", "OK", "length"), ("CompleteStream", "OK", "length"), ("Chat", "OK", None), ("ChatStream", "OK", None),
        ("Tokenize", "OK", "-"), ("Detokenize", "OK", "-"), ("ListModels", "OK", "-"),
        ("Complete", "INVALID_ARGUMENT", "invalid_value"), ("CompleteStream", "NOT_FOUND", "model_not_found"),
        ("Detokenize", "INVALID_ARGUMENT", "invalid_value"), ("CompleteStream", "CANCELLED", "cancelled"),
        ("Health/Check", "OK", "-"), ("Health/Check", "NOT_FOUND", "unknown_service"),
        ("Health/Watch", "CANCELLED", "cancelled"), ("GetStatus", "OK", "-")]

    stub.GetStatus(pb.GetStatusRequest())

    def lines():
        found = CALL_LINE.findall(daemon.log()[seen:])
        return found if len(found) >= len(expected) else None

    found = eventually(lines, "a line of each call")
    assert secret not in daemon.log()[seen:]
    # A line is written when its call is over, which its client may know a moment earlier.
    left = [(method, status, outcome) for _, method, status, _, _, outcome in found]
    for method, status, outcome in expected:
        outcomes = (outcome,) if outcome else ("stop", "length")
        match = next((line for line in left if line[:2] == (method, status) and line[2] in outcomes), None)
        assert match, (method, status, outcome, left)
        left.remove(match)
    assert left == []
    by_id = {line[0]: (int(line[3]), int(line[4])) for line in found}
    assert [by_id[r.id] for r in (whole, streamed, chat)] == sizes
    assert any(line[1:3] == ("CompleteStream", "CANCELLED") and int(line[4]) > 0 for line in found)

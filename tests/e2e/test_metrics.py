"""GET /metrics of the real daemon: clean for Prometheus' own tools, and every counter moves by exactly what was done."""

import json
import os
import pathlib
import re
import subprocess

import grpc
import pytest

from daemon import SOURCE_DIR, eventually
from scrape import MODEL_LABELS, Scrape, native_part, promtool
from stubs import pb
from test_disconnects import RawClient

DOCUMENT = SOURCE_DIR / "docs" / "METRICS.md"
SEQUENCE_HISTOGRAMS = [
    "kvasir_e2e_request_latency_seconds", "kvasir_request_queue_time_seconds", "kvasir_request_prefill_time_seconds",
    "kvasir_request_decode_time_seconds", "kvasir_request_inference_time_seconds", "kvasir_request_prompt_tokens",
    "kvasir_request_generation_tokens", "kvasir_request_params_max_tokens"]
LONG = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "temperature": 0}


def long_call(**fields):
    return pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=2000, ignore_eos=True, temperature=0, **fields)


@pytest.fixture(scope="module")
def served(daemon_with):
    """One daemon for this file, with room for a queue behind one sequence."""
    return daemon_with(max_sequences=1, prefix_cache="true")


def ends(after: Scrape, before: Scrape) -> dict[str, float]:
    """How many sequences ended since, by "reason" or "abort:cause"."""
    moved = {}
    for (name, labels), value in after.values.items():
        if name != "kvasir_requests_total":
            continue
        labels = dict(labels)
        more = value - before.value(name, finish_reason=labels["finish_reason"], cause=labels["cause"])
        if more:
            moved[":".join(filter(None, [labels["finish_reason"], labels["cause"]]))] = more
    return moved


def settled(daemon, before: Scrape, expected: dict[str, float]) -> Scrape:
    """The scrape in which the ends are these and the daemon is idle."""
    def look():
        after = Scrape(daemon)
        return after if ends(after, before) == expected and daemon.is_idle() else None

    try:
        return eventually(look, "the counts")
    except AssertionError:
        assert ends(Scrape(daemon), before) == expected
        raise


def test_answered_requests_move_every_count_by_exactly_what_their_usage_says(served):
    served.wait_idle()
    before = Scrape(served)
    usages = []

    def complete(**fields):
        response = served.http.post("/v1/completions", json={"temperature": 0, "ignore_eos": True} | fields)
        assert response.status_code == 200, response.text
        usages.append(response.json()["usage"])
        return response.json()["choices"]

    whole = complete(prompt="Tell me", max_tokens=8)[0]["text"]
    assert [c["finish_reason"] for c in complete(prompt=["One", "Two and three"], n=2, max_tokens=3)] == ["length"] * 4
    assert complete(prompt="Tell me", max_tokens=50, stop=whole[5:])[0]["finish_reason"] == "stop"
    # In its last token: the engine sees a length, the client a stop.
    assert complete(prompt="Tell me", max_tokens=8, stop=whole[-2:])[0]["finish_reason"] == "stop"
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    with served.http.stream("POST", "/v1/chat/completions", json=chat) as stream:
        events = [line[6:] for line in stream.iter_lines() if line.startswith("data: ")]
    usages.append(json.loads(events[-2])["usage"])
    answer = served.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=1, ignore_eos=True))
    usages.append({"prompt_tokens": answer.usage.prompt_tokens, "completion_tokens": answer.usage.completion_tokens})
    chunks = list(served.stub.ChatStream(pb.ChatRequest(
        messages=[pb.ChatMessage(role="user", content="Hi")], max_tokens=5, ignore_eos=True)))
    usages.append({"prompt_tokens": chunks[-1].usage.prompt_tokens,
                   "completion_tokens": chunks[-1].usage.completion_tokens})

    after = settled(served, before, {"length": 8, "stop": 2})
    sequences, requests = 10, len(usages)
    prompt_tokens = sum(usage["prompt_tokens"] for usage in usages)
    completion_tokens = sum(usage["completion_tokens"] for usage in usages)

    def moved(name, **labels):
        return after.value(name, **labels) - before.value(name, **labels)

    assert after.counts(before, *SEQUENCE_HISTOGRAMS) == [sequences] * len(SEQUENCE_HISTOGRAMS)
    assert after.counts(before, "kvasir_time_to_first_token_seconds", "kvasir_inter_token_latency_seconds",
                        "kvasir_request_time_per_output_token_seconds", "kvasir_request_params_n",
                        "kvasir_request_max_generation_tokens", "gen_ai_server_request_duration_seconds",
                        "gen_ai_server_time_to_first_token_seconds") == [
                            sequences, completion_tokens - sequences, sequences - 1, requests, requests, requests,
                            requests]
    assert moved("kvasir_prompt_tokens_total") == prompt_tokens
    assert moved("kvasir_generation_tokens_total") == completion_tokens
    assert moved("kvasir_request_generation_tokens_sum") == completion_tokens
    assert moved("kvasir_request_params_n_sum") == requests + 1  # one had two choices
    assert moved("gen_ai_server_request_duration_seconds_count", gen_ai_operation_name="chat") == 2
    assert moved("kvasir_iteration_tokens_sum") == moved("kvasir_computed_tokens_total") > completion_tokens - sequences
    assert moved("kvasir_iteration_tokens_count") >= completion_tokens - sequences  # one sequence at a time
    assert moved("kvasir_prefix_cache_query_tokens_total") > 0
    # A sequence's parts make up its whole, but for what lies before it is queued and after its last token.
    parts = sum(moved(f"kvasir_request_{part}_time_seconds_sum") for part in ("queue", "prefill", "decode"))
    assert 0 < parts <= moved("kvasir_e2e_request_latency_seconds_sum")
    assert moved("kvasir_time_to_first_token_seconds_sum") < moved("kvasir_e2e_request_latency_seconds_sum")
    for gauge in ("kvasir_running_sequences", "kvasir_waiting_sequences", "kvasir_kv_live_bytes",
                  "kvasir_kv_usage_ratio", "kvasir_grpc_calls"):
        assert after.value(gauge) == 0, gauge
    free, cached = after.value("kvasir_kv_free_bytes"), after.value("kvasir_kv_cached_bytes")
    assert 0 < cached < free <= after.value("kvasir_kv_budget_bytes")


@pytest.mark.parametrize("how", ["streamed", "whole", "queued", "grpc_streamed", "grpc_whole", "grpc_queued"])
def test_leaving_counts_one_abort_with_its_cause(served, how):
    served.wait_idle()
    before = Scrape(served)
    expected = {"abort:grpc_cancel" if how.startswith("grpc") else "abort:client_gone": 1}
    if how == "streamed":
        client = RawClient(served, {"stream": True})
        client.read_events(2)
        client.leave("fin")
    elif how == "whole":
        client = RawClient(served, {})
        eventually(lambda: served.status().running_sequences == 1, "it runs")
        client.leave("fin")
    elif how == "grpc_streamed":
        stream = served.stub.CompleteStream(long_call())
        next(stream)
        stream.cancel()
    elif how == "grpc_whole":
        call = served.stub.Complete.future(long_call())
        eventually(lambda: served.status().running_sequences == 1, "it runs")
        call.cancel()
    else:
        first = RawClient(served, {"stream": True})
        first.read_events(1)
        if how == "queued":
            queued = RawClient(served, {})
            eventually(lambda: served.status().waiting_sequences == 1, "it waits")
            assert Scrape(served).value("vllm:num_requests_waiting") == 1
            queued.leave("fin")
        else:
            call = served.stub.Complete.future(long_call())
            eventually(lambda: served.status().waiting_sequences == 1, "it waits")
            call.cancel()
        eventually(lambda: served.status().waiting_sequences == 0, "it left the queue")
        eventually(lambda: ends(Scrape(served), before) == expected, "it is counted while the first still runs")
        assert Scrape(served).value("kvasir_running_sequences") == 1
        first.leave("rst")
        expected["abort:client_gone"] = expected.get("abort:client_gone", 0) + 1
    after = settled(served, before, expected)
    assert after.counts(before, *SEQUENCE_HISTOGRAMS) == [0] * len(SEQUENCE_HISTOGRAMS)
    assert sum(after.moved(before, "vllm:request_success_total", "finished_reason").values()) == sum(expected.values())
    assert after.moved(before, "vllm:request_success_total", "finished_reason").keys() == {"abort"}


@pytest.mark.parametrize("how", ["rest", "rest_streamed", "grpc", "grpc_field", "grpc_queued"])
def test_a_deadline_counts_one_abort(served, how):
    served.wait_idle()
    before = Scrape(served)
    expected = {"abort:deadline": 1}
    if how.startswith("rest"):
        fields = LONG | {"timeout_ms": 400, "stream": how == "rest_streamed"}
        # The door closes after a stream that failed: a client that would keep the connection might use it once more.
        response = served.http.post("/v1/completions", json=fields, headers={"Connection": "close"})
        assert "deadline_exceeded" in response.text
    else:
        if how == "grpc_queued":
            first = RawClient(served, {"stream": True})
            first.read_events(1)
            expected["abort:client_gone"] = 1
        with pytest.raises(grpc.RpcError) as error:
            if how == "grpc_field":
                served.stub.Complete(long_call(timeout_ms=400))
            else:
                served.stub.Complete(long_call(), timeout=0.6)
        assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        if how == "grpc_queued":
            first.leave("fin")
    after = settled(served, before, expected)
    assert after.value("gen_ai_server_request_duration_seconds_count", error_type="deadline") == before.value(
        "gen_ai_server_request_duration_seconds_count", error_type="deadline") + 1


@pytest.mark.parametrize("door", ["rest", "grpc"])
def test_leaving_while_prompts_are_tokenised_counts_every_sequence(served, door):
    """Before it was read a request has no sequences: each try leaves a little later, in scrapes."""
    prompts = ["word " * 6000] * 128
    cause = "abort:client_gone" if door == "rest" else "abort:grpc_cancel"
    for scrapes in range(1, 60, 4):
        served.wait_idle()
        before = Scrape(served)
        if door == "rest":
            client = RawClient(served, {"prompt": prompts, "max_tokens": 1})
        else:
            call = served.stub.Complete.future(
                pb.CompleteRequest(prompt=[pb.Prompt(text=text) for text in prompts], max_tokens=1))
            eventually(lambda: Scrape(served).value("kvasir_grpc_calls") == 1, "it has come")
        for _ in range(scrapes):
            Scrape(served)
        client.leave("rst") if door == "rest" else call.cancel()
        try:
            moved = eventually(lambda: ends(Scrape(served), before), "it is counted", 2)
        except AssertionError:
            continue
        assert moved == {cause: 128}
        assert Scrape(served).value("kvasir_request_params_n_count") == before.value("kvasir_request_params_n_count")
        return
    pytest.fail("it was never left while its prompts were tokenised")


def test_refused_requests_count_by_code_and_are_no_sequences(served):
    served.wait_idle()
    before = Scrape(served)
    for fields, status in [({"prompt": "x", "temperature": 3}, 400), ({"prompt": "x", "model": "other"}, 404),
                           ({"prompt": "x" * 200_000}, 400)]:
        assert served.http.post("/v1/completions", json=fields).status_code == status
    assert served.http.post("/v1/completions", content="{", headers={"Content-Type": "application/json"}).status_code == 400
    with pytest.raises(grpc.RpcError) as error:
        served.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text="x")], temperature=3))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    def http(scrape, status):
        return scrape.value("http_requests_total", handler="/v1/completions", method="POST", status=status)

    def calls(scrape):
        return scrape.value("kvasir_grpc_calls_total", method="Complete", status="INVALID_ARGUMENT")

    # The doors count an answer when it is out, which its client may see a moment before.
    eventually(lambda: http(Scrape(served), "4xx") == http(before, "4xx") + 4, "four refused")
    eventually(lambda: calls(Scrape(served)) == calls(before) + 1, "one refused")
    after = settled(served, before, {})
    assert after.moved(before, "kvasir_rejected_requests_total", "code") == {
        "invalid_value": 2, "model_not_found": 1, "context_length_exceeded": 1}
    assert http(after, "2xx") == http(before, "2xx")
    assert after.counts(before, "kvasir_request_params_n", "gen_ai_server_request_duration_seconds") == [0, 0]
    assert after.value("kvasir_prompt_tokens_total") == before.value("kvasir_prompt_tokens_total")


def test_every_count_of_the_pool_moves(start_daemon):
    """Seven blocks for answers that outgrow what they are believed to be, and every hit is audited."""
    block = 30 * 3 * 64 * 2 * 2 * 32
    daemon = start_daemon(kv_budget=7 * block, max_sequences=4, kv_audit=1)
    before = Scrape(daemon)
    answers = [daemon.stub.Complete.future(pb.CompleteRequest(
        prompt=[pb.Prompt(text=f"{number} " + "is a number " * 15)], max_tokens=60, ignore_eos=True, temperature=0))
        for number in ("One", "Two", "Three", "Four")]
    usages = [answer.result().usage for answer in answers]
    # All blocks are in use by now, so that what is cached last is there to be found.
    for _ in range(2):
        usages.append(daemon.stub.Complete(pb.CompleteRequest(
            prompt=[pb.Prompt(text="Ten " + "is a number " * 15)], max_tokens=1)).usage)
    eventually(lambda: Scrape(daemon).value("kvasir_kv_audited_prefixes_total") > 0, "a hit was audited")
    daemon.wait_idle()
    after = Scrape(daemon)

    def moved(name):
        return after.value(name) - before.value(name)

    receipts = [usage.kv_cache for usage in usages]
    assert moved("kvasir_kv_taken_blocks_total") * block == sum(receipt.taken_bytes for receipt in receipts) > 0
    assert moved("kvasir_kv_returned_blocks_total") * block == sum(receipt.returned_bytes for receipt in receipts)
    assert moved("kvasir_preemptions_total") == sum(receipt.preemptions for receipt in receipts) > 0
    assert moved("kvasir_recomputed_tokens_total") == sum(receipt.recomputed_tokens for receipt in receipts) > 0
    assert moved("kvasir_computed_tokens_total") == sum(receipt.computed_tokens for receipt in receipts)
    assert moved("kvasir_kv_reclaimed_blocks_total") > 0
    assert moved("kvasir_prefix_cache_hit_tokens_total") > 0 and moved("kvasir_prefix_cache_miss_tokens_total") > 0
    assert moved("kvasir_prefix_cache_query_tokens_total") == (
        moved("kvasir_prefix_cache_hit_tokens_total") + moved("kvasir_prefix_cache_miss_tokens_total"))
    assert moved("kvasir_kv_audited_tokens_total") > 0 and moved("kvasir_kv_audit_mismatches_total") == 0
    assert moved("kvasir_kv_window_returned_blocks_total") == 0  # no layer of this model has a window
    assert after.value("kvasir_kv_budget_bytes") == 7 * block
    assert after.value("kvasir_kv_live_bytes") == 0 == after.value("kvasir_kv_reserved_bytes")
    assert after.value("kvasir_kv_free_bytes") == 7 * block >= after.value("kvasir_kv_cached_bytes") > 0


def test_a_full_queue_is_a_refusal(start_daemon):
    daemon = start_daemon(max_sequences=1, max_waiting=1)
    first = RawClient(daemon, {"stream": True})
    first.read_events(1)
    second = RawClient(daemon, {"stream": True})
    eventually(lambda: daemon.status().waiting_sequences == 1, "it waits")
    assert daemon.http.post("/v1/completions", json={"prompt": "x"}).status_code == 429
    assert Scrape(daemon).value("kvasir_rejected_requests_total", code="queue_full") == 1
    first.leave("fin")
    second.leave("fin")


def test_the_name_of_the_model_is_escaped_and_never_a_clients(start_daemon):
    name = 'a "quoted\\ name'
    daemon = start_daemon(served_model_name=name)
    assert daemon.http.post("/v1/completions", json={"prompt": "x", "model": "mine", "max_tokens": 1}).status_code == 404
    assert daemon.http.get("/v1/models/mine").status_code == 404
    assert daemon.http.get("/nowhere").status_code == 404
    assert daemon.http.post("/v1/completions", json={"prompt": "x", "model": name, "max_tokens": 1}).status_code == 200
    scrape = Scrape(daemon)
    assert scrape.value("vllm:request_success_total", model_name=name, engine="0") == 1
    assert "mine" not in scrape.text and "nowhere" not in scrape.text


def test_histograms_are_cumulative_and_the_mirror_shows_the_same_numbers(served):
    served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 3})
    served.wait_idle()
    scrape = Scrape(served)
    for family in scrape.families:
        if family.type != "histogram":
            continue
        series: dict[frozenset, list[tuple[float, float]]] = {}
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                labels = frozenset((k, v) for k, v in sample.labels.items() if k != "le")
                series.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        assert series, family.name
        for labels, buckets in series.items():
            assert buckets == sorted(buckets) and [v for _, v in buckets] == sorted(v for _, v in buckets)
            assert buckets[-1] == (float("inf"), scrape.values[family.name + "_count", labels])
    twins = dict(re.findall(r"^\| `(\w+)` .* \| `(vllm:\w+)` \|$", DOCUMENT.read_text(), re.MULTILINE))
    assert len(twins) > 20
    for native, mirror in twins.items():
        if mirror == "vllm:request_success_total":
            continue
        ours = {(name.removeprefix(native), labels): v for (name, labels), v in scrape.values.items()
                if re.fullmatch(native + "(_bucket|_sum|_count)?", name)}
        theirs = {(name.removeprefix(mirror), labels): v for (name, labels), v in scrape.values.items()
                  if re.fullmatch(mirror + "(_bucket|_sum|_count)?", name)}
        assert ours == theirs and ours, native
        assert all({name for name, _ in labels} >= MODEL_LABELS for _, labels in theirs), mirror


def rows_of(scrape: Scrape) -> list[str]:
    """What docs/METRICS.md says of each of our families: name, type, labels, meaning, the same under another name."""
    named = {family.name + ("_total" if family.type == "counter" else ""): family for family in scrape.families}
    same: dict[str, list[str]] = {}  # by their meaning, which a twin shares
    for name, family in named.items():
        same.setdefault(family.documentation, []).append(name)
    rows = []
    for name, family in sorted(named.items()):
        twins = [each for each in same[family.documentation] if each != name]
        assert len(twins) <= 1, f"{name} means the same as {twins}"
        if name.startswith("vllm:") and twins:
            continue
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        shown = ", ".join(f"`{label}`" for label in labels) or "none"
        twin = f"`{twins[0]}`" if twins else "none"
        rows.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} | {twin} |")
    return rows


def test_the_document_lists_what_a_scrape_has(served):
    """Each family appears once it has happened, so everything is made to happen once."""
    served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 3, "vendor_extra": 1})
    served.http.post("/v1/completions", json={"prompt": "x", "temperature": 3})
    served.http.post("/v1/completions", json=LONG | {"timeout_ms": 300})
    served.wait_idle()
    rows = "\n".join(rows_of(Scrape(served)))
    document = DOCUMENT.read_text()
    head, table, tail = re.fullmatch(r"(.*<!-- scrape -->\n\n\|[^\n]*\n\|[^\n]*\n)(.*?)(\n\n<!-- /scrape -->.*)", document,
                                     re.DOTALL).groups()
    if os.environ.get("KVASIR_UPDATE_GOLDEN"):
        DOCUMENT.write_text(head + rows + tail)
    else:
        assert table == rows, "rewrite it with KVASIR_UPDATE_GOLDEN=1 and review the change"


def check_metrics(text: str) -> subprocess.CompletedProcess:
    tool = promtool()
    if tool is None:
        pytest.skip("promtool is not installed (tests/support/fetch_program.sh)")
    return subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)


def test_promtool_finds_nothing_in_our_names(served):
    served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 3})
    result = check_metrics(native_part(Scrape(served).text))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_promtool_reads_the_mirror_and_minds_only_its_names(served):
    result = check_metrics(Scrape(served).text)
    complaints = [line for line in (result.stdout + result.stderr).splitlines() if line]
    assert complaints and all(line.startswith("vllm:") for line in complaints), complaints


def test_promtool_would_find_something():
    """The two tests above see a complaint where there is one."""
    result = check_metrics("# HELP x_count A.\n# TYPE x_count gauge\nx_count 1\n")
    assert result.returncode != 0 and "x_count" in result.stdout + result.stderr


def test_process_and_build_say_what_runs(served):
    scrape = Scrape(served)
    proc = pathlib.Path(f"/proc/{served.process.pid}")
    resident = int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert scrape.value("process_resident_memory_bytes") == pytest.approx(resident, rel=0.2)
    assert abs(scrape.value("process_open_fds") - served.num_fds()) <= 2  # connections come and go
    assert scrape.value("process_cpu_seconds_total") > 0.1
    started = os.stat(proc).st_ctime
    assert scrape.value("process_start_time_seconds") == pytest.approx(started, abs=120)
    version = served.http.get("/version").json()
    assert scrape.value("kvasir_build_info", **version) == 1
    blocks = served.http.get("/v1/kv/status").json()
    assert scrape.value("vllm:cache_config_info", block_size=str(blocks["block_tokens"]),
                        num_gpu_blocks=str(blocks["total_blocks"])) == 1
    assert scrape.value("kvasir_http_connections") >= 1

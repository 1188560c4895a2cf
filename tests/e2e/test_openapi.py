"""The OpenAPI document against the real binary: schemathesis makes requests from it, good and bad ones, and holds the answers
to what the document says. KVASIR_OPENAPI_CASES sets how many; the same number gives the same requests."""

import collections
import copy
import json
import math
import os

import hypothesis
import hypothesis.strategies as st
import jsonschema_rs
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import (content_type_conformance, negative_data_rejection, not_a_server_error,
                                 response_headers_conformance, response_schema_conformance, status_code_conformance)

from daemon import Daemon

NUM_CASES = int(os.environ.get("KVASIR_OPENAPI_CASES", "200"))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
          response_schema_conformance, negative_data_rejection]
# Of a hundred cases. Routes without a body get some beside, of which most are alike.
SHARES = {"POST /v1/completions": 40, "POST /v1/chat/completions": 40, "POST /tokenize": 10, "POST /detokenize": 10,
          "POST /v1/kv/plan": 10}
OTHERS = 2
CHUNKS = {"/v1/completions": "CompletionChunk", "/v1/chat/completions": "ChatCompletionChunk"}  # of their streams


@pytest.fixture(scope="module")
def small_daemon():
    """A short context and few choices, so that every request ends soon; the document has its bounds."""
    running = Daemon(context=64, kv_budget="32MiB", max_choices=4, max_prompts=4, chat_template_kwargs="enable_thinking")
    yield running
    running.stop()


def body_schema(document: dict, path: str) -> dict:
    return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def made_cheap(document: dict, stream: bool) -> dict:
    """The document with tighter requests: few tokens, the served model, all streams or as it comes. Whatever it allows, the real
    one allows too."""
    cheap = copy.deepcopy(document)
    for path in CHUNKS:
        properties = body_schema(cheap, path)["properties"]
        properties["max_tokens"] |= {"type": "integer", "minimum": 1, "maximum": 3}
        properties["min_tokens"] |= {"maximum": 1}
        properties["timeout_ms"] |= {"minimum": 60_000}
        properties["model"] |= {"enum": ["smollm2", None]}
        body_schema(cheap, path)["required"].append("max_tokens")
        if stream:
            properties["stream"] |= {"type": "boolean", "const": True}
            body_schema(cheap, path)["required"].append("stream")
    return cheap


def chunk_validator(document: dict, path: str) -> jsonschema_rs.Draft202012Validator | None:
    if path not in CHUNKS:
        return None
    return jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{CHUNKS[path]}",
                                               "components": document["components"]})


def check_stream(text: str, chunks: jsonschema_rs.Draft202012Validator):
    *events, done, rest = text.split("\n\n")
    assert events and done == "data: [DONE]" and rest == ""
    for event in events:
        assert event.startswith("data: ")
        chunks.validate(json.loads(event.removeprefix("data: ")))


def run_cases(strategy, num_cases: int, url: str, chunks) -> collections.Counter:
    """How many answers of each status, and how many streams; raises on the first that is not as the document says."""
    statuses = collections.Counter()

    @hypothesis.settings(max_examples=num_cases, derandomize=True, database=None, deadline=None,
                         suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate])
    @hypothesis.given(case=strategy)
    def run(case):
        response = case.call_and_validate(base_url=url, checks=CHECKS, timeout=60)
        statuses[response.status_code] += 1
        if response.headers["content-type"][0].startswith("text/event-stream"):
            statuses["streams"] += 1
            check_stream(response.content.decode(), chunks)

    run()
    return statuses


def test_document_is_served_and_is_openapi(small_daemon):
    response = small_daemon.http.get("/openapi.json")
    assert response.status_code == 200 and response.headers["content-type"] == "application/json"
    document = response.json()
    assert document["openapi"].startswith("3.1.")
    schemathesis.openapi.from_dict(document).validate()
    assert len(document["paths"]) > 15


@pytest.mark.timeout(3600)
def test_answers_are_what_the_document_says(small_daemon):
    document = small_daemon.http.get("/openapi.json").json()
    good, good_streams, bad = (schemathesis.openapi.from_dict(each) for each in
                               (made_cheap(document, stream=False), made_cheap(document, stream=True), document))
    statuses = {}
    with small_daemon.unharmed():
        for result in good.get_all_operations():
            operation = result.ok()
            sources = [(good, GenerationMode.POSITIVE)]
            if operation.body:
                sources.append((bad, GenerationMode.NEGATIVE))
            if operation.path in CHUNKS:
                sources.append((good_streams, GenerationMode.POSITIVE))
            strategies = [schema.find_operation_by_label(operation.label).as_strategy(generation_mode=mode)
                          for schema, mode in sources]
            num_cases = math.ceil(NUM_CASES * SHARES.get(operation.label, OTHERS) / 100)
            statuses[operation.label] = run_cases(st.one_of(strategies), num_cases, small_daemon.url,
                                                   chunk_validator(document, operation.path))
    print("answers by status:", *(f"{label} {dict(counts)}" for label, counts in statuses.items()), sep="\n  ")
    streams = sum(counts.pop("streams", 0) for counts in statuses.values())
    assert sum(counts.total() for counts in statuses.values()) >= NUM_CASES
    assert streams > 0
    for label in SHARES:  # or the requests would say little
        assert statuses[label][200] >= statuses[label].total() * 0.1 and statuses[label][400] > 0, statuses[label]

"""The calculator at both doors of the real binary and on its command line: known answers, one document everywhere, and refusals."""

import json
import os
import subprocess

import grpc
import httpx
import pytest
from google.protobuf import json_format
from google.rpc import error_details_pb2

from daemon import binary_path, model_path
from stubs import pb
from test_grpc import details

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LLAMA = {"layers": 32, "head_dim": 128}

KNOWN = [
    ({"preset": "llama-2-7b"}, {"bytes_per_token": 512 * KIB, "total_bytes": 2 * GIB, "context_tokens": 4096}),
    ({"preset": "llama-2-7b", "batch": 8}, {"total_bytes": 16 * GIB, "bytes_per_sequence": 2 * GIB}),
    ({"preset": "llama-2-70b"}, {"bytes_per_token": 320 * KIB}),
    ({"preset": "llama-3-8b"}, {"bytes_per_token": 128 * KIB, "grouping_ratio": 4}),
    ({"preset": "llama-3-8b", "grouping": False}, {"bytes_per_token": 512 * KIB, "kv_heads": 32}),
    ({"preset": "llama-3-70b", "context_tokens": 131072}, {"total_bytes": 40 * GIB}),
    (LLAMA | {"kv_heads": 32, "context_tokens": 32768}, {"total_bytes": 16 * GIB, "ratio_to_weights": None}),
    (LLAMA | {"kv_heads": 8, "query_heads": 32, "context_tokens": 32768}, {"total_bytes": 4 * GIB, "grouping_ratio": 4}),
    (LLAMA | {"kv_heads": 32, "context_tokens": 4096, "batch": 32}, {"total_bytes": 64 * GIB}),
    ({"preset": "llama-2-7b", "prompt_tokens": 4, "new_tokens": 6},
     {"token_passes_with_cache": 9, "token_passes_without_cache": 39, "attention_scores_with_cache": 45,
      "attention_scores_without_cache": 155}),
    ({"preset": "llama-2-7b", "prompt_tokens": 100, "new_tokens": 1000},
     {"token_passes_with_cache": 1099, "token_passes_without_cache": 599_500}),
    ({"layers": 18, "kv_heads": 1, "query_heads": 4, "head_dim": 256, "window_tokens": 512, "window_pattern": "5:1",
      "context_tokens": 32768, "budget_bytes": GIB},
     {"bytes_per_token": 18432, "total_bytes": 15360 * 512 + 3072 * 32768, "sequences_in_budget": 9}),
]


def post(daemon, body) -> httpx.Response:
    return daemon.http.post("/v1/kv/plan", json=body)


def command_line(body) -> list[str]:
    arguments = ["--no-grouping"] if body.get("grouping") is False else []
    for name, value in body.items():
        if name != "grouping":
            arguments += ["--" + name.replace("_", "-"), str(value)]
    return arguments


def run_plan(*arguments) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KVASIR_")}
    return subprocess.run([binary_path(), "plan", *arguments], capture_output=True, text=True, timeout=60, env=environment, check=False)


def message_as_json(message) -> dict:
    """What gRPC answered, as REST writes it: numbers, and null for what is absent."""
    found = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if hasattr(value, "add"):
            found[field.name] = [message_as_json(each) for each in value]
        elif field.message_type is not None:
            found[field.name] = message_as_json(value)
        else:
            found[field.name] = value if not field.has_presence or message.HasField(field.name) else None
    return found


@pytest.mark.parametrize("body, expected", KNOWN)
def test_known_answers_are_the_same_at_both_doors_and_on_the_command_line(daemon, body, expected):
    response = post(daemon, body)
    assert response.status_code == 200
    rest = response.json()
    assert {name: rest[name] for name in expected} == expected
    message = daemon.stub.Plan(json_format.ParseDict(body, pb.PlanRequest()))
    assert {"object": "kv.plan"} | message_as_json(message) == rest
    printed = run_plan("--json", *command_line(body))
    assert (printed.returncode, printed.stderr) == (0, "")
    said = json.loads(printed.stdout)
    # The daemon charges with its own largest chunk, the command line with the default one.
    assert said | {"charged": None} == rest | {"charged": None}


def test_weights_and_ratio_of_llama_2_7b(daemon):
    plan = post(daemon, {"preset": "llama-2-7b"}).json()
    assert round(plan["weights_bytes"] / GIB, 1) == 12.6
    assert round(plan["ratio_to_weights"], 2) == 0.16
    assert plan["formula"] == "2 x 32 layers x 32 KV heads x 128 x 2 bytes = 524288"
    eight = post(daemon, {"preset": "llama-2-7b", "batch": 8}).json()
    assert eight["total_bytes"] > eight["weights_bytes"] and eight["ratio_to_weights"] > 1
    table = run_plan("--preset", "llama-2-7b", "--batch", "8").stdout
    for said in ("512 KiB", "2 GiB", "12.6 GiB", "1.27", "524288 bytes x 4096 tokens x 8 sequences = 17179869184"):
        assert said in table


def test_the_served_model_is_planned_as_it_is_served(daemon):
    status = daemon.status()
    for body in ({}, {"model": "smollm2"}):
        plan = post(daemon, body).json()
        assert plan["model"] == "smollm2"
        assert plan["bytes_per_token"] == status.bytes_per_token == 23040
        assert (plan["context_tokens"], plan["kv_type"]) == (status.context_tokens, status.kv_type)
        assert plan["budget_bytes"] == status.budget_bytes
        assert plan["charged"]["bytes_per_block"] == status.bytes_per_block
        assert plan["charged"]["block_tokens"] == status.block_tokens
        assert plan["sequences_in_budget"] == status.budget_bytes // plan["bytes_per_sequence"]
        assert 0 < plan["weights_bytes"] < os.path.getsize(model_path())
    # As if there were no budget's end: what a file's own context costs.
    from_file = json.loads(run_plan("--json", "--model", model_path()).stdout)
    assert from_file["weights_bytes"] == plan["weights_bytes"]
    assert from_file["bytes_per_token"] == plan["bytes_per_token"]
    assert from_file["budget_bytes"] is None


@pytest.mark.parametrize("body, param, code", [
    ({"preset": "llama-4"}, "preset", "invalid_value"),
    ({"preset": "llama-2-7b", "layers": 8}, "layers", "invalid_value"),
    ({"preset": "llama-2-7b", "model": "smollm2"}, "preset", "invalid_value"),
    ({"layers": 8}, "kv_heads", "missing_required_parameter"),
    ({"layers": 8, "kv_heads": 3, "query_heads": 8, "head_dim": 8}, "query_heads", "invalid_value"),
    ({"layers": 1025, "kv_heads": 1, "head_dim": 1}, "layers", "invalid_value"),
    ({"kv_type": "q8"}, "kv_type", "invalid_value"),
    ({"batch": 0}, "batch", "invalid_value"),
    ({"budget_bytes": -1}, "budget_bytes", "invalid_value"),
    ({"window_pattern": "5:1"}, "window_pattern", "invalid_value"),
    ({"window_tokens": 4, "window_pattern": "five"}, "window_pattern", "invalid_value"),
    ({"preset": "llama-2-7b", "batch": 1 << 20, "context_tokens": 1 << 24}, "batch", "invalid_value"),
    ({"model": "gpt-17"}, "model", "model_not_found"),
])
def test_a_bad_request_gets_one_verdict_at_both_doors_and_names_the_option(daemon, body, param, code):
    response = post(daemon, body)
    assert response.status_code == (404 if code == "model_not_found" else 400)
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    with pytest.raises(grpc.RpcError) as refused:
        daemon.stub.Plan(json_format.ParseDict(body, pb.PlanRequest()))
    (bad,) = details(refused.value, error_details_pb2.BadRequest)
    assert [v.field for v in bad.field_violations] == [param]
    assert details(refused.value, error_details_pb2.ErrorInfo)[0].reason == code
    if "model" in body:
        return
    done = run_plan(*command_line(body if "preset" in body or "layers" in body else body | {"preset": "llama-2-7b"}))
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert "--" + param.replace("_", "-") in done.stderr


def test_types_are_looked_at_and_unknown_fields_pass_and_are_counted(daemon):
    for body in ({"layers": "8"}, {"preset": 7}, {"grouping": 1}, {"batch": 1.5}, {"window_pattern": 5}):
        response = post(daemon, body)
        assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_type"
        assert response.json()["error"]["param"] == next(iter(body))
    before = daemon.metric("kvasir_ignored_fields_total")
    assert post(daemon, {"preset": "llama-2-7b", "nonsense": 1, "batch": 2.0}).json()["batch"] == 2
    assert daemon.metric("kvasir_ignored_fields_total") == before + 1


def test_the_route_takes_post_only_and_counts_under_its_path(daemon):
    assert daemon.http.get("/v1/kv/plan").status_code == 405
    assert post(daemon, {"preset": "smollm2-135m"}).status_code == 200
    assert daemon.metric("http_requests_total", handler="/v1/kv/plan", status="2xx") >= 1


def test_a_key_is_asked_for_where_the_operator_does(start_daemon, tmp_path):
    (tmp_path / "keys").write_text("secret-key-of-a-test\n")
    daemon = start_daemon(api_key="secret-key-of-a-test", api_key_file=tmp_path / "keys")
    assert httpx.post(daemon.url + "/v1/kv/plan", json={}).status_code == 401
    assert post(daemon, {}).status_code == 200
    with pytest.raises(grpc.RpcError) as refused:
        daemon.stub.Plan(pb.PlanRequest())
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert daemon.stub.Plan(pb.PlanRequest(), metadata=daemon.metadata).model == "smollm2"

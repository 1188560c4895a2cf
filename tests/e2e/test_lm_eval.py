"""lm-eval's local-completions against the REST door gives the numbers that it gives with transformers.

The figures of transformers were computed once, from the same model file (lm_eval/make_reference.py). Here the daemon
computes in float32 throughout, and lm-eval asks it for everything, its tokenizer included (--tokenizer-info).
"""

import json
import os
import pathlib
import subprocess

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent / "lm_eval"
REFERENCE = json.loads((FOLDER / "reference.json").read_text())
TASKS = ["kvasir_choices", "kvasir_texts"]
# Of a metric, and of a log-likelihood of a few tokens, in nats. Those of whole texts add up some 300 float32 numbers, each of
# its own rounding: measured are 2e-6 of the sum between the two.
TOLERANCE = 2e-3
TEXT_TOLERANCE = 1e-5

LM_EVAL = os.environ.get("KVASIR_LM_EVAL")
pytestmark = [pytest.mark.all, pytest.mark.timeout(1200), pytest.mark.skipif(
    not LM_EVAL, reason="KVASIR_LM_EVAL names no lm_eval program (tests/run.sh --all installs it)")]


def evaluate(daemon, folder: pathlib.Path, options: tuple = (), **model_args) -> tuple[dict, dict]:
    """The metrics of each task, and each document's responses; everything stays in the folder."""
    arguments = {"base_url": f"{daemon.url}/v1/completions", "model": "smollm2", "tokenizer_backend": "remote",
                 # /tokenize takes a text as text: it gives no control token for the name of BOS, which lm-eval asks for.
                 "custom_prefix_token_id": 1,
                 # lm-eval takes one off for the token that is generated, and in windows one more for the first.
                 "max_length": REFERENCE["window_tokens"] + 2} | model_args
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf"),
                                "OPENAI_API_KEY": "unused"}
    done = subprocess.run(
        [LM_EVAL, "run", "--model", "local-completions", "--tasks", ",".join(TASKS), "--include_path", FOLDER,
         "--model_args", ",".join(f"{k}={v}" for k, v in arguments.items()), "--log_samples",
         "--output_path", folder / "out", *options],
        env=environment, cwd=FOLDER, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stderr[-4000:]
    (results,) = (folder / "out").rglob("results_*.json")
    responses = {}
    for task in TASKS:
        (samples,) = (folder / "out").rglob(f"samples_{task}_*.jsonl")
        documents = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda d: d["doc_id"])
        responses[task] = [d["filtered_resps"] for d in documents]
    return json.loads(results.read_text())["results"], responses


@pytest.fixture(scope="module")
def precise(daemon_with):
    return daemon_with(activations="f32", kv_type="f32", tokenizer_info="true")


@pytest.fixture(scope="module")
def one_by_one(precise, tmp_path_factory):
    return evaluate(precise, tmp_path_factory.mktemp("lm_eval"))


def test_figures_are_those_of_transformers(one_by_one):
    metrics, responses = one_by_one
    expected = REFERENCE["log_likelihoods"]
    for got, wanted in zip(responses["kvasir_choices"], expected["kvasir_choices"], strict=True):
        assert [float(x[0]) for x in got] == pytest.approx([x[0] for x in wanted], rel=0, abs=TOLERANCE)
        assert [x[1] for x in got] == [str(x[1]) for x in wanted], "which ending is the greedy one"
    for got, wanted in zip(responses["kvasir_texts"], expected["kvasir_texts"], strict=True):
        assert float(got[0]) == pytest.approx(wanted[0], rel=TEXT_TOLERANCE, abs=0)
    for task in TASKS:
        for name, value in REFERENCE["metrics"][task].items():
            assert metrics[task][name] == pytest.approx(value, rel=0, abs=TOLERANCE), (task, name)


@pytest.mark.parametrize("way", [{"num_concurrent": 4}, {"options": ("--batch_size", "4")}], ids=["concurrent", "batches"])
def test_figures_do_not_depend_on_what_is_asked_together(precise, one_by_one, tmp_path, way):
    """To the last bit."""
    assert evaluate(precise, tmp_path, **way)[1] == one_by_one[1]

#!/usr/bin/env python3
"""Computes reference.json: what lm-eval gives for the tasks beside this file when `transformers` evaluates the model.

    python -m venv V && V/bin/pip install lm-eval==0.4.13 transformers torch accelerate gguf
    V/bin/python make_reference.py MODEL.gguf

The same GGUF file is read by transformers, which restores each weight to float32, and evaluated on the CPU in float32.
The tokenizer is transformers' too, so that tests/e2e/test_lm_eval.py judges kvasir's tokens and its numbers. To be run
again when the tasks change; the tests only read what it wrote.
"""

import hashlib
import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
# Shorter than the longest text, so that its log-likelihood takes several windows.
WINDOW_TOKENS = 128
TASKS = ["kvasir_choices", "kvasir_texts"]


def main():
    model = pathlib.Path(sys.argv[1]).resolve()
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": tempfile.mkdtemp(),
                   "TOKENIZERS_PARALLELISM": "false"}
    os.chdir(FOLDER)  # the tasks name their data by relative paths
    import lm_eval  # after the environment is set
    from lm_eval.tasks import TaskManager

    result = lm_eval.simple_evaluate(
        model="hf", tasks=TASKS, log_samples=True, bootstrap_iters=0, device="cpu", batch_size=1,
        task_manager=TaskManager(include_path=str(FOLDER), include_defaults=False),
        model_args={"pretrained": str(model.parent), "gguf_file": model.name, "dtype": "float32",
                    "max_length": WINDOW_TOKENS})
    reference = {
        "made_with": {name: importlib.metadata.version(name) for name in
                      ("lm_eval", "transformers", "tokenizers", "torch", "gguf")},
        "model": {"file": model.name, "sha256": hashlib.sha256(model.read_bytes()).hexdigest()},
        "window_tokens": WINDOW_TOKENS,
        # Per document: for choices [log-likelihood, is greedy] of each, for texts the log-likelihood.
        "log_likelihoods": {task: [sample["filtered_resps"] for sample in
                                   sorted(result["samples"][task], key=lambda s: s["doc_id"])] for task in TASKS},
        "metrics": {task: {name: value for name, value in result["results"][task].items() if isinstance(value, float)
                           and "stderr" not in name} for task in TASKS},
    }
    (FOLDER / "reference.json").write_text(json.dumps(reference, indent=1) + "\n")


if __name__ == "__main__":
    main()

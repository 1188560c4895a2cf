"""Prefill and decode rates of OpenVINO GenAI's continuous batching pipeline. Run by programs.py with the Python of
OpenVINO's own virtual environment; the last line printed is a JSON object of tok/s by the keys that were asked for.

    openvino_rates.py MODEL.gguf THREADS WORKLOADS      WORKLOADS is JSON: [{kind, prompt_tokens, new_tokens, sequences, key}]
"""

import json
import os
import random
import sys
import time

import numpy
import openvino
import openvino_genai

# Room for all streams of the table, 512 tokens a step as kvasir has, prompts cut to fill up steps of decoding.
CACHE_GB = 3
STEP_TOKENS = 512


def make_pipeline(model: str, threads: int):
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.max_num_batched_tokens = STEP_TOKENS
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    return openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})


class Streams:
    """Requests with unrelated prompts of random tokens, stepped together."""

    def __init__(self, pipeline, rng: random.Random, sequences: int, prompt_tokens: int, new_tokens: int):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        self._pipeline = pipeline
        self._handles = []
        for _ in range(sequences):
            ids = numpy.array([[rng.randrange(1000, 40000) for _ in range(prompt_tokens)]], dtype=numpy.int64)
            self._handles.append(pipeline.add_request(rng.getrandbits(48), openvino.Tensor(ids), config))
        self.tokens = [0] * sequences  # made so far

    def step(self) -> None:
        self._pipeline.step()
        for index, handle in enumerate(self._handles):
            while handle.can_read():
                self.tokens[index] += sum(len(output.generated_ids) for output in handle.read().values())

    def run_to_end(self) -> None:
        while self._pipeline.has_non_finished_requests():
            self.step()


def prefill_rate(pipeline, rng: random.Random, prompt_tokens: int) -> float:
    """Tokens of the prompt over the time to the first new token."""
    begin = time.perf_counter()
    streams = Streams(pipeline, rng, 1, prompt_tokens, 1)
    streams.run_to_end()
    return prompt_tokens / (time.perf_counter() - begin)


def decode_rate(pipeline, rng: random.Random, sequences: int, prompt_tokens: int, new_tokens: int) -> float:
    """New tokens over time while all streams decode: prompts are done, no stream has ended. Streams that started first
    are given the tokens that they make before the last one starts, so that at least `new_tokens` steps are timed."""
    steps_of_prefill = -(-sequences * prompt_tokens // STEP_TOKENS) + sequences
    streams = Streams(pipeline, rng, sequences, prompt_tokens, new_tokens + steps_of_prefill)
    while min(streams.tokens) == 0:
        streams.step()
    before, begin = sum(streams.tokens), time.perf_counter()
    for _ in range(new_tokens - 1):
        streams.step()
    rate = (sum(streams.tokens) - before) / (time.perf_counter() - begin)
    streams.run_to_end()
    return rate


def main() -> int:
    model, threads, workloads = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    pipeline = make_pipeline(model, threads)
    # Unrelated to the other rounds: a prefix seen before would be answered from the cache.
    rng = random.Random(os.getpid())
    prefill_rate(pipeline, rng, 64)
    rates = {}
    for w in workloads:
        if w["kind"] == "prefill":
            rates[w["key"]] = prefill_rate(pipeline, rng, w["prompt_tokens"])
        else:
            rates[w["key"]] = decode_rate(pipeline, rng, w["sequences"], w["prompt_tokens"], w["new_tokens"])
    print(json.dumps(rates))
    return 0


if __name__ == "__main__":
    sys.exit(main())

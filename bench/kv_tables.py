#!/usr/bin/env python3
"""Measures what the KV cache of a kvasir daemon saves and costs, and prints the tables of docs/KV.md.

    kv_tables.py [--binary FILE] [--model FILE] [--runs N] [chat] [choices] [budget] [audit]

Each table starts daemons of its own and asks them over HTTP as any client would; numbers of tokens and bytes come from the
receipts and from /v1/kv/status and are the same in every run, times are medians with lowest..highest. Nothing else should
run on the machine. Needs only Python's library.
"""

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import tempfile
import time

SOURCE_DIR = pathlib.Path(__file__).resolve().parents[1]
SYSTEM = """You are the guide of a small museum of lighthouses on the coast. Visitors ask you about the building, the lamp, the
keepers and their families, the storms and the ships. Answer in plain words, in two or three sentences, and never make up a
date. The tower was built of granite, it is forty metres high and has two hundred and ten steps. The lamp burned oil at
first, then gas, and is electric now. Its lens weighs two tonnes and turns on a bath of mercury. Three keepers lived here
with their families and took turns at night. A cow and some goats lived behind the house. In winter the boat with their
supplies came when the weather let it, and that was seldom. The fog horn was heard twelve miles away. The museum is open
from ten to five, closed on Mondays, and the stairs are steep: children go up with a grown-up only."""
QUESTIONS = ("How high is the tower?", "Who lived here, and how did they get their food in winter?",
             "What did the lamp burn, and what does it burn now?", "May my daughter of six go up alone?",
             "How far away could one hear the fog horn?", "What do you like best about this place?")
TOPICS = ("a river in winter", "the tides", "how bread is made", "a market in the morning", "why the sky is blue", "old maps",
          "a train journey", "how to learn a language", "bees", "the first day of spring", "a violin maker", "salt")


class Daemon:
    """One `kvasir serve` on a free port, ended when the block is left."""

    def __init__(self, options, **flags):
        self.flags = {"model": options.model, "http_port": 0, "grpc_port": 0, "threads": options.threads} | flags
        self.binary = options.binary

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="kv-tables-")
        ready = pathlib.Path(self.folder.name) / "ready.json"
        command = [self.binary, "serve", "--ready-file", str(ready)]
        for name, value in self.flags.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not ready.exists():
            if self.process.poll() is not None:
                raise SystemExit(f"no start: {' '.join(command)}")
            time.sleep(0.01)
        self.port = json.loads(ready.read_text())["http_port"]
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.folder.cleanup()

    def ask(self, path: str, body: dict | None = None):
        """(answer, seconds to its first byte, seconds to its end); a stream is a list of its chunks."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(connection):
            start = time.perf_counter()
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            first = time.perf_counter() - start
            text = response.read().decode()
            whole = time.perf_counter() - start
        if response.status != 200:
            raise SystemExit(f"{path}: {response.status} {text}")
        if body is not None and body.get("stream"):
            events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
            return [json.loads(event) for event in events if event != "[DONE]"], first, whole
        return json.loads(text), first, whole

    def status(self) -> dict:
        return self.ask("/v1/kv/status")[0]

    def wait_checked(self):
        """Until the truth check has nothing more to do."""
        before = None
        while (now := self.status()["audited_tokens_total"]) != before:
            before = now
            time.sleep(1)

    def wait_idle(self):
        while (now := self.status())["running_sequences"] or now["waiting_sequences"]:
            time.sleep(0.01)


def shown(values, form="{:.0f}") -> str:
    """Median (lowest..highest)"""
    middle, low, high = (form.format(f(values)) for f in (statistics.median, min, max))
    return f"{middle} ({low}..{high})"


def mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.2f}"


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def header(*cells):
    row(*cells)
    row(*["---"] * len(cells))


# ---- a chat of six turns, cold and warm ----

def one_chat(daemon: Daemon, warm: bool, mark: str) -> list[dict]:
    """The same chat whatever is cached: answers are greedy. Cold: each turn under a salt of its own."""
    messages, turns = [{"role": "system", "content": SYSTEM}], []
    for number, question in enumerate(QUESTIONS):
        messages.append({"role": "user", "content": question})
        body = {"messages": messages, "temperature": 0, "max_tokens": 60, "kv_receipt": True, "stream": True,
                "stream_options": {"include_usage": True}, "cache_salt": mark if warm else f"{mark}-{number}"}
        chunks, first, _ = daemon.ask("/v1/chat/completions", body)
        usage = chunks[-1]["usage"]
        text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
        turns.append({"usage": usage, "ttft": first, "text": text})
        messages.append({"role": "assistant", "content": text})
    return turns


def chat_table(options):
    with Daemon(options, kv_budget="256MiB") as daemon:
        one_chat(daemon, True, "first")
        cold = [one_chat(daemon, False, f"cold-{i}") for i in range(options.runs)]
        warm = [one_chat(daemon, True, f"warm-{i}") for i in range(options.runs)]
    assert all([t["text"] for t in run] == [t["text"] for t in cold[0]] for run in cold + warm), "the same bytes"
    header("turn", "prompt tokens", "of them cached", "passes, warm", "passes, cold", "passes without a cache",
           "first token, warm, ms", "first token, cold, ms")
    for turn in range(len(QUESTIONS)):
        usage, cold_usage = warm[0][turn]["usage"], cold[0][turn]["usage"]
        row(turn + 1, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"],
            usage["kv_cache"]["token_passes"], cold_usage["kv_cache"]["token_passes"],
            usage["kv_cache"]["token_passes_without_cache"],
            *(shown([1000 * run[turn]["ttft"] for run in runs], "{:.1f}") for runs in (warm, cold)))
    total = {name: sum(t["usage"]["kv_cache"][name] for t in warm[0]) for name in ("token_passes", "token_passes_without_cache")}
    row("all", "", "", total["token_passes"], sum(t["usage"]["kv_cache"]["token_passes"] for t in cold[0]),
        total["token_passes_without_cache"],
        *(shown([1000 * sum(t["ttft"] for t in run) for run in runs], "{:.1f}") for runs in (warm, cold)))
    print("\nThe receipt of the second turn, warm:\n")
    print(json.dumps(warm[0][1]["usage"], indent=2))


# ---- eight choices of one prompt ----

def choices_table(options):
    prompt = " ".join([SYSTEM] * 3)
    header("choices", "prompt tokens", "bytes at peak, MiB", "of them shared, MiB", "held in the pool, MiB",
           "without sharing, MiB", "passes", "passes without a cache")
    for n in (1, 8):
        with Daemon(options, kv_budget="256MiB") as daemon:
            body = {"prompt": prompt, "n": n, "max_tokens": 32, "temperature": 0.8, "seed": 1, "ignore_eos": True, "kv_receipt": True}
            usage = daemon.ask("/v1/completions", body)[0]["usage"]
        receipt = usage["kv_cache"]
        row(n, usage["prompt_tokens"], mib(receipt["peak_bytes"]), mib(receipt["shared_bytes"]),
            mib(receipt["peak_bytes"] - receipt["shared_bytes"]), mib(receipt["peak_bytes"]), receipt["token_passes"],
            receipt["token_passes_without_cache"])


# ---- budgets that hold a fraction of what is asked, both ways of admission ----

NUM_CHATS = 64
CLOSE = {"max_tokens": 384}  # most answers come near it
FAR = {"max_tokens": 2000, "stop": ["."]}  # answers end with their first sentence


def budget_chats(limit: dict) -> list[dict]:
    chance = random.Random(7)
    return [{"messages": [{"role": "system", "content": SYSTEM if i % 2 else "You are brief."},
                          {"role": "user", "content": f"Tell me about {chance.choice(TOPICS)}, part {i}."}],
             "temperature": 0.8, "seed": i} | limit for i in range(NUM_CHATS)]


def budget_run(options, limit: dict, budget_bytes: int, admission: str) -> dict:
    with Daemon(options, kv_budget=budget_bytes, admission=admission) as daemon:
        daemon.ask("/v1/completions", {"prompt": "Once", "max_tokens": 8})
        before = daemon.status()
        start = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(NUM_CHATS) as pool:
            answers = list(pool.map(lambda body: daemon.ask("/v1/chat/completions", body), budget_chats(limit)))
        seconds = time.perf_counter() - start
        daemon.wait_idle()
        after = daemon.status()
    counted = {name: after[name] - before[name] for name in ("preemptions_total", "recomputed_tokens_total",
                                                             "computed_tokens_total")}
    texts = [answer["choices"][0]["message"]["content"] for answer, _, _ in answers]
    tokens = [answer["usage"]["completion_tokens"] for answer, _, _ in answers]
    return {"seconds": seconds, "texts": texts, "tokens": tokens, "whole": [whole for _, _, whole in answers]} | counted


def budget_table(options):
    for limit, fractions in ((CLOSE, (1.0, 0.5, 0.25, 0.125)), (FAR, (0.125,))):
        budget_rows(options, limit, fractions)


def budget_rows(options, limit: dict, fractions):
    with Daemon(options, kv_budget="256MiB") as daemon:
        bytes_per_token = daemon.status()["bytes_per_token"]
        prompts = [daemon.ask("/tokenize", {"messages": chat["messages"]})[0]["count"] for chat in budget_chats(limit)]
    everything = sum(count + limit["max_tokens"] - 1 for count in prompts) * bytes_per_token
    texts = None
    print()
    header("budget, of the worst case of all", "admission", "tokens/s", "mean time of an answer, s", "preemptions",
           "tokens computed again", "of all passes")
    for fraction in fractions:
        for admission in ("reserve", "optimistic"):
            runs = [budget_run(options, limit, round(everything * fraction) + 2**20, admission) for _ in range(options.runs)]
            texts = texts or runs[0]["texts"]
            assert all(run["texts"] == texts for run in runs), "the same bytes"
            rates = [sum(run["tokens"]) / run["seconds"] for run in runs]
            again = [100 * run["recomputed_tokens_total"] / run["computed_tokens_total"] for run in runs]
            row(f"{fraction:.1%} ({everything * fraction / 2**20:.0f} MiB)", admission, shown(rates),
                shown([statistics.mean(run["whole"]) for run in runs], "{:.2f}"), shown([r["preemptions_total"] for r in runs]),
                shown([r["recomputed_tokens_total"] for r in runs]), shown(again, "{:.1f} %"))
    tokens = runs[0]["tokens"]
    print(f"\nmax_tokens {limit['max_tokens']}; answers have {statistics.median(tokens):.0f} tokens ({min(tokens)}..{max(tokens)}), "
          f"prompts {statistics.median(prompts):.0f} ({min(prompts)}..{max(prompts)})")


# ---- the truth check ----

def audit_table(options):
    """Chats with a pause between their turns, in which the daemon has nothing else to do."""
    header("--kv-audit", "turns", "prefixes checked", "tokens computed for it", "mismatches", "first token, ms",
           "whole turn, ms", "CPU seconds in all")
    texts = None
    for rate in ("0", "0.1", "1"):
        with Daemon(options, kv_budget="256MiB", kv_audit=rate) as daemon:
            firsts, wholes, heard = [], [], []
            for run in range(options.runs):
                messages = [{"role": "system", "content": SYSTEM}]
                for question in QUESTIONS:
                    messages.append({"role": "user", "content": question})
                    body = {"messages": messages, "temperature": 0, "max_tokens": 60, "cache_salt": f"audit-{run}", "stream": True}
                    chunks, first, whole = daemon.ask("/v1/chat/completions", body)
                    text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
                    messages.append({"role": "assistant", "content": text})
                    firsts.append(1000 * first)
                    wholes.append(1000 * whole)
                    heard.append(text)
                    time.sleep(0.5)
            daemon.wait_checked()
            status = daemon.status()
            cpu = sum(os.sysconf("SC_CLK_TCK") ** -1 * int(field) for field in
                      pathlib.Path(f"/proc/{daemon.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13])
        texts = texts or heard
        assert heard == texts, "the same bytes"
        row(rate, len(firsts), status["audited_prefixes_total"], status["audited_tokens_total"], status["audit_mismatches_total"],
            shown(firsts, "{:.1f}"), shown(wholes), f"{cpu:.1f}")


TABLES = {"chat": chat_table, "choices": choices_table, "budget": budget_table, "audit": audit_table}


def main():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))) / "kvasir" / "models"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="table", help=f"of {', '.join(TABLES)}; default: all")
    parser.add_argument("--binary", default=str(SOURCE_DIR / "build" / "release" / "bin" / "kvasir"))
    parser.add_argument("--model", default=str(cache / "SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    for name in options.tables or TABLES:
        print(f"\n## {name}\n", flush=True)
        TABLES[name](options)


if __name__ == "__main__":
    main()

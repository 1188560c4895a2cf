"""Runs one program once on one group of work and returns its figures: builds the command, gives it its share of the
machine, reads what it prints. Knows nothing of rounds or of the table."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import random
import re
import subprocess
import threading

import cache
import rows
import servers

# Nothing measured here takes longer; a program that does hangs.
TIMEOUT_S = 1800
# One session gets as much CPU as another, whatever their nice values, unless its weight is raised.
SHARE = 'echo -20 > /proc/self/autogroup; exec "$@"'
RATES_SCRIPT = pathlib.Path(__file__).with_name("openvino_rates.py")


class MeasureError(Exception):
    """A program failed or printed something else than expected; the message has the command and what it said."""


class Context:
    """What all measurements of one run share."""

    def __init__(self, kvasir: str, threads: int, kvasir_arguments: list[str] | None = None):
        self.kvasir = kvasir
        self.threads = threads
        self.kvasir_arguments = kvasir_arguments or []


def check_installed(context: Context, program: str) -> None:
    """Raises InstallError or MeasureError if the program is not there: better now than after an hour."""
    if program == "kvasir" and not os.access(context.kvasir, os.X_OK):
        raise MeasureError(f"{context.kvasir} is no program: build kvasir, or name it with --kvasir")
    if program == "llama.cpp":
        for name in cache.LLAMA_PROGRAMS:
            cache.program(name)
    if program == "openvino" and not cache.OPENVINO_PYTHON.is_file():
        raise cache.InstallError(f"{cache.OPENVINO_PYTHON} is missing: run bench/peers/run.py install")


def measure(context: Context, program: str, group: rows.Group) -> dict:
    """Figures by metric: tok/s by `Workload.key`, or those of servers.py. Raises MeasureError or InstallError."""
    model = str(cache.model(group.model))
    if group.kind != "rates":
        return _measure_server(context, program, group.kind, model)
    return {"kvasir": _kvasir, "llama.cpp": _llama, "openvino": _openvino}[program](context, model, group.workloads)


def with_share(command: list[str]) -> list[str]:
    """The command in a session of its own with a raised weight, where the kernel has such weights and allows it."""
    return ["setsid", "-w", "bash", "-c", SHARE, "_", *command] if share_is_permitted() else command


@functools.cache
def share_is_permitted() -> bool:
    """Tried in a session of its own, so that the caller's is left as it is."""
    tried = subprocess.run(["setsid", "-w", "bash", "-c", "echo -20 > /proc/self/autogroup"], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, check=False)
    return tried.returncode == 0


def _output_of(command: list[str], **environment: str) -> str:
    shown = " ".join(command)
    try:
        done = subprocess.run(with_share(command), capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S,
                              env=os.environ | environment, check=False)
    except FileNotFoundError as error:
        raise MeasureError(f"cannot run {shown}: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise MeasureError(f"no end after {TIMEOUT_S} s: {shown}") from error
    if done.returncode != 0:
        raise MeasureError(f"exit code {done.returncode} from {shown}\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


# ---- kvasir ----


def _kvasir(context: Context, model: str, workloads: tuple[rows.Workload, ...]) -> dict:
    """One process for each shape of decode streams, prefill along with the first."""
    figures = {}
    for command, group in kvasir_commands(context, model, workloads):
        figures |= read_kvasir(_output_of(command), group)
    return figures


def kvasir_commands(context: Context, model: str, workloads: tuple[rows.Workload, ...]):
    """(command, its workloads) pairs."""
    shapes = sorted({(w.prompt_tokens, w.new_tokens) for w in workloads if w.kind == "decode"}) or [None]
    for index, shape in enumerate(shapes):
        group = [w for w in workloads if (w.kind == "prefill" and index == 0) or (w.prompt_tokens, w.new_tokens) == shape]
        names = [f"prefill:{w.prompt_tokens}" if w.kind == "prefill" else f"decode:{w.sequences}" for w in group]
        command = [context.kvasir, "bench", "--model", model, "--threads", str(context.threads), "--rounds", "1",
                   "--workload", ",".join(names), "--json", *context.kvasir_arguments]
        if shape:
            command += ["--prompt-tokens", str(shape[0]), "--new-tokens", str(shape[1])]
        yield command, group


def read_kvasir(output: str, workloads: list[rows.Workload]) -> dict:
    """`{"results": [{"workload", "prompt_tokens", "sequences", "tokens_per_second", ...}]}`; other fields are left alone."""
    try:
        results = json.loads(output)["results"]
        figures = {}
        for workload in workloads:
            for result in results:
                if result["workload"] != workload.kind:
                    continue
                if workload.kind == "prefill" and result["prompt_tokens"] != workload.prompt_tokens:
                    continue
                if workload.kind == "decode" and result["sequences"] != workload.sequences:
                    continue
                figures[workload.key] = float(result["tokens_per_second"])
    except (ValueError, KeyError, TypeError) as error:
        raise MeasureError(f"kvasir bench printed no results ({error!r}): {output[-2000:]}") from error
    _demand_all(workloads, figures, output)
    return figures


# ---- llama.cpp ----


def _llama(context: Context, model: str, workloads: tuple[rows.Workload, ...]) -> dict:
    figures = {}
    for command, read, group in llama_commands(context.threads, model, workloads):
        found = read(_output_of(command), group)
        # One stream is measured by both of its programs: its better figure counts.
        figures |= {key: max(value, figures.get(key, 0.0)) for key, value in found.items()}
    return figures


def llama_commands(threads: int, model: str, workloads: tuple[rows.Workload, ...]):
    """(command, reader, its workloads) triples: llama-bench for prefill and one stream, llama-batched-bench for streams."""
    bench = [str(cache.LLAMA_BIN / "llama-bench"), "-m", model, "-t", str(threads), "-r", "1", "-o", "json"]
    for workload in workloads:
        if workload.kind == "prefill":
            # llama-bench warms up with the whole prompt: thousands of tokens need no such thing.
            warm = ["--no-warmup"] if workload.prompt_tokens > 2048 else []
            yield [*bench, "-p", str(workload.prompt_tokens), "-n", "0", *warm], read_llama_bench, [workload]
        elif workload.sequences == 1:
            yield [*bench, "-p", "0", "-n", str(workload.new_tokens)], read_llama_bench, [workload]
    for shape in sorted({(w.prompt_tokens, w.new_tokens) for w in workloads if w.kind == "decode"}):
        group = [w for w in workloads if w.kind == "decode" and (w.prompt_tokens, w.new_tokens) == shape]
        most = max(w.sequences for w in group)
        # Each stream gets an equal part of the context, in steps of 256 tokens.
        context_tokens = most * (-(-(sum(shape) + 1) // 256) * 256)
        # Long contexts are filled once and copied to the other streams, each of which keeps its own: that does not change
        # what a step reads, and saves minutes.
        shared = ["-pps"] if shape[0] > 1024 else []
        yield ([str(cache.LLAMA_BIN / "llama-batched-bench"), "-m", model, "-c", str(context_tokens), "-b", "2048", "-ub", "512",
                "-npp", str(shape[0]), "-ntg", str(shape[1]), "-npl", ",".join(str(w.sequences) for w in group), *shared,
                "-t", str(threads), "--output-format", "jsonl"], read_llama_batched_bench, group)


def read_llama_bench(output: str, workloads: list[rows.Workload]) -> dict:
    """A JSON list with one object for the one test that was asked for."""
    try:
        (result,) = json.loads(output)
        return {workloads[0].key: float(result["avg_ts"])}
    except (ValueError, KeyError, TypeError) as error:
        raise MeasureError(f"llama-bench printed no results ({error!r}): {output[-2000:]}") from error


def read_llama_batched_bench(output: str, workloads: list[rows.Workload]) -> dict:
    """One JSON object a line among other lines; `pl` is the number of streams."""
    found = {}
    for line in re.findall(r"\{.*\}", output):
        try:
            result = json.loads(line)
            found[result["pp"], result["tg"], result["pl"]] = float(result["speed_tg"])
        except (ValueError, KeyError, TypeError):
            continue
    figures = {w.key: found[shape] for w in workloads if (shape := (w.prompt_tokens, w.new_tokens, w.sequences)) in found}
    _demand_all(workloads, figures, output)
    return figures


# ---- OpenVINO ----


def _openvino(context: Context, model: str, workloads: tuple[rows.Workload, ...]) -> dict:
    order = [{"kind": w.kind, "prompt_tokens": w.prompt_tokens, "new_tokens": w.new_tokens, "sequences": w.sequences, "key": w.key}
             for w in workloads]
    output = _output_of([str(cache.OPENVINO_PYTHON), str(RATES_SCRIPT), model, str(context.threads), json.dumps(order)])
    try:
        figures = {key: float(value) for key, value in json.loads(output.strip().splitlines()[-1]).items()}
    except (ValueError, IndexError, AttributeError) as error:
        raise MeasureError(f"{RATES_SCRIPT.name} printed no results ({error!r}): {output[-2000:]}") from error
    _demand_all(workloads, figures, output)
    return figures


def _demand_all(workloads, figures: dict, output: str) -> None:
    missing = [w.key for w in workloads if w.key not in figures]
    if missing:
        raise MeasureError(f"no figure for {', '.join(missing)} in: {output[-2000:]}")


# ---- servers ----


def _measure_server(context: Context, program: str, kind: str, model: str) -> dict:
    """`load`: {"ready_s"}; `memory`: {"peak_mib", "beyond_mib"}, the latter without the model file and the KV budget."""
    pathlib.Path(model).read_bytes()  # from here on the page cache has it, whoever starts first
    try:
        with servers.start(with_share, _server_command(context, program, model)) as server:
            if kind == "load":
                return {"ready_s": server.ready_s}
            _occupy(server)
            peak = server.peak_rss_bytes()
    except servers.ServerError as error:
        raise MeasureError(str(error)) from error
    beyond = peak - os.path.getsize(model) - servers.KV_BUDGET_BYTES
    return {"peak_mib": peak / 2**20, "beyond_mib": beyond / 2**20}


def _server_command(context: Context, program: str, model: str) -> servers.ServerCommand:
    if program == "kvasir":
        return servers.kvasir_command(context.kvasir, model, context.threads, context.kvasir_arguments)
    return servers.llama_command(str(cache.program("llama-server")), model, context.threads)


def _occupy(server: servers.Server) -> None:
    """Fills nearly the whole KV budget with unrelated prompts, in full steps of prefill and of decode."""
    rng = random.Random(1)
    tokens = [[rng.randrange(1000, 40000) for _ in range(servers.SLOT_TOKENS - 64)] for _ in range(servers.SLOTS)]
    failures = []

    def ask(ids: list[int]) -> None:
        try:
            server.complete(ids, 48)
        except servers.ServerError as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(ids,)) for ids in tokens]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]

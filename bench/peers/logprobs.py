"""How far llama.cpp and kvasir are from the golden logprobs, on the same positions: the recorded top 20 after positions of
each prompt, and for each step of the recorded greedy continuation, fed back, its token and the runner-up. Both compute
with their own defaults (16-bit keys and values, activations as they choose); kvasir can be left out."""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import pathlib

import cache
import llama_logits
import programs
import servers

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "logits"
# What kvasir's difference may be, over llama.cpp's, on the recorded top 20.
ALLOWED_RATIO = 1.15
# Requests to kvasir at once: enough to fill its steps.
CLIENTS = 8
# Larger than any gap between two logits of these models, so that the biased token is the best.
FORCING_BIAS = 100


class CompareError(Exception):
    """There is nothing to compare, or a side gave no answer; the message says why."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """One recorded logprob: of `token` after the token at `position` of the fed ids. `in_top` is False for steps."""

    position: int
    token: int
    logprob: float
    in_top: bool


@dataclasses.dataclass(frozen=True)
class GoldenRow:
    name: str
    ids: list[int]  # prompt and continuation
    expected: list[Expected]

    def wanted(self) -> dict[int, list[int]]:
        tokens: dict[int, set[int]] = {}
        for entry in self.expected:
            tokens.setdefault(entry.position, set()).add(entry.token)
        return {position: sorted(group) for position, group in tokens.items()}


def add_arguments(parser: argparse.ArgumentParser, default_kvasir: pathlib.Path) -> None:
    parser.add_argument("--golden", type=pathlib.Path, default=GOLDEN / "smollm2-logits.jsonl", help="rows to compare with")
    parser.add_argument("--model", type=pathlib.Path, default=cache.MODELS / cache.SMOLLM2_Q4_1,
                        help="must be the file that the rows were made from")
    parser.add_argument("--any-model", action="store_true", help="compare another file of the same model all the same")
    parser.add_argument("--kvasir", default=str(default_kvasir), help="the binary to compare; `none` for llama.cpp alone")
    parser.add_argument("--kvasir-argument", action="append", default=[], metavar="ARGUMENT",
                        help="passed on to kvasir serve, e.g. --kvasir-argument=--isa=avx2; may be repeated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, help="every recorded logprob beside both answers, as JSON")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """0 if kvasir is as close as it must be, or was left out; 1 if it is not."""
    rows = read_rows(arguments.golden)
    if not arguments.any_model:
        _check_model(arguments.model, arguments.golden.with_name("meta.json"))
    answers = {"llama.cpp": _ask_llama(rows, str(arguments.model), arguments.threads)}
    if arguments.kvasir != "none":
        command = servers.kvasir_command(arguments.kvasir, str(arguments.model), arguments.threads, arguments.kvasir_argument)
        answers["kvasir"] = _ask_kvasir(rows, command)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(_details(rows, answers), indent=1) + "\n")
    print(report(rows, answers))
    ratio = top_ratio(rows, answers)
    return 1 if ratio is not None and ratio > ALLOWED_RATIO else 0


def read_rows(path: pathlib.Path) -> list[GoldenRow]:
    try:
        return [parse_row(json.loads(line)) for line in path.read_text().splitlines()]
    except (OSError, ValueError, KeyError) as error:
        raise CompareError(f"cannot read golden rows from {path}: {error!r}") from error


def parse_row(row: dict) -> GoldenRow:
    prompt, greedy = row["ids"], row["greedy"]
    expected = [Expected(entry["pos"], token, logprob, True) for entry in row["positions"] for token, logprob in entry["top"]]
    for step, token in enumerate(greedy["ids"]):
        position = len(prompt) - 1 + step
        expected.append(Expected(position, token, greedy["logprob"][step], False))
        expected.append(Expected(position, greedy["runner_up"][step], greedy["logprob"][step] - greedy["margin"][step], False))
    # The last token of the continuation is never fed: nothing is recorded after it.
    return GoldenRow(row["name"], prompt + greedy["ids"][:-1], expected)


def _check_model(model: pathlib.Path, meta: pathlib.Path) -> None:
    if not model.is_file():
        raise CompareError(f"{model} is missing: run deploy/setup.sh model")
    known = json.loads(meta.read_text())["models"]
    if cache.sha256_of(model) not in known.values():
        raise CompareError(f"{model} is none of the files that {meta.parent} was made from; --any-model compares all the same")


# ---- the two sides ----

Answers = list[dict[tuple[int, int], float]]  # for each row {(position, token): logprob}


def _ask_llama(rows: list[GoldenRow], model: str, threads: int) -> Answers:
    try:
        with llama_logits.LlamaLogits(model, threads) as llama:
            return [llama.logprobs(row.ids, row.wanted()) for row in rows]
    except llama_logits.LlamaError as error:
        raise CompareError(str(error)) from error


def _ask_kvasir(rows: list[GoldenRow], command: servers.ServerCommand) -> Answers:
    """One request for each recorded logprob. A completion says the raw logprob of the token that it sampled, and a bias
    makes any token the sampled one; the prefix cache makes the prompts cheap."""
    try:
        with servers.start(programs.with_share, command) as server, \
                concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            answers = []
            for row in rows:
                pairs = [(position, token) for position, tokens in row.wanted().items() for token in tokens]
                values = pool.map(lambda pair, ids=row.ids: _forced_logprob(server, ids[:pair[0] + 1], pair[1]), pairs)
                answers.append(dict(zip(pairs, values)))
            return answers
    except servers.ServerError as error:
        raise CompareError(str(error)) from error


def _forced_logprob(server: servers.Server, prompt: list[int], token: int) -> float:
    answer = server.complete(prompt, 1, logit_bias={str(token): FORCING_BIAS}, logprobs=0, return_token_ids=True)
    choice = answer["choices"][0]
    if choice["token_ids"] != [token]:
        raise CompareError(f"kvasir sampled {choice['token_ids']} in spite of the bias for {token}")
    return choice["logprobs"]["token_logprobs"][0]


# ---- the report ----


def differences(row: GoldenRow, answer: dict[tuple[int, int], float], in_top: bool) -> list[float]:
    return [abs(answer[entry.position, entry.token] - entry.logprob) for entry in row.expected if entry.in_top == in_top]


def top_ratio(rows: list[GoldenRow], answers: dict[str, Answers]) -> float | None:
    """kvasir's mean difference over llama.cpp's on the recorded top 20; None without kvasir."""
    if "kvasir" not in answers:
        return None
    ours, theirs = (_mean(_all(rows, answers[name], True)) for name in ("kvasir", "llama.cpp"))
    return ours / theirs


def report(rows: list[GoldenRow], answers: dict[str, Answers]) -> str:
    names = list(answers)
    lines = ["mean (worst) absolute difference in logprob over the recorded top 20 of each position",
             f"{'row':20}" + "".join(f"{name:>20}" for name in names)]
    for index, row in enumerate(rows):
        shown = [_shown(differences(row, answers[name][index], True)) for name in names]
        lines.append(f"{row.name:20}" + "".join(f"{text:>20}" for text in shown))
    counts = []
    for title, in_top in (("all rows, top 20", True), ("all rows, steps", False)):
        values = [_all(rows, answers[name], in_top) for name in names]
        counts.append(len(values[0]))
        lines.append(f"{title:20}" + "".join(f"{_shown(group):>20}" for group in values))
    both = [_all(rows, answers[name], True) + _all(rows, answers[name], False) for name in names]
    lines.append(f"{'both':20}" + "".join(f"{_shown(group):>20}" for group in both))
    lines.append(f"{counts[0]} logprobs in the top 20, {counts[1]} of steps (the token and the runner-up)")
    if (ratio := top_ratio(rows, answers)) is not None:
        lines.append(f"top 20: kvasir's mean is {ratio:.3f} of llama.cpp's, at most {ALLOWED_RATIO} is allowed: "
                     f"{'yes' if ratio <= ALLOWED_RATIO else 'NO'}")
    return "\n".join(lines)


def _all(rows: list[GoldenRow], answers: Answers, in_top: bool) -> list[float]:
    return [value for row, answer in zip(rows, answers) for value in differences(row, answer, in_top)]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _shown(values: list[float]) -> str:
    return f"{_mean(values):.4f} ({max(values):.3f})" if values else "-"


def _details(rows: list[GoldenRow], answers: dict[str, Answers]) -> list[dict]:
    return [{"name": row.name, "ids_sha256": hashlib.sha256(json.dumps(row.ids).encode()).hexdigest(),
             "logprobs": [dataclasses.asdict(entry) | {name: answers[name][index][entry.position, entry.token] for name in answers}
                          for entry in row.expected]}
            for index, row in enumerate(rows)]

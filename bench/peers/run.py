#!/usr/bin/env python3
"""Peers: the same work by kvasir, llama.cpp and OpenVINO GenAI on this machine in the same minutes, as one table.

    bench/peers/run.py install                   peers and models into ~/.cache/kvasir (5 to 15 minutes, 4.5 GB), once
    bench/peers/run.py run                       measure and print the table; raw figures go to build/peers/results.json
    bench/peers/run.py run --only 'decode-*,load' --rounds 3 --out build/peers/decode.json
    bench/peers/run.py table FILE...             print saved results again; a later file's rows replace an earlier one's
    bench/peers/run.py rows                      names of the rows
    bench/peers/run.py logprobs                  how far llama.cpp and kvasir are from the golden logprobs (see logprobs.py)
    bench/peers/run.py self-test                 tests of the tool itself, with made-up programs

Nothing else may run while it measures. In each round every program does a group of rows once, in turn, and who goes
first alternates; figures are medians over rounds. llama.cpp comes as source in a package (llama-cpp-python), OpenVINO and
one model as packages too, all from the index that pip is configured for. Only Python's standard library is needed here;
OpenVINO runs in its own virtual environment. ik_llama.cpp is not built: rows.py has older figures of it, scaled.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import sys
import time
import unittest

import cache
import logprobs
import programs
import report
import rows

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_OUT = ROOT / "build" / "peers" / "results.json"
DEFAULT_KVASIR = ROOT / "build" / "release" / "bin" / "kvasir"


def main() -> int:
    arguments = read_arguments()
    try:
        return arguments.command(arguments)
    except (cache.InstallError, programs.MeasureError, logprobs.CompareError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    install = commands.add_parser("install", help="peers and models into the cache")
    install.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="compilers at once")
    install.set_defaults(command=run_install)

    run = commands.add_parser("run", help="measure side by side")
    run.add_argument("--kvasir", default=str(DEFAULT_KVASIR), help="the binary to measure")
    run.add_argument("--kvasir-argument", action="append", default=[], metavar="ARGUMENT",
                     help="passed on to kvasir's bench and serve, e.g. --kvasir-argument=--isa=avx2; may be repeated")
    run.add_argument("--threads", type=int, default=2)
    run.add_argument("--rounds", type=int, default=5)
    run.add_argument("--only", default="*", metavar="ROWS", help="names or patterns of rows, separated by commas")
    run.add_argument("--programs", default=",".join(rows.PROGRAMS), help="some of %(default)s")
    run.add_argument("--out", type=pathlib.Path, default=DEFAULT_OUT, help="raw figures; written after every measurement")
    run.set_defaults(command=run_measurements)

    table = commands.add_parser("table", help="print saved results again")
    table.add_argument("files", nargs="*", type=pathlib.Path, default=[DEFAULT_OUT])
    table.set_defaults(command=run_table)

    names = commands.add_parser("rows", help="names of the rows")
    names.set_defaults(command=run_rows)

    logprobs.add_arguments(commands.add_parser("logprobs", help="distance from the golden logprobs"), DEFAULT_KVASIR)

    test = commands.add_parser("self-test", help="tests of this tool")
    test.set_defaults(command=run_self_test)
    return parser.parse_args()


def run_install(arguments: argparse.Namespace) -> int:
    for path in cache.install(arguments.jobs):
        print(path)
    return 0


def run_self_test(_: argparse.Namespace) -> int:
    suite = unittest.defaultTestLoader.discover(str(pathlib.Path(__file__).parent))
    return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


def run_rows(_: argparse.Namespace) -> int:
    for row in rows.ROWS:
        print(f"{row.name:22} {row.title}: {report.target_of(row)}")
    return 0


def run_table(arguments: argparse.Namespace) -> int:
    results = []
    for file in arguments.files:
        try:
            results.append(json.loads(file.read_text()))
        except (OSError, ValueError) as error:
            raise ValueError(f"cannot read results from {file}: {error}") from error
    print(report.full_report(results))
    return 0


def run_measurements(arguments: argparse.Namespace) -> int:
    chosen = rows.select(arguments.only)
    wanted = [name.strip() for name in arguments.programs.split(",")]
    if unknown := set(wanted) - set(rows.PROGRAMS):
        raise ValueError(f"no program is called {', '.join(sorted(unknown))}; there are {', '.join(rows.PROGRAMS)}")
    if arguments.rounds < 1 or arguments.threads < 1:
        raise ValueError("--rounds and --threads must be at least 1")
    groups = rows.groups_of(chosen)
    context = programs.Context(arguments.kvasir, arguments.threads, arguments.kvasir_argument)
    for name in wanted:
        programs.check_installed(context, name)
    for group in groups:
        cache.model(group.model)
    result = {"format": 1, "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
              "machine": describe_machine(),
              "settings": {"threads": arguments.threads, "rounds": arguments.rounds, "kvasir_arguments": arguments.kvasir_argument,
                           "share_raised": programs.share_is_permitted()},
              "measurements": [], "failures": []}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for round_index in range(arguments.rounds):
        for group in groups:
            if not (group.once and round_index > 0):
                measure_group(context, group, [p for p in group.programs if p in wanted], round_index, result, arguments.out)
    print(report.full_report([result]))
    print(f"\nraw figures: {arguments.out}")
    return 1 if result["failures"] else 0


def measure_group(context: programs.Context, group: rows.Group, names: list[str], round_index: int, result: dict,
                  out: pathlib.Path) -> None:
    """Each program once. What fails is noted, and the others go on."""
    for name in names if round_index % 2 == 0 else reversed(names):
        entry = {"round": round_index, "program": name, "model": group.model, "kind": group.kind}
        load_average, begin = os.getloadavg()[0], time.monotonic()
        try:
            figures = programs.measure(context, name, group)
        except (programs.MeasureError, cache.InstallError) as error:
            result["failures"].append(entry | {"message": str(error)})
            print(f"round {round_index + 1}, {name}, {group.model}, {group.kind}: FAILED: {error}", file=sys.stderr, flush=True)
        else:
            seconds = round(time.monotonic() - begin, 2)
            result["measurements"].append(entry | {"load_average": load_average, "seconds": seconds, "figures": figures})
            shown = ", ".join(f"{key} {value:,.1f}" for key, value in figures.items())
            print(f"round {round_index + 1}, {name}, {group.model}: {shown} ({seconds:.0f} s)", file=sys.stderr, flush=True)
        out.write_text(json.dumps(result, indent=1) + "\n")


def describe_machine() -> dict:
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    cpu = next((line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")), "unknown CPU")
    governor = pathlib.Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {"cpu": cpu, "cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
            "governor": governor.read_text().strip() if governor.is_file() else "unknown",
            "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE")}


if __name__ == "__main__":
    sys.exit(main())

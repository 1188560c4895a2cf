"""From raw measurements to the table: medians with their spread, the older peer's scaled figures, ratios, and whether a
row reached what it must. Pure functions of saved results, so that a table can be printed again."""

from __future__ import annotations

import dataclasses
import statistics

import rows

PEERS = ("llama.cpp", "ik_llama.cpp", "openvino")
HEADINGS = ("row", "kvasir", "llama.cpp", "ratio", "ik_llama.cpp*", "ratio", "OpenVINO", "ratio", "target", "reached")
LEGEND = (f"Medians, with lowest..highest in brackets. The ratio is kvasir's figure over the peer's (for seconds and MiB: the "
          f"peer's over kvasir's), so more than 1 is better everywhere.\n* {rows.EARLIER_ORIGIN}.")


@dataclasses.dataclass(frozen=True)
class Figure:
    """A median of several measurements, or one scaled number."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: list[float]) -> Figure | None:
        return Figure(statistics.median(values), min(values), max(values), len(values)) if values else None


def figures_of(row: rows.Row, measurements: list[dict]) -> dict[str, Figure]:
    """The row's figure of each program that was measured, the scaled one included."""
    found = {}
    for program in rows.PROGRAMS:
        values = [m["figures"][row.metric] for m in measurements
                  if m["program"] == program and m["model"] == row.group.model and m["kind"] == row.group.kind
                  and row.metric in m["figures"]]
        if figure := Figure.of(values):
            found[program] = figure
    if row.name in rows.EARLIER and "llama.cpp" in found:
        then_ik, then_llama = rows.EARLIER[row.name]
        scaled = then_ik * found["llama.cpp"].median / then_llama
        found["ik_llama.cpp"] = Figure(scaled, scaled, scaled, 0)
    return found


def ratio_of(row: rows.Row, figures: dict[str, Figure], peer: str) -> float | None:
    """More than 1: kvasir is better. None where one side has no figure, or a figure is not positive."""
    if "kvasir" not in figures or peer not in figures:
        return None
    ours, theirs = figures["kvasir"].median, figures[peer].median
    if ours <= 0 or theirs <= 0:
        return None
    return ours / theirs if row.at_most is None else theirs / ours


def verdict(row: rows.Row, figures: dict[str, Figure]) -> str:
    """`yes`, `no`, or `?` where what was measured does not decide it."""
    if "kvasir" not in figures:
        return "?"
    if row.at_most is not None:
        return "yes" if figures["kvasir"].median <= row.at_most else "no"
    met = []
    for peer, factor in row.at_least:
        ratio = ratio_of(row, figures, peer)
        met.append(None if ratio is None else ratio > factor if factor == 1.0 else ratio >= factor)
    return "no" if False in met else "?" if None in met else "yes"


def target_of(row: rows.Row) -> str:
    if row.at_most is not None:
        return f"<= {row.at_most:g} {row.unit}"
    names = {"llama.cpp": "llama.cpp", "ik_llama.cpp": "ik", "openvino": "OpenVINO"}
    return ", ".join(f"ahead of {names[peer]}" if factor == 1.0 else f"{factor:g}x {names[peer]}" for peer, factor in row.at_least)


def cells_of(row: rows.Row, measurements: list[dict]) -> list[str]:
    figures = figures_of(row, measurements)
    cells = [row.title if row.unit in row.title else f"{row.title}, {row.unit}", _shown(figures.get("kvasir"))]
    for peer in PEERS:
        ratio = ratio_of(row, figures, peer)
        cells += [_shown(figures.get(peer)), "" if ratio is None else f"{ratio:.2f}"]
    return [*cells, target_of(row), verdict(row, figures)]


def merge(results: list[dict]) -> list[tuple[rows.Row, list[dict]]]:
    """Rows that have a figure, each with the measurements of the last result that has some for it: a later run of a few
    rows replaces an earlier one, and never mixes with it."""
    merged = []
    for row in rows.ROWS:
        for result in reversed(results):
            if figures_of(row, result["measurements"]):
                merged.append((row, result["measurements"]))
                break
    return merged


def as_text(lines: list[list[str]]) -> str:
    """Columns padded to their widest cell."""
    table = [list(HEADINGS), *lines]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADINGS))]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in table]
    return "\n".join([texts[0], "-" * len(texts[0]), *texts[1:]])


def as_markdown(lines: list[list[str]]) -> str:
    table = [list(HEADINGS), ["---"] * len(HEADINGS), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in table)


def full_report(results: list[dict]) -> str:
    """Machine and settings of each result, the table as text and as markdown, and what failed."""
    lines = [cells_of(row, measurements) for row, measurements in merge(results)]
    heads = [describe(result) for result in results]
    failures = [f"failed in round {f['round']}: {f['program']} on {f['model']}: {f['message']}"
                for result in results for f in result.get("failures", [])]
    return "\n\n".join([*heads, as_text(lines), as_markdown(lines), LEGEND, *failures])


def describe(result: dict) -> str:
    machine, settings = result["machine"], result["settings"]
    return "\n".join([
        f"{result['started']}: {machine['cpu']}, {machine['cpus']} CPUs, {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"governor {machine['governor']}",
        f"{settings['threads']} threads, {settings['rounds']} rounds, one program at a time, in turn in each round; CPU share "
        f"{'raised' if settings['share_raised'] else 'not raised (not permitted)'}; load average before a measurement "
        f"{_load(result['measurements'])}",
        f"OPENBLAS_CORETYPE={machine['openblas_coretype'] or 'unset'}: of no effect, for no program here uses OpenBLAS "
        f"(llama.cpp is built without BLAS, OpenVINO brings its own kernels)",
    ])


def _load(measurements: list[dict]) -> str:
    loads = sorted(m["load_average"] for m in measurements)
    return f"{loads[0]:.1f}..{loads[-1]:.1f}" if loads else "unknown"


def _shown(figure: Figure | None) -> str:
    if figure is None:
        return ""
    digits = 0 if abs(figure.median) >= 100 else 1 if abs(figure.median) >= 10 else 2
    text = f"{figure.median:,.{digits}f}"
    return text if figure.count < 2 else f"{text} ({figure.low:,.{digits}f}..{figure.high:,.{digits}f})"

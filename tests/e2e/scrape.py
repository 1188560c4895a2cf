"""One GET /metrics, parsed by Prometheus' own client: values by name and labels, and how much they moved since another."""

import os
import pathlib
import shutil

from prometheus_client.parser import text_string_to_metric_families

MODEL_LABELS = {"model_name", "engine"}


class Scrape:
    def __init__(self, daemon):
        self.text = daemon.http.get("/metrics").text
        self.families = list(text_string_to_metric_families(self.text))
        self.values: dict[tuple[str, frozenset], float] = {}
        for family in self.families:
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.values, f"{key} stands there twice"
                self.values[key] = sample.value

    def value(self, name: str, **labels) -> float:
        """The sum of the samples that have these labels; 0 when there is none, as before the first of its kind."""
        wanted = set(labels.items())
        return sum(value for (each, its), value in self.values.items() if each == name and wanted <= its)

    def moved(self, before: "Scrape", name: str, label: str) -> dict[str, float]:
        """By the values of one label, how much the samples of a counter went up; those that stood still are left out."""
        values = {dict(its)[label] for (each, its) in self.values if each == name and label in dict(its)}
        moves = {v: self.value(name, **{label: v}) - before.value(name, **{label: v}) for v in values}
        return {v: move for v, move in moves.items() if move}

    def counts(self, before: "Scrape", *names: str) -> list[float]:
        """How many more observations each of these histograms has."""
        return [self.value(name + "_count") - before.value(name + "_count") for name in names]


def promtool() -> str | None:
    """Prometheus' checker: on the path, or where tests/run.sh has put it."""
    cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    fetched = pathlib.Path(cache) / "kvasir" / "promtool"
    return str(fetched) if fetched.is_file() else shutil.which("promtool")


def native_part(text: str) -> str:
    """Without the families under names of others, which keep rules of their own."""
    kept, inside = [], True
    for line in text.splitlines(keepends=True):
        if line.startswith("# HELP "):
            inside = ":" not in line.split()[2]
        if inside:
            kept.append(line)
    return "".join(kept)

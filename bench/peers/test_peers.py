"""The peers tool without its peers: commands and their output, the table's arithmetic and verdicts, and whole runs with
made-up programs in a cache of their own. Nothing here measures. `run.py self-test` runs it, and so does pytest."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import logprobs  # noqa: E402
import programs  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
PREFILL, ONE, EIGHT = rows.Workload("prefill", 512), rows.Workload("decode", 128, 128, 1), rows.Workload("decode", 128, 128, 8)
MODEL = rows.SMOLLM2 % "Q4_1"


def row_named(name: str) -> rows.Row:
    return next(row for row in rows.ROWS if row.name == name)


def measured(program: str, metric: str, *values: float, kind: str = "rates", model: str = MODEL) -> list[dict]:
    return [{"program": program, "model": model, "kind": kind, "figures": {metric: value}, "load_average": 0.0} for value in values]


class Rows(unittest.TestCase):
    def test_names_are_unique_and_earlier_figures_belong_to_rows(self):
        names = [row.name for row in rows.ROWS]
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual(set(rows.EARLIER), set(names))

    def test_every_rate_row_is_work_that_its_group_does(self):
        for row in rows.ROWS:
            if row.group.kind == "rates":
                self.assertIn(row.metric, [workload.key for workload in row.group.workloads], row.name)
                for peer, _ in row.at_least:
                    known = peer in row.group.programs or row.name in rows.EARLIER
                    self.assertTrue(known, f"{row.name} is never compared with {peer}")

    def test_a_pattern_picks_rows_and_one_without_a_row_is_refused(self):
        self.assertEqual([row.name for row in rows.select("load, decode-1")], ["decode-1", "load"])
        with self.assertRaisesRegex(ValueError, "no row matches 'decod'"):
            rows.select("load,decod")

    def test_a_group_does_only_what_the_rows_ask_for(self):
        (group,) = rows.groups_of(rows.select("decode-1,decode-8"))
        self.assertEqual(group.workloads, (ONE, EIGHT))


class Commands(unittest.TestCase):
    def test_kvasir_gets_prefill_once_and_each_shape_of_streams_in_its_own_process(self):
        long = rows.Workload("decode", 4000, 32, 8)
        context = programs.Context("kvasir", 3, ["--isa=avx2"])
        commands = list(programs.kvasir_commands(context, "m", (PREFILL, ONE, EIGHT, long)))
        self.assertEqual([command[command.index("--workload") + 1] for command, _ in commands],
                         ["prefill:512,decode:1,decode:8", "decode:8"])
        self.assertEqual([command[command.index("--prompt-tokens") + 1] for command, _ in commands], ["128", "4000"])
        self.assertTrue(all("--isa=avx2" in command and "3" in command for command, _ in commands))

    def test_kvasir_without_streams_is_asked_for_prefill_alone(self):
        ((command, group),) = programs.kvasir_commands(programs.Context("kvasir", 2), "m", (PREFILL,))
        self.assertEqual(command[command.index("--workload") + 1], "prefill:512")
        self.assertNotIn("--prompt-tokens", command)
        self.assertEqual(group, [PREFILL])

    def test_llama_measures_one_stream_in_both_of_its_ways(self):
        commands = list(programs.llama_commands(2, "m", (PREFILL, ONE, EIGHT)))
        self.assertEqual([pathlib.Path(command[0]).name for command, _, _ in commands],
                         ["llama-bench", "llama-bench", "llama-batched-bench"])
        batched = commands[-1][0]
        self.assertEqual(batched[batched.index("-npl") + 1], "1,8")
        # 256 tokens and one more for each of 8 streams, in steps of 256.
        self.assertEqual(batched[batched.index("-c") + 1], str(8 * 512))
        self.assertNotIn("-pps", batched)


class Reading(unittest.TestCase):
    def test_kvasir_results_are_found_by_kind_and_size_among_unknown_fields(self):
        output = json.dumps({"machine": {"cpu": "x"}, "new": 1, "results": [
            {"workload": "prefill", "prompt_tokens": 64, "sequences": 1, "tokens_per_second": 1.0},
            {"workload": "prefill", "prompt_tokens": 512, "sequences": 1, "tokens_per_second": 2.0, "percent_of_bound": 60},
            {"workload": "mixed", "prompt_tokens": 512, "sequences": 8, "tokens_per_second": 3.0},
            {"workload": "decode", "prompt_tokens": 128, "sequences": 8, "tokens_per_second": 4.0}]})
        self.assertEqual(programs.read_kvasir(output, [PREFILL, EIGHT]), {"prefill:512": 2.0, "decode:8@128+128": 4.0})
        with self.assertRaisesRegex(programs.MeasureError, "no figure for decode:1@128"):
            programs.read_kvasir(output, [ONE])

    def test_output_that_is_no_result_is_an_error_not_a_figure(self):
        for output in ("", "[]", "{}", '{"results": [{"workload": "prefill"}]}', '{"results": 3}'):
            with self.assertRaises(programs.MeasureError, msg=output):
                programs.read_kvasir(output, [PREFILL])
        for output in ("", "[]", "[{}]", "{}"):
            with self.assertRaises(programs.MeasureError, msg=output):
                programs.read_llama_bench(output, [PREFILL])
        with self.assertRaises(programs.MeasureError):
            programs.read_llama_batched_bench("no room for 8 streams\n", [EIGHT])

    def test_batched_bench_lines_are_found_among_others_and_only_of_the_shape_asked_for(self):
        output = ('warming {up}\n{"pp": 64, "tg": 128, "pl": 8, "speed_tg": 1.0}\n'
                  '{"pp": 128, "tg": 128, "pl": 8, "speed_tg": 266.5, "speed_pp": 9}\nllama_perf: 1\n')
        self.assertEqual(programs.read_llama_batched_bench(output, [EIGHT]), {EIGHT.key: 266.5})


class Table(unittest.TestCase):
    def test_ratios_are_of_medians_and_the_older_peer_is_scaled(self):
        row = row_named("prefill-512")
        figures = report.figures_of(row, measured("kvasir", "prefill:512", 5000, 9000, 5200)
                                    + measured("llama.cpp", "prefill:512", 914, 900, 1000)
                                    + measured("openvino", "prefill:512", 2600))
        self.assertEqual(figures["kvasir"], report.Figure(5200, 5000, 9000, 3))
        self.assertAlmostEqual(figures["ik_llama.cpp"].median, 2664 * 914 / 457)
        self.assertAlmostEqual(report.ratio_of(row, figures, "openvino"), 2.0)

    def test_a_verdict_needs_every_target_and_one_miss_is_enough_for_no(self):
        row = row_named("decode-1")  # 2.2 x llama.cpp, and 1.25 x ik, which is 2.197 x llama.cpp
        key = row.metric

        def verdict(*groups: list[dict]) -> str:
            return report.verdict(row, report.figures_of(row, [m for group in groups for m in group]))

        self.assertEqual(verdict(measured("kvasir", key, 221), measured("llama.cpp", key, 100)), "yes")
        self.assertEqual(verdict(measured("kvasir", key, 219), measured("llama.cpp", key, 100)), "no")
        self.assertEqual(verdict(measured("kvasir", key, 221)), "?")
        self.assertEqual(verdict(measured("llama.cpp", key, 100)), "?")

    def test_one_target_missed_outweighs_another_unmeasured(self):
        row = row_named("prefill-512")
        figures = report.figures_of(row, measured("kvasir", row.metric, 9) + measured("llama.cpp", row.metric, 1))
        self.assertEqual(report.verdict(row, figures), "no")  # ik's 5.8 x 1.7 is missed, OpenVINO was not run

    def test_ahead_means_more_than_equal(self):
        row = row_named("q8_0-decode-8")
        for ours, expected in ((100.0, "no"), (100.1, "yes")):
            found = [entry for program, value in (("kvasir", ours), ("llama.cpp", 100.0))
                     for entry in measured(program, row.metric, value, model=row.group.model)]
            self.assertEqual(report.verdict(row, report.figures_of(row, found)), expected)

    def test_a_bound_is_met_from_below_and_its_ratio_is_turned_round(self):
        row = row_named("load")
        for ours, expected in ((1.0, "yes"), (1.01, "no")):
            figures = report.figures_of(row, measured("kvasir", "ready_s", ours, kind="load")
                                        + measured("llama.cpp", "ready_s", 2.0, kind="load"))
            self.assertEqual(report.verdict(row, figures), expected)
            self.assertAlmostEqual(report.ratio_of(row, figures, "llama.cpp"), 2.0 / ours)

    def test_another_model_or_kind_never_lends_its_figure(self):
        row = row_named("prefill-512")
        self.assertEqual(report.figures_of(row, measured("kvasir", row.metric, 1, model=rows.QWEN)), {})
        self.assertEqual(report.figures_of(row, measured("kvasir", row.metric, 1, kind="load")), {})

    def test_a_later_result_replaces_only_the_rows_that_it_has(self):
        old = {"measurements": measured("kvasir", PREFILL.key, 1) + measured("kvasir", ONE.key, 1)}
        new = {"measurements": measured("kvasir", ONE.key, 2)}
        merged = {row.name: figures for row, found in report.merge([old, new]) for figures in [report.figures_of(row, found)]}
        self.assertEqual((merged["prefill-512"]["kvasir"].median, merged["decode-1"]["kvasir"].median), (1, 2))
        self.assertEqual(merged["decode-1"]["kvasir"].count, 1)

    def test_text_and_markdown_have_all_cells(self):
        cells = report.cells_of(row_named("load"), measured("kvasir", "ready_s", 0.5, 0.7, 0.6, kind="load"))
        self.assertEqual(len(cells), len(report.HEADINGS))
        self.assertIn("0.60 (0.50..0.70)", report.as_text([cells]))
        self.assertEqual([line.count("|") for line in report.as_markdown([cells]).splitlines()], [11, 11, 11])


class Logprobs(unittest.TestCase):
    ROW = {"name": "r", "ids": [5, 6], "positions": [{"pos": 0, "lse": 1, "top": [[7, -0.5], [8, -1.5]]}],
           "greedy": {"ids": [9, 10], "logprob": [-0.25, -0.5], "margin": [1.0, 2.0], "runner_up": [11, 12]}}

    def test_a_row_knows_what_to_feed_and_what_was_recorded_where(self):
        row = logprobs.parse_row(self.ROW)
        self.assertEqual(row.ids, [5, 6, 9])
        self.assertEqual(row.wanted(), {0: [7, 8], 1: [9, 11], 2: [10, 12]})
        steps = [entry for entry in row.expected if not entry.in_top]
        self.assertEqual([(entry.token, entry.logprob) for entry in steps], [(9, -0.25), (11, -1.25), (10, -0.5), (12, -2.5)])

    def test_only_the_top_decides_the_ratio(self):
        row = logprobs.parse_row(self.ROW)
        exact = {(entry.position, entry.token): entry.logprob for entry in row.expected}
        theirs = {key: value + 0.5 for key, value in exact.items()}
        ours = exact | {(0, 7): -1.0, (1, 9): -90.0}
        answers = {"llama.cpp": [theirs], "kvasir": [ours]}
        self.assertAlmostEqual(logprobs.top_ratio([row], answers), 0.5)
        self.assertIn("0.500 of llama.cpp's", logprobs.report([row], answers))
        self.assertIsNone(logprobs.top_ratio([row], {"llama.cpp": [theirs]}))

    def test_the_golden_rows_of_the_repository_are_read_whole(self):
        found = logprobs.read_rows(logprobs.GOLDEN / "smollm2-logits.jsonl")
        self.assertEqual(sum(entry.in_top for row in found for entry in row.expected), 94 * 20)
        self.assertEqual(sum(not entry.in_top for row in found for entry in row.expected), 14 * 48 * 2)


STAND_INS = {
    "kvasir": """import json, sys
if "bench" not in sys.argv: sys.exit("no server here")
results = []
for work in sys.argv[sys.argv.index("--workload") + 1].split(","):
    kind, size = work.split(":")
    sizes = {"prompt_tokens": int(size), "sequences": 1} if kind == "prefill" else {"prompt_tokens": 128, "sequences": int(size)}
    results.append({"workload": kind, "tokens_per_second": 5000.0} | sizes)
print(json.dumps({"machine": {}, "results": results}))""",
    "llama-bench": """import json
print(json.dumps([{"avg_ts": 400.0}]))""",
    "llama-batched-bench": """import json, sys
for streams in sys.argv[sys.argv.index("-npl") + 1].split(","):
    print(json.dumps({"pp": 128, "tg": 128, "pl": int(streams), "speed_tg": 250.0}))""",
    "llama-quantize": "",
    "llama-server": "",
}


class WholeRuns(unittest.TestCase):
    """run.py as a process, its cache filled with stand-ins."""

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.cache = pathlib.Path(self._folder.name)
        self.out = self.cache / "out" / "results.json"
        bin_folder = self.cache / "kvasir" / "peers" / "llama.cpp-build" / "bin"
        bin_folder.mkdir(parents=True)
        for name, code in STAND_INS.items():
            self.stand_in(bin_folder / name, code)
        self.kvasir = bin_folder / "kvasir"
        (self.cache / "kvasir" / "models").mkdir()
        (self.cache / "kvasir" / "models" / MODEL).touch()

    def stand_in(self, path: pathlib.Path, code: str) -> None:
        path.write_text(f"#!{sys.executable}\n{code}\n")
        path.chmod(0o755)

    def run_tool(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, str(FOLDER / "run.py"), *arguments], capture_output=True, text=True, check=False,
                              env=os.environ | {"XDG_CACHE_HOME": str(self.cache)})

    def measure(self, *arguments: str) -> subprocess.CompletedProcess:
        return self.run_tool("run", "--kvasir", str(self.kvasir), "--programs", "kvasir,llama.cpp", "--out", str(self.out),
                             *arguments)

    def test_programs_take_turns_and_the_first_alternates(self):
        done = self.measure("--rounds", "3", "--only", "decode-8,decode-1")
        self.assertEqual(done.returncode, 0, done.stderr)
        order = [(m["round"], m["program"]) for m in json.loads(self.out.read_text())["measurements"]]
        self.assertEqual(order, [(0, "kvasir"), (0, "llama.cpp"), (1, "llama.cpp"), (1, "kvasir"), (2, "kvasir"), (2, "llama.cpp")])

    def test_a_saved_result_prints_the_same_table_again(self):
        done = self.measure("--rounds", "2", "--only", "decode-8,decode-1")
        # One stream of llama.cpp: its better figure, 400, not the 250 of its other program.
        self.assertRegex(done.stdout, r"decode, 1 stream, tok/s +5,000 \(5,000\.\.5,000\) +400 \(400\.\.400\) +12\.50 .* yes")
        self.assertRegex(done.stdout, r"decode, 8 streams, tok/s +5,000 .* 250 \(250\.\.250\) +20\.00 .* yes")
        again = self.run_tool("table", str(self.out))
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(again.stdout.strip(), done.stdout.rpartition("\n\nraw figures:")[0].strip())

    def test_a_program_that_fails_is_reported_and_the_other_goes_on(self):
        self.stand_in(self.kvasir, "import sys; sys.exit('kernel of sand')")
        done = self.measure("--rounds", "1", "--only", "decode-8")
        self.assertEqual(done.returncode, 1)
        self.assertIn("kernel of sand", done.stdout)
        self.assertRegex(done.stdout, r"decode, 8 streams, tok/s +250 .* \?")

    def test_peak_memory_is_measured_in_the_first_round_only_and_a_server_that_ends_says_why(self):
        done = self.measure("--rounds", "3", "--only", "memory,load", "--programs", "kvasir")
        self.assertEqual(done.returncode, 1)
        failures = json.loads(self.out.read_text())["failures"]
        self.assertEqual([(f["round"], f["kind"]) for f in failures], [(0, "load"), (0, "memory"), (1, "load"), (2, "load")])
        self.assertTrue(all("no server here" in f["message"] for f in failures))

    def test_what_is_missing_is_said_before_anything_is_measured(self):
        done = self.measure("--only", "decode-8,q8_0-*")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"Q8_0\.gguf is missing: run bench/peers/run\.py install")
        self.assertFalse(self.out.exists())
        self.assertRegex(self.measure("--programs", "kvasir,openvino").stderr, r"openvino/bin/python is missing: run ")
        self.assertRegex(self.measure("--kvasir", "nowhere/kvasir").stderr, r"nowhere/kvasir is no program")

    def test_wrong_options_are_refused_by_name(self):
        for arguments, message in ((["--only", "none"], "no row matches 'none'"), (["--rounds", "0"], "at least 1"),
                                   (["--programs", "vllm"], "no program is called vllm")):
            done = self.measure(*arguments)
            self.assertEqual((done.returncode, message in done.stderr), (1, True), done.stderr)


if __name__ == "__main__":
    unittest.main()

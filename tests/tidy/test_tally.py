"""The counting itself: a miscount would make every other verdict worthless."""

import pathlib
import subprocess
import sys

from sources import ROOT

TALLY = ROOT / "tests/support/tally.py"

CATCH = """<?xml version="1.0"?><Catch name="p"><Group name="p">
<TestCase name="good / with a slash"><Section name="a"><OverallResults successes="1" failures="0"/></Section>
<OverallResult success="true"/></TestCase>
<TestCase name="noisy"><Warning>3 rows</Warning><OverallResult success="true"/></TestCase>
<TestCase name="left out"><Warning>skipped: no model</Warning><OverallResult success="true"/></TestCase>
<TestCase name="bad"><Expression success="false"><Original>x</Original></Expression><OverallResult success="false"/></TestCase>
%s</Group></Catch>"""


def tally(folder: pathlib.Path) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, str(TALLY), str(folder)], capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


def test_cases_are_counted_by_verdict_and_skips_have_reasons(tmp_path):
    (tmp_path / "p.catch.xml").write_text(CATCH % "")
    (tmp_path / "p.exit").write_text("1")
    (tmp_path / "q.junit.xml").write_text(
        '<testsuites><testsuite><testcase classname="a" name="x"/><testcase classname="a" name="y"><failure/></testcase>'
        '<testcase classname="a" name="z"><skipped message="why"/></testcase></testsuite></testsuites>')
    (tmp_path / "r.shell").write_text("passed one\nskipped two: no engine\n")
    code, lines = tally(tmp_path)
    assert lines[-1] == "4 passed, 2 failed, 3 skipped"
    assert code == 1
    assert "skipped: p: left out (no model)" in lines
    assert "skipped: r: two (no engine)" in lines


def test_a_program_that_dies_has_failed_even_when_its_cases_had_passed(tmp_path):
    whole = CATCH.replace('<TestCase name="bad">', "").split("<Expression")[0]
    (tmp_path / "p.catch.xml").write_text(whole + '<TestCase name="dies"><Section name="s">')
    (tmp_path / "p.exit").write_text("134")
    code, lines = tally(tmp_path)
    assert lines[-1] == "2 passed, 1 failed, 1 skipped"
    assert code == 1
    (tmp_path / "p.catch.xml").write_text('<Catch><TestCase name="fine"><OverallResult success="true"/></TestCase></Catch>')
    assert tally(tmp_path)[1][-1] == "1 passed, 1 failed, 0 skipped"


def test_an_empty_result_is_a_failure(tmp_path):
    (tmp_path / "p.catch.xml").write_text("")
    (tmp_path / "p.exit").write_text("127")
    assert tally(tmp_path)[1][-1] == "0 passed, 1 failed, 0 skipped"
    (tmp_path / "p.catch.xml").unlink()
    (tmp_path / "p.exit").unlink()
    assert tally(tmp_path) == (1, ["0 passed, 0 failed, 0 skipped"])

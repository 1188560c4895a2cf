#!/usr/bin/env python3
"""Counts test cases over Catch2's XML, pytest's JUnit XML and shell tests, and says what was not run and why.

    tally.py FOLDER     reads FOLDER/*.catch.xml, *.junit.xml and *.shell; the last line is "N passed, N failed, N skipped"

Catch2's XML reporter is read and not its JUnit one, which reports sections instead of cases and drops what a test says
about itself. Version 2 of Catch2 cannot skip, so a case that warns "skipped: REASON" and checks nothing counts as
skipped. A program that died has a `.exit` file with its exit code beside its XML: the case it was in counts as failed.
A shell result file has one line for each case: "passed NAME", "failed NAME" or "skipped NAME: REASON".
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def _reason(case: ElementTree.Element) -> str | None:
    """The reason of a Catch2 case that says it was skipped."""
    for node in list(case.iter("Warning")) + list(case.iter("Skip")):
        text = (node.text or "").strip()
        if node.tag == "Skip" or text.startswith("skipped:"):
            return text.removeprefix("skipped:").strip() or "no reason given"
    return None


def _catch_case(case: ElementTree.Element) -> tuple[str, str]:
    result = case.find("OverallResult")
    if result is None or result.get("success") != "true":
        return "failed", ""
    reason = _reason(case)
    return ("skipped", reason) if reason is not None else ("passed", "")


def catch_cases(path: pathlib.Path):
    """(program: case, verdict, reason) of each case; a program that ended badly yields at least one failure."""
    program = path.name.removesuffix(".catch.xml")
    exit_file = path.with_name(program + ".exit")
    exit_code = int(exit_file.read_text()) if exit_file.exists() else 0
    failures = 0
    started = None
    try:
        for event, node in ElementTree.iterparse(path, events=("start", "end")):
            if node.tag != "TestCase":
                continue
            if event == "start":
                started = node.get("name")
                continue
            verdict, reason = _catch_case(node)
            failures += verdict == "failed"
            yield f"{program}: {started}", verdict, reason
            started = None
    except ElementTree.ParseError:
        exit_code = exit_code or 1
    if started is not None:
        failures += 1
        yield f"{program}: {started}", "failed", f"the program ended in it (exit code {exit_code})"
    if exit_code != 0 and failures == 0:
        yield f"{program}", "failed", f"exit code {exit_code} without a failed case"


def junit_cases(path: pathlib.Path):
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            yield name, "failed", ""
        elif skipped is not None:
            yield name, "skipped", skipped.get("message") or "no reason given"
        else:
            yield name, "passed", ""


def shell_cases(path: pathlib.Path):
    for line in path.read_text().splitlines():
        verdict, _, rest = line.partition(" ")
        name, _, reason = rest.partition(": ") if verdict == "skipped" else (rest, "", "")
        yield f"{path.name.removesuffix('.shell')}: {name}", verdict, reason


READERS = {".catch.xml": catch_cases, ".junit.xml": junit_cases, ".shell": shell_cases}


def all_cases(folder: pathlib.Path):
    for path in sorted(folder.rglob("*")):
        for suffix, reader in READERS.items():
            if path.name.endswith(suffix):
                yield from reader(path)


def main() -> int:
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    told = {"failed": [], "skipped": []}
    for name, verdict, reason in all_cases(pathlib.Path(sys.argv[1])):
        counts[verdict] += 1
        if verdict in told:
            told[verdict].append(f"{verdict}: {name}" + (f" ({reason})" if reason else ""))
    for lines in (told["skipped"], told["failed"]):
        for line in lines:
            print(line)
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())

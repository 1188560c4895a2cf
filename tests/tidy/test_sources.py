"""Rules that hold over all tracked files: time and chance only where listed, sizes, names of places, scripts."""

import os
import re
import subprocess

import pytest

from sources import ROOT, code_of, cpp_files, name_of, read, tracked_files

# Where the machine's clocks are read, and why. Everyone else is given a Clock or a time.
CLOCKS = re.compile(r"\b(steady_clock|system_clock|high_resolution_clock|clock_gettime|gettimeofday|localtime\w*|gmtime\w*|"
                    r"sleep_for|sleep_until|usleep|nanosleep|sigtimedwait)\b|\bstd::time\s*\(")
CLOCK_FILES = {
    "core/clock.h": "SteadyClock is the one way to the monotonic clock",
    "server/wall_time.cpp": "`created` and the local time of templates",
    "server/generate_service.cpp": "the local time that a template may ask for",
    "server/grpc/": "deadlines come as times of the system clock",
    "server/metrics_state.cpp": "the CPU seconds of the process",
    "cli/serve.cpp": "the wait for a drain",
    "cli/engine_stack.cpp": "`created` of the served model",
}
THREADS = re.compile(r"\bstd::(thread|jthread|async)\b|\bpthread_create\b")
THREAD_FILES = {
    "runtime/worker_team.cpp": "the compute workers",
    "cli/signals.h": "the thread that takes signals, whatever the main thread waits for",
    "cli/signals.cpp": "the same",
    "engine/engine_thread.h": "the one thread that owns the engine",
    "server/http/": "the threads of the REST door",
    "server/grpc/": "the threads that feed gRPC streams",
}
CHANCE = re.compile(r"\brandom_device\b|\bstd::rand\b|\bmt19937\b|\bgetrandom\b")
CHANCE_FILES = {
    "server/": "seeds of requests without one, and ids of answers",
}
MAX_LINES = 600
LONG_FILES: dict[str, str] = {}
# Places that only one machine has, and hosts that only some networks reach; written in two parts so that this file passes.
PLACES = ["../" + "shared", "/wor" + "k/"]
HOSTS = ["pypi" + ".org", "deb.debian" + ".org", "gh" + "cr.io", "files.python" + "hosted", "proxy.gol" + "ang"]


def _is_listed(name: str, listed: dict[str, str]) -> bool:
    return any(name == entry or (entry.endswith("/") and name.startswith(entry)) for entry in listed)


@pytest.mark.parametrize("pattern, listed", [(CLOCKS, CLOCK_FILES), (THREADS, THREAD_FILES), (CHANCE, CHANCE_FILES)],
                         ids=["clocks", "threads", "chance"])
def test_time_threads_and_chance_are_only_where_listed(pattern, listed):
    users = {name_of(file): pattern.search(code_of(file)) for file in cpp_files()}
    wrong = [f"{name}: {match.group(0)}" for name, match in users.items() if match and not _is_listed(name, listed)]
    assert not wrong, "\n".join(wrong)
    used = [name for name, match in users.items() if match]
    unneeded = [entry for entry in listed if not any(_is_listed(name, {entry: ""}) for name in used)]
    assert not unneeded, f"listed without need: {unneeded}"


def test_no_file_grows_past_one_sitting():
    long = {name_of(file): read(file).count("\n") for file in tracked_files()
            if file.suffix in {".h", ".cpp", ".py", ".rs", ".sh"} and read(file).count("\n") > MAX_LINES}
    assert set(long) <= set(LONG_FILES), f"more than {MAX_LINES} lines: {long}; split it, or list it with a reason"


def test_no_tracked_file_names_a_place_of_one_machine_or_a_registry():
    wrong = []
    for file in tracked_files():
        for word in PLACES + HOSTS:
            if word in read(file):
                wrong.append(f"{name_of(file)} has {word!r}")
    assert not wrong, "\n".join(wrong)


def test_every_folder_with_sources_is_built():
    """Sources are globbed below each CMakeLists.txt, so a folder of the product needs one at its top."""
    folders = {name_of(file).split("/")[0] for file in cpp_files()}
    tests = {"/".join(name_of(file).split("/")[:2]) for file in tracked_files()
             if file.suffix == ".cpp" and name_of(file).startswith("tests/") and name_of(file).count("/") > 1}
    missing = [folder for folder in folders | (tests - {"tests/support"}) if not (ROOT / folder / "CMakeLists.txt").is_file()]
    assert not missing


def test_shell_scripts_are_executable_and_parse():
    scripts = [file for file in tracked_files() if file.suffix == ".sh" or name_of(file) == ".ci/run"]
    assert scripts
    for script in scripts:
        assert os.access(script, os.X_OK), f"{name_of(script)} is not executable"
        checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_third_party_data_and_libraries_are_named():
    """THIRD_PARTY.md names every folder of golden data and every library that CMake finds."""
    text = read(ROOT / "THIRD_PARTY.md")
    folders = {"/".join(name_of(file).split("/")[:3]) for file in tracked_files()
               if name_of(file).startswith("tests/golden/") and name_of(file).count("/") > 2}
    missing = [folder for folder in sorted(folders) if f"`{folder}`" not in text]
    assert not missing, f"THIRD_PARTY.md does not name {missing}"


def test_adr_files_are_numbered_without_gaps():
    numbers = sorted(int(file.name[:4]) for file in tracked_files() if name_of(file).startswith("docs/adr/"))
    assert numbers == list(range(1, len(numbers) + 1))

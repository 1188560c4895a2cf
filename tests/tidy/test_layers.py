"""Holds the includes to the table of docs/ARCHITECTURE.md, and libraries to the folders that may know them."""

import re

from sources import ROOT, SOURCE_FOLDERS, cpp_files, includes_of, name_of, read, tracked_files

# Generated from proto/; and the libraries that only some folders may know, by the start of the include.
PROTO = ("kvasir/", "google/", "grpc/")
LIBRARIES = {
    "boost/": ("server/http/",),
    "nlohmann/": ("server/", "text/", "cli/"),
    "grpcpp/": ("server/grpc/",),
    "CLI/": ("config/", "cli/"),
    "toml++/": ("config/",),
    "prometheus/": ("server/metrics",),
    "spdlog/": ("server/", "cli/"),
    "immintrin.h": ("runtime/kernels/", "runtime/worker_team.cpp"),  # the latter for its pause
    "cblas.h": ("runtime/kernels/",),
}
# What the pure layers must not know: threads, locks, files, terminals.
IMPURE_HEADERS = {"thread", "mutex", "shared_mutex", "condition_variable", "future", "fstream", "iostream", "filesystem",
                  "random", "ctime", "unistd.h", "stdio.h"}
PURE_FOLDERS = ("core", "kvcache", "scheduler")
# core/check prints before it aborts; the arena of kv_storage asks the system for memory.
IMPURE_ALLOWED: dict[str, set[str]] = {}


def allowed_folders() -> dict[str, set[str]]:
    """Folder to the folders that it may include, as the table "| folder | may include |" has it."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", read(ROOT / "docs/ARCHITECTURE.md"), re.MULTILINE)
    table = {folder: set(re.findall(r"`(\w+)`", others)) for folder, others in rows if folder in SOURCE_FOLDERS}
    assert set(table) == set(SOURCE_FOLDERS), "docs/ARCHITECTURE.md must have one row for each source folder"
    return table


def test_the_table_has_no_circle():
    table = allowed_folders()
    done: list[str] = []
    while len(done) < len(table):
        ready = [folder for folder in table if folder not in done and table[folder] <= set(done)]
        assert ready, f"a circle among {sorted(set(table) - set(done))}"
        done += ready


def test_every_include_follows_the_layers():
    table = allowed_folders()
    wrong = []
    for file in cpp_files():
        folder = name_of(file).split("/")[0]
        for include in includes_of(file):
            other = include.split("/")[0]
            if other in table and "/" in include and other != folder and other not in table[folder]:
                wrong.append(f"{name_of(file)} includes {include}")
    assert not wrong, "\n".join(wrong)


def test_scheduler_and_runtime_do_not_know_each_other():
    table = allowed_folders()
    assert "runtime" not in table["scheduler"] and "scheduler" not in table["runtime"]


def test_the_engine_knows_only_the_seam_of_the_runtime():
    wrong = [f"{name_of(file)} includes {include}" for file in cpp_files("engine") for include in includes_of(file)
             if include.startswith("runtime/") and include not in {"runtime/executor.h", "runtime/batch.h"}]
    assert not wrong, "\n".join(wrong)


def test_libraries_stay_in_their_folders():
    wrong = []
    for file in cpp_files():
        for include in includes_of(file):
            for library, folders in LIBRARIES.items():
                if include.startswith(library) and not name_of(file).startswith(folders):
                    wrong.append(f"{name_of(file)} includes {include}")
            if include.startswith(PROTO) and not name_of(file).startswith("server/grpc/"):
                wrong.append(f"{name_of(file)} includes {include}")
    assert not wrong, "\n".join(wrong)


def test_pure_layers_have_no_threads_files_or_clocks():
    wrong = []
    for file in cpp_files(*PURE_FOLDERS):
        for include in includes_of(file):
            if include in IMPURE_HEADERS and include not in IMPURE_ALLOWED.get(name_of(file), set()):
                wrong.append(f"{name_of(file)} includes <{include}>")
    assert not wrong, "\n".join(wrong)


def test_files_of_one_instruction_set_include_no_shared_inline_functions():
    """An inline function of a shared header compiled for AVX-512 may be the copy that the linker keeps."""
    # The last has constants and functions that exist while compiling only (consteval).
    allowed = ("runtime/kernels/kernel_table.h", "runtime/kernels/isa_tables.h", "runtime/kernels/panel_format.h")
    # Fragments are compiled once for each set, inside an anonymous namespace of that file.
    fragments = "runtime/kernels/shared/"
    wrong = []
    for file in cpp_files("runtime"):
        folder = name_of(file).rpartition("/")[0]
        if not re.match(r"runtime/kernels/avx", folder):
            continue
        for include in includes_of(file):
            own = include.startswith((folder + "/", fragments)) or include in allowed
            # AVX-VNNI is AVX2 with other dot products: it compiles the same fragments for itself.
            if folder.endswith("/avxvnni") and re.match(r"runtime/kernels/avx2/\w+\.inc$", include):
                own = True
            if "/" in include and not own:
                wrong.append(f"{name_of(file)} includes {include}")
    for file in tracked_files():
        if name_of(file).startswith(fragments):
            wrong += [f"{name_of(file)} includes {include}" for include in includes_of(file)]
            assert file.suffix == ".inc", f"{name_of(file)} is no fragment"
    assert not wrong, "\n".join(wrong)


def test_headers_are_guarded_and_say_what_they_are_for():
    wrong = []
    for file in cpp_files():
        # A .cpp with a header of its own may leave the words to that.
        if not read(file).startswith(("//", "/*")) and not file.with_suffix(".h").is_file():
            wrong.append(f"{name_of(file)} does not open with a comment")
        # A header that C can read has the older guard.
        if file.suffix == ".h" and not re.search(r"#pragma once|#ifndef \w+_H\b", read(file)):
            wrong.append(f"{name_of(file)} has no guard")
    assert not wrong, "\n".join(wrong)

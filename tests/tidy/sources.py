"""The files of the project as the tidy tests see them."""

import functools
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE_FOLDERS = ["core", "config", "kvcache", "scheduler", "runtime", "engine", "text", "server", "cli"]
SKIPPED_FOLDERS = {"build", ".git", "target", "__pycache__", ".venv", ".cache"}


@functools.cache
def tracked_files() -> list[pathlib.Path]:
    """What git tracks; in a release tarball everything but build output."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
        return [file for file in files if file.is_file()]
    return [file for file in ROOT.rglob("*") if file.is_file() and not SKIPPED_FOLDERS & set(file.relative_to(ROOT).parts)]


@functools.cache
def read(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def name_of(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def cpp_files(*folders: str) -> list[pathlib.Path]:
    """C++ files below the folders; by default all of the product's, tests left out."""
    wanted = set(folders or SOURCE_FOLDERS)
    return [file for file in tracked_files() if file.suffix in {".h", ".cpp"} and name_of(file).split("/")[0] in wanted]


_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def code_of(path: pathlib.Path) -> str:
    """The file without comments and string literals; #include lines are lost with them, see includes_of."""
    return _COMMENT_OR_STRING.sub(" ", read(path))


def includes_of(path: pathlib.Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', read(path), re.MULTILINE)

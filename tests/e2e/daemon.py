"""The real binary under test: starts it on free ports, asks it for its state, stops it and judges how it ended."""

import contextlib
import json
import os
import pathlib
import signal
import ssl
import subprocess
import tempfile
import time

import grpc
import httpx

from stubs import pb, pb_grpc

SOURCE_DIR = pathlib.Path(__file__).resolve().parents[2]
START_SECONDS = 120  # a sanitizer build on a busy machine
SETTLE_SECONDS = 30  # within it every state that is polled for must be reached


def binary_path() -> str:
    return os.environ.get("KVASIR_BIN", str(SOURCE_DIR / "build" / "release" / "bin" / "kvasir"))


def model_path() -> str:
    cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    default = os.path.join(cache, "kvasir", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
    return os.environ.get("KVASIR_TEST_MODEL", default)


def eventually(condition, what: str, seconds: float = SETTLE_SECONDS):
    """Polls until the condition holds and returns what it gave; fails with the last value otherwise."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what}; last value {value!r}"
        time.sleep(0.01)


class Daemon:
    """One running `kvasir serve`. Flags are given as keywords: kv_budget="8MiB" becomes --kv-budget 8MiB.

    Two are no flags: api_key is what the test itself asks with, where --api-key-file wants a key, and trusted is the
    file of the certificate that it trusts, where the daemon speaks TLS.
    """

    def __init__(self, api_key: str | None = None, trusted: str | None = None, **flags):
        self.folder = tempfile.TemporaryDirectory(prefix="kvasir-e2e-")
        ready_file = os.path.join(self.folder.name, "ready.json")
        self.log_path = os.path.join(self.folder.name, "log")
        options = {"model": model_path(), "http_port": 0, "grpc_port": 0, "threads": 2, "kv_budget": "256MiB",
                   "served_model_name": "smollm2", "ready_file": ready_file} | flags
        command = [binary_path(), "serve"]
        for name, value in options.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        # No KVASIR_* of the caller's may change what is tested.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVASIR_")}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            eventually(lambda: self.process.poll() is not None or os.path.exists(ready_file), "ready file",
                       START_SECONDS)
            assert self.process.poll() is None, f"exit code {self.process.returncode} at start: {self.log()}"
            ready = json.loads(pathlib.Path(ready_file).read_text())
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        assert ready["pid"] == self.process.pid
        self.exit_code = 0  # that stop() expects
        self.http_port, self.grpc_port = ready["http_port"], ready["grpc_port"]
        self.trusted = trusted
        self.url = f"{'https' if trusted else 'http'}://127.0.0.1:{self.http_port}"
        self.channel = self.new_channel(use_local_subchannel_pool=0)
        self.stub = pb_grpc.InferenceStub(self.channel)
        authorization = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.metadata = list(authorization.items())
        verify = ssl.create_default_context(cafile=trusted) if trusted else True
        self.http = httpx.Client(base_url=self.url, timeout=120, headers=authorization, verify=verify)
        self.context_tokens = self.status().context_tokens

    def new_channel(self, **options) -> grpc.Channel:
        """A connection of its own: channels with equal options share one."""
        settings = [("grpc." + k, v) for k, v in ({"use_local_subchannel_pool": 1} | options).items()]
        address = f"127.0.0.1:{self.grpc_port}"
        if self.trusted is None:
            return grpc.insecure_channel(address, options=settings)
        credentials = grpc.ssl_channel_credentials(pathlib.Path(self.trusted).read_bytes())
        return grpc.secure_channel(address, credentials, options=settings)

    def log(self) -> str:
        return pathlib.Path(self.log_path).read_text(errors="replace")

    def status(self):
        return self.stub.GetStatus(pb.GetStatusRequest(), timeout=60, metadata=self.metadata)

    def metric(self, name: str, **labels) -> float:
        """The sum of the samples of /metrics that have these labels."""
        wanted = [f'{k}="{v}"' for k, v in labels.items()]
        samples = [line.rpartition(" ") for line in self.http.get("/metrics").text.splitlines()
                   if line.startswith((name + "{", name + " "))]
        found = [float(value) for series, _, value in samples if all(w in series for w in wanted)]
        assert found, f"no sample of {name} with {labels}"
        return sum(found)

    def tokenize(self, text: str) -> list[int]:
        return list(self.stub.Tokenize(pb.TokenizeRequest(prompt=text, add_special_tokens=False),
                                       metadata=self.metadata).tokens)

    def expect_short_answers(self):
        """128 answers of one token: the forecast of an answer's length is then next to nothing."""
        self.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], n=128, max_tokens=1), metadata=self.metadata)

    def num_fds(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def num_threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def is_idle(self) -> bool:
        status = self.status()
        return status.running_sequences == 0 and status.waiting_sequences == 0 and status.live_blocks == 0

    def wait_idle(self):
        eventually(self.is_idle, "no running or waiting sequence and no live block")
        status = self.status()
        assert status.free_blocks == status.total_blocks

    @contextlib.contextmanager
    def unharmed(self):
        """What holds after every bad input: same process, alive, blocks and file descriptors back at idle."""
        self.wait_idle()
        self.http.get("/livez")  # its connection may stay open and is no leak
        num_fds, num_threads = self.num_fds(), self.num_threads()
        yield
        assert self.process.poll() is None, f"the daemon died: {self.log()[-4000:]}"
        livez = httpx.get(self.url + "/livez", timeout=10)
        assert livez.status_code == 200
        self.wait_idle()
        eventually(lambda: self.num_fds() <= num_fds, f"file descriptors back at {num_fds}")
        # gRPC keeps a few threads of its own and adds to them under load; requests must not leave any behind.
        assert self.num_threads() <= num_threads + 16

    def stop(self):
        """SIGTERM must end it cleanly: the right exit code, nothing from a sanitizer in the log."""
        self.channel.close()
        self.http.close()
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                try:
                    self.process.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
                    raise AssertionError(f"no exit within 60 s of SIGTERM: {self.log()[-4000:]}") from None
            log = self.log()
            assert self.process.returncode == self.exit_code, f"exit code {self.process.returncode}: {log[-4000:]}"
            for mark in ("AddressSanitizer", "LeakSanitizer", "ThreadSanitizer", "runtime error:", "check failed"):
                assert mark not in log, log[-8000:]
        finally:
            self.folder.cleanup()

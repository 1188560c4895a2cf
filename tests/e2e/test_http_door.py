"""The REST door's sockets, TLS, keys and cross-origin rules, with the real binary and what it needs from the process:
signals, file limits, files of sockets, memory."""

import contextlib
import json
import os
import pathlib
import resource
import signal
import socket
import ssl
import stat
import subprocess
import time

import httpx
import openai
import pytest

from daemon import SETTLE_SECONDS, START_SECONDS, binary_path, eventually, model_path

KEY = "sk-test-key-of-the-door"
COMPLETION = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}


def make_pair(folder: pathlib.Path, name: str):
    """A self-signed certificate for 127.0.0.1, by the openssl command; returns its serial number."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
                    "-keyout", folder / "new-key.pem", "-out", folder / "new-cert.pem"],
                   check=True, capture_output=True)
    os.chmod(folder / "new-key.pem", 0o600)
    os.replace(folder / "new-key.pem", folder / "key.pem")
    os.replace(folder / "new-cert.pem", folder / "cert.pem")
    return ssl.PEM_cert_to_DER_cert((folder / "cert.pem").read_text())


class Door:
    """One running daemon of which only the REST door is asked."""

    def __init__(self, folder: pathlib.Path, soft_file_limit: int = 0, **flags):
        ready_file = folder / "ready.json"
        self.log_path = folder / "log"
        options = {"model": model_path(), "http_port": 0, "grpc_port": 0, "threads": 2, "kv_budget": "64MiB",
                   "served_model_name": "smollm2", "ready_file": ready_file} | flags
        command = [binary_path(), "serve"]
        for name, value in options.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVASIR_")}

        def limit_files():
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft_file_limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment,
                                            preexec_fn=limit_files if soft_file_limit else None)
        try:
            eventually(lambda: self.process.poll() is not None or ready_file.exists(), "ready file", START_SECONDS)
            assert self.process.poll() is None, f"exit code {self.process.returncode} at start: {self.log()}"
            self.port = json.loads(ready_file.read_text())["http_port"]
        except BaseException:
            self.kill()
            raise

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def rss_bytes(self) -> int:
        return int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"no exit within 60 s of SIGTERM: {self.log()[-4000:]}") from None
        assert self.process.returncode == 0, f"exit code {self.process.returncode}: {self.log()[-4000:]}"
        for mark in ("AddressSanitizer", "LeakSanitizer", "ThreadSanitizer", "runtime error:", "check failed"):
            assert mark not in self.log(), self.log()[-8000:]


@pytest.fixture
def start_door(tmp_path):
    running = []

    def start(**flags) -> Door:
        running.append(Door(tmp_path, **flags))
        return running[-1]

    yield start
    for each in running:
        each.stop()


def text_of(client: httpx.Client) -> str:
    answer = client.post("/v1/completions", json=COMPLETION)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def streamed_text_of(client: httpx.Client) -> str:
    text = ""
    with client.stream("POST", "/v1/completions", json=COMPLETION | {"stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
    return text


def test_tls_and_a_unix_socket_give_the_same_answers_and_sighup_shows_the_new_certificate(start_door, tmp_path):
    first = make_pair(tmp_path, "first")
    path = str(tmp_path / "http.socket")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as stale:  # of a run that was killed
        stale.bind(path)
    door = start_door(tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem", http_socket=path)
    url = f"https://127.0.0.1:{door.port}"

    def shown():
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", door.port)))

    assert shown() == first
    mode = os.stat(path).st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o660
    trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with httpx.Client(base_url=url, verify=trusting, timeout=120,
                      limits=httpx.Limits(keepalive_expiry=None)) as over_tls, \
            httpx.Client(base_url="http://kvasir", timeout=120,
                         transport=httpx.HTTPTransport(uds=path)) as over_unix:
        text = text_of(over_tls)
        assert text and text_of(over_unix) == text
        assert streamed_text_of(over_tls) == text and streamed_text_of(over_unix) == text
        second = make_pair(tmp_path, "second")
        assert shown() == first, "read again without being told"
        door.process.send_signal(signal.SIGHUP)
        eventually(lambda: shown() == second, "the new certificate")
        assert text_of(over_tls) == text, "the open connection must go on"
        (tmp_path / "key.pem").write_text("no key")
        door.process.send_signal(signal.SIGHUP)
        eventually(lambda: "key.pem" in door.log(), "a line about the bad key")
        assert shown() == second
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{door.port}/livez", timeout=10)
    with contextlib.closing(socket.create_connection(("127.0.0.1", door.port), timeout=10)) as old, \
            pytest.raises((ssl.SSLError, OSError)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.wrap_socket(old)
    door.stop()
    assert not os.path.exists(path)


def test_keys_are_asked_for_where_work_is_done(start_door, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"# the test's\n{KEY}\n")
    keys.chmod(0o600)
    door = start_door(api_key_file=keys, cors_origins="http://app.test")
    url = f"http://127.0.0.1:{door.port}"
    with openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0, timeout=120) as client:
        assert client.models.list().data[0].id == "smollm2"
        assert client.completions.create(**COMPLETION).choices[0].text
    for key in ("wrong", KEY[:-1], KEY + "x"):
        with openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=120) as client, \
                pytest.raises(openai.AuthenticationError) as refused:
            client.completions.create(**COMPLETION)
        assert refused.value.code == "invalid_api_key"
    for path in ("/livez", "/readyz", "/health", "/metrics", "/version"):
        assert httpx.get(url + path, timeout=10).status_code == 200
    assert KEY not in door.log()
    # A page's browser asks without the key, and then with it.
    ask = {"Origin": "http://app.test", "Access-Control-Request-Method": "POST"}
    preflight = httpx.options(url + "/v1/chat/completions", headers=ask, timeout=10)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "http://app.test"
    refused = httpx.post(url + "/v1/completions", headers={"Origin": "http://app.test"}, json=COMPLETION, timeout=10)
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "http://app.test"
    assert refused.headers["www-authenticate"] == "Bearer"


def test_metrics_have_a_listener_of_their_own_if_told_so(start_door):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    door = start_door(metrics_port=port)
    assert httpx.get(f"http://127.0.0.1:{door.port}/metrics", timeout=10).status_code == 404
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10)
    assert metrics.status_code == 200 and "kvasir_http_connections" in metrics.text
    assert httpx.get(f"http://127.0.0.1:{port}/livez", timeout=10).status_code == 404


@pytest.mark.parametrize("judges", [False, pytest.param(True, marks=pytest.mark.all)], ids=["", "figures"])
def test_a_thousand_idle_connections_cost_little_beside_a_stream(start_door, judges):
    """More than the soft limit of files that the daemon is started with, so it must have raised it. The figures are judged
    only where the build is known to be a release: a sanitizer's memory is not the daemon's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2500:
        pytest.skip(f"the hard limit of open files is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2500), hard))
    door = start_door(soft_file_limit=256)
    url = f"http://127.0.0.1:{door.port}"
    with httpx.Client(base_url=url, timeout=120) as client, contextlib.ExitStack() as idle:
        text = text_of(client)
        before = door.rss_bytes()
        sockets = []
        for i in range(1000):
            sockets.append(idle.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", door.port)))))
            if i % 2 == 0:  # one that was used, and one that never says a word
                sockets[-1].sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                assert sockets[-1].recv(4096).startswith(b"HTTP/1.1 200")
        with client.stream("POST", "/v1/completions", json=COMPLETION | {"stream": True, "max_tokens": 200}) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            each = (door.rss_bytes() - before) / len(sockets)
            worst = 0.0
            with httpx.Client(base_url=url, timeout=120) as other:
                for _ in range(20):
                    begin = time.monotonic()
                    assert other.get("/livez").status_code == 200
                    worst = max(worst, time.monotonic() - begin)
            print(f"{each:.0f} bytes of resident memory for each idle connection; "
                  f"{worst * 1e3:.1f} ms at most to answer beside them")
            assert not judges or (each < 8 << 10 and worst < 0.1)
        assert text_of(client) == text
    eventually(lambda: len(os.listdir(f"/proc/{door.process.pid}/fd")) < 100, "descriptors given back", SETTLE_SECONDS)

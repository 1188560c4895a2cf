"""nginx in front of both doors, by the example in deploy/nginx.conf: streams, kept connections, smuggling, clients that leave.

nginx listens on Unix sockets in a folder of the test's own, so that no port can be taken by another; kvasir is behind it
on its free ports. Everything else of the example is as it stands there.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess

import grpc
import httpx
import openai
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

import answers
import prompts
from daemon import SOURCE_DIR, eventually
from stubs import pb, pb_grpc

_FETCHED = pathlib.Path(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))) / "kvasir" / "nginx"
NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin") or (
    str(_FETCHED) if _FETCHED.exists() else None)
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed (tests/support/fetch_program.sh)")

# One process, so that no other user is needed, and every file in the test's folder. Compression holds back what it gets
# until it has enough of it, unless the answer forbids that: it stands for all that may be switched on around the example.
MAIN_CONF = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log info;
events {{ worker_connections 512; }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  gzip on;
  gzip_min_length 0;
  gzip_types text/event-stream;
  include {folder}/kvasir.conf;
}}
"""


class Nginx:
    def __init__(self, daemon, folder):
        self.folder = folder
        self.rest_socket, self.grpc_socket = str(folder / "rest"), str(folder / "grpc")
        conf = (SOURCE_DIR / "deploy" / "nginx.conf").read_text()
        for pattern, address in ((r"listen 8000\b", f"listen unix:{self.rest_socket}"),
                                 (r"listen 50050\b", f"listen unix:{self.grpc_socket}"),
                                 (r"127\.0\.0\.1:8080\b", f"127.0.0.1:{daemon.http_port}"),
                                 (r"127\.0\.0\.1:50051\b", f"127.0.0.1:{daemon.grpc_port}")):
            conf, count = re.subn(pattern, address, conf)
            assert count == 1, f"{pattern} is {count} times in the example"
        (folder / "kvasir.conf").write_text(conf)
        (folder / "nginx.conf").write_text(MAIN_CONF.format(folder=folder))
        self.process = subprocess.Popen([NGINX, "-e", folder / "error.log", "-p", folder, "-c", folder / "nginx.conf"])
        eventually(lambda: self.process.poll() is not None or self._listens(), "nginx listens")
        assert self.process.poll() is None, (folder / "error.log").read_text()
        self.http = httpx.Client(transport=httpx.HTTPTransport(uds=self.rest_socket), base_url="http://kvasir", timeout=120)
        self.openai = openai.OpenAI(base_url="http://kvasir/v1", api_key="unused", max_retries=0, http_client=self.http)
        self.channel = grpc.insecure_channel(f"unix:{self.grpc_socket}")
        self.stub = pb_grpc.InferenceStub(self.channel)

    def _listens(self) -> bool:
        try:
            for path in (self.rest_socket, self.grpc_socket):
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(path)
        except OSError:
            return False
        return True

    def connect(self) -> socket.socket:
        raw = socket.socket(socket.AF_UNIX)
        raw.settimeout(60)
        raw.connect(self.rest_socket)
        return raw

    def connections_to(self, port: int) -> set[str]:
        """The inodes of its open TCP connections to a port of this machine: another connection is another inode."""
        lines = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
        to_port = {f"socket:[{fields[9]}]" for fields in lines if fields[2].endswith(f":{port:04X}") and fields[3] == "01"}
        folder = pathlib.Path(f"/proc/{self.process.pid}/fd")
        return to_port & {os.readlink(link) for link in folder.iterdir()}

    def stop(self):
        self.channel.close()
        self.http.close()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def slow_daemon(daemon_with):
    """Steps of 16 tokens: a prompt of 6,000 is computed in 375 of them, in each of which a short one gets its next token."""
    return daemon_with(step_tokens=16)


@pytest.fixture(scope="module")
def nginx(slow_daemon, tmp_path_factory):
    running = Nginx(slow_daemon, tmp_path_factory.mktemp("nginx"))
    yield running
    running.stop()


@pytest.fixture
def long_prompt(slow_daemon, request) -> list[int]:
    return prompts.token_ids(slow_daemon, len(request.node.name), 6000)


def test_answers_are_those_of_the_door_itself(slow_daemon, nginx):
    fields = {"prompt": ["Once upon a time", "The sea is"], "n": 2, "seed": 3, "max_tokens": 12, "logprobs": 2,
              "return_token_ids": True}
    direct = slow_daemon.http.post("/v1/completions", json=fields)
    through = nginx.http.post("/v1/completions", json=fields)
    assert answers.of_completion(direct.json()) == answers.of_completion(through.json())
    assert through.headers["content-type"] == "application/json" and through.headers["x-request-id"]
    refused = nginx.http.post("/v1/completions", json={"prompt": "x", "temperature": 9})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "temperature"
    text = "".join(chunk.choices[0].text for chunk in nginx.openai.completions.create(
        model="smollm2", prompt="The sea is", max_tokens=12, seed=3, stream=True))
    assert text == direct.json()["choices"][2]["text"]


def test_rest_events_arrive_while_the_rest_is_not_computed(slow_daemon, nginx, long_prompt):
    """Two prompts in one stream: the short one's four tokens come while the long one is being read. All of the stream is
    less than any buffer, so a proxy that buffers would give it away only when both are done."""
    before = slow_daemon.status().cancelled_total.client_gone
    fields = {"prompt": [prompts.token_ids(slow_daemon, 1, 3), long_prompt], "max_tokens": 4, "stream": True,
              "ignore_eos": True}
    with nginx.http.stream("POST", "/v1/completions", json=fields) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "content-length" not in response.headers and response.headers["content-encoding"] == "gzip"
        finished = None
        for line in response.iter_lines():
            choices = json.loads(line.removeprefix("data: "))["choices"] if line else []
            assert all(c["index"] == 0 for c in choices)
            finished = next((c["finish_reason"] for c in choices if c["finish_reason"]), None)
            if finished:
                break
        status = slow_daemon.status()
        assert finished == "length" and status.running_sequences == 1, "the long one is not done yet"
    # Closed in the middle: nginx closes behind it, and the work ends.
    slow_daemon.wait_idle()
    eventually(lambda: slow_daemon.status().cancelled_total.client_gone == before + 1, "aborted")


def test_leaving_before_the_answer_aborts_it(slow_daemon, nginx, long_prompt):
    before = slow_daemon.status()
    body = json.dumps({"prompt": long_prompt, "max_tokens": 4}).encode()
    with nginx.connect() as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n" % len(body) + body)
        eventually(lambda: slow_daemon.status().running_sequences == 1, "it runs")
    slow_daemon.wait_idle()
    status = slow_daemon.status()
    assert status.cancelled_total.client_gone == before.cancelled_total.client_gone + 1
    assert status.generation_tokens_total == before.generation_tokens_total


def test_connections_to_kvasir_are_kept_and_used_again(slow_daemon, nginx):
    nginx.http.get("/v1/models")
    kept = nginx.connections_to(slow_daemon.http_port)
    fields = {"prompt": "Once", "max_tokens": 2}
    for _ in range(5):
        assert nginx.http.get("/v1/models").status_code == 200
        assert nginx.http.post("/v1/completions", json=fields).status_code == 200
        assert nginx.http.post("/v1/completions", json={"prompt": ""}).status_code == 400
        assert nginx.http.post("/v1/completions", json=fields | {"stream": True}).text.endswith("data: [DONE]\n\n")
    assert kept and nginx.connections_to(slow_daemon.http_port) == kept


BODY = json.dumps({"prompt": "Once", "max_tokens": 3}).encode()
SMUGGLED = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % len(BODY) + BODY)
FIRST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
SMUGGLING = {
    "length then chunked": FIRST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked then length": FIRST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "length of all": FIRST + b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n" % (5 + len(SMUGGLED)),
    "xchunked": FIRST + b"Transfer-Encoding: xchunked\r\n\r\n",
    "chunked, gzip": FIRST + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
    "identity": FIRST + b"Transfer-Encoding: identity\r\n\r\n",
    "chunked twice": FIRST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "tab before chunked": FIRST + b"Transfer-Encoding:\tchunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "space before colon": FIRST + b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": FIRST + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED),
    "folded": FIRST + b"X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "http 1.0": FIRST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


def read_to_the_end(raw: socket.socket) -> bytes:
    seen = b""
    try:
        while got := raw.recv(65536):
            seen += got
    except ConnectionResetError:
        pass
    return seen


@pytest.mark.parametrize("first", SMUGGLING.values(), ids=SMUGGLING)
@pytest.mark.parametrize("way", ["direct", "nginx"])
def test_a_smuggled_request_is_never_run(slow_daemon, nginx, way, first):
    slow_daemon.wait_idle()
    before = slow_daemon.status()
    raw = nginx.connect() if way == "nginx" else socket.create_connection(("127.0.0.1", slow_daemon.http_port), timeout=60)
    with raw:
        raw.sendall(first + SMUGGLED)
        seen = read_to_the_end(raw)  # ends by itself: the connection is not used on
    assert re.findall(rb"HTTP/1\.[01] (\d{3}) ", seen) in ([b"400"], [b"501"]), seen
    # Another client's request goes through the same kept connections, and gets its own answer.
    models = nginx.http.get("/v1/models")
    assert models.status_code == 200 and models.json()["object"] == "list"
    slow_daemon.wait_idle()
    after = slow_daemon.status()
    assert (after.prompt_tokens_total, after.generation_tokens_total) == (
        before.prompt_tokens_total, before.generation_tokens_total)


def test_a_body_that_is_too_large_is_told_as_clients_read_errors(nginx):
    with pytest.raises(openai.APIStatusError) as error:
        nginx.openai.completions.create(model="smollm2", prompt="x" * (8 << 20), max_tokens=1)
    assert error.value.status_code == 413 and error.value.code == "body_too_large"


def test_metrics_are_not_given_to_clients(slow_daemon, nginx):
    assert nginx.http.get("/metrics").status_code == 404
    assert nginx.http.get("/livez").status_code == 200


def test_grpc_messages_arrive_while_the_rest_is_not_computed(slow_daemon, nginx, long_prompt):
    before = slow_daemon.status().cancelled_total.grpc_cancel
    stream = nginx.stub.CompleteStream(pb.CompleteRequest(
        prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=long_prompt[:1])), pb.Prompt(token_ids=pb.TokenIds(ids=long_prompt))], max_tokens=4, ignore_eos=True))
    for chunk in stream:
        if any(c.finish_reason for c in chunk.choices):
            break
    assert [c.index for c in chunk.choices] == [0] and slow_daemon.status().running_sequences == 1
    stream.cancel()
    slow_daemon.wait_idle()
    eventually(lambda: slow_daemon.status().cancelled_total.grpc_cancel == before + 1, "aborted")


def once_more(call):
    """nginx 1.22 now and then answers 502 to the call that follows one which its client cut short, and tries no second
    connection where there is one server; clients retry UNAVAILABLE."""
    try:
        return call()
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE and "502" in error.details()
        return call()


def test_grpc_answers_details_and_deadlines_come_through(slow_daemon, nginx, long_prompt):
    request = pb.CompleteRequest(prompt=[pb.Prompt(text="Once upon a time")], max_tokens=12, seed=3, n=2)
    assert answers.of_grpc(nginx.stub.Complete(request)) == answers.of_grpc_stream(
        nginx.stub.CompleteStream(request)) == answers.of_grpc(slow_daemon.stub.Complete(request))
    with pytest.raises(grpc.RpcError) as error:
        nginx.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text="x")], temperature=9))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    kinds = [d.type_url.rpartition(".")[2] for d in rpc_status.from_call(error.value).details]
    assert error_details_pb2.BadRequest.DESCRIPTOR.name in kinds
    with pytest.raises(grpc.RpcError) as error:
        nginx.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=long_prompt))], max_tokens=4),
                            timeout=0.5)
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    health = health_pb2_grpc.HealthStub(nginx.channel)
    assert once_more(lambda: health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()
    slow_daemon.wait_idle()


def test_kvasir_that_is_gone_is_told_as_clients_read_errors(start_daemon, tmp_path):
    daemon = start_daemon()
    nginx = Nginx(daemon, tmp_path)
    daemon.process.terminate()
    assert daemon.process.wait(timeout=60) == 0
    with pytest.raises(openai.InternalServerError) as error:
        nginx.openai.models.list()
    assert error.value.status_code == 503 and error.value.type == "service_unavailable_error"
    assert error.value.response.headers["retry-after"] == "5"
    with pytest.raises(grpc.RpcError) as refused:
        nginx.stub.ListModels(pb.ListModelsRequest())
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    nginx.stop()

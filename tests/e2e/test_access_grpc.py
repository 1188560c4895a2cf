"""Who may call the gRPC door and by which way: API keys, TLS, a Unix socket, and what SIGHUP reads again."""

import pathlib
import re
import signal
import socket
import ssl
import stat
import subprocess

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

import prompts
from daemon import SOURCE_DIR, binary_path, eventually
from stubs import pb, pb_grpc

KEY, OTHER_KEY = "sk-first-0123456789", "sk-second-abcdefghi"
SHORT = pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=1, temperature=0)


def bearer(key: str) -> list:
    return [("authorization", f"Bearer {key}")]


@pytest.fixture
def key_file(tmp_path) -> pathlib.Path:
    path = tmp_path / "keys"
    path.write_text(f"# ours\n{KEY}\r\n\n{OTHER_KEY}  \n")
    return path


def make_pair(folder: pathlib.Path, name: str) -> tuple[pathlib.Path, pathlib.Path]:
    """A self-signed certificate for this machine, and its key."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    return certificate, key


def every_method(stub, **options):
    """One function for each method, good and bad messages: the key is judged before what is in them."""
    bad = pb.CompleteRequest(temperature=float("nan"))
    return {"Complete": lambda: stub.Complete(SHORT, **options), "bad Complete": lambda: stub.Complete(bad, **options),
            "CompleteStream": lambda: list(stub.CompleteStream(SHORT, **options)),
            "bad CompleteStream": lambda: list(stub.CompleteStream(bad, **options)),
            "Chat": lambda: stub.Chat(pb.ChatRequest(), **options), "ChatStream": lambda: list(stub.ChatStream(pb.ChatRequest(), **options)),
            "Tokenize": lambda: stub.Tokenize(pb.TokenizeRequest(prompt="x"), **options),
            "Detokenize": lambda: stub.Detokenize(pb.DetokenizeRequest(tokens=[5]), **options),
            "ListModels": lambda: stub.ListModels(pb.ListModelsRequest(), **options),
            "Plan": lambda: stub.Plan(pb.PlanRequest(), **options),
            "GetStatus": lambda: stub.GetStatus(pb.GetStatusRequest(), **options)}


def refusal_of(call) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value


def test_no_method_answers_without_a_key_and_all_do_with_one(start_daemon, key_file):
    daemon = start_daemon(api_key=KEY, api_key_file=key_file)
    wrong = {"none": [], "empty": [("authorization", "")], "Bearer": [("authorization", "Bearer")],
             "no key": [("authorization", "Bearer ")], "prefix": bearer(KEY[:-1]), "longer": bearer(KEY + "x"),
             "two": bearer(KEY) * 2, "two kinds": bearer(KEY) + bearer(OTHER_KEY), "joined": bearer(f"{KEY},Bearer {KEY}"),
             "basic": [("authorization", f"Basic {KEY}")], "bare": [("authorization", KEY)], "x-api-key": [("x-api-key", KEY)],
             "comment": bearer("# ours")}
    with daemon.unharmed():
        before = daemon.status()
        for metadata in wrong.values():
            for name, call in every_method(daemon.stub, metadata=metadata).items():
                error = refusal_of(call)
                assert error.code() == grpc.StatusCode.UNAUTHENTICATED, (name, metadata)
                info = error_details_pb2.ErrorInfo()
                (detail,) = rpc_status.from_call(error).details
                assert detail.Unpack(info) and info.reason == "invalid_api_key"
                assert "sk-" not in error.details()
        assert daemon.status().prompt_tokens_total == before.prompt_tokens_total
    for metadata in (bearer(KEY), bearer(OTHER_KEY), [("authorization", f"bEARER {KEY}")]):
        assert daemon.stub.Complete(SHORT, metadata=metadata).choices
        assert refusal_of(every_method(daemon.stub, metadata=metadata)["bad Complete"]).code() == grpc.StatusCode.INVALID_ARGUMENT
    huge = refusal_of(lambda: daemon.stub.Complete(SHORT, metadata=bearer("k" * (1 << 20))))
    assert huge.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    log = daemon.log()
    assert KEY not in log and OTHER_KEY not in log and KEY[:-1] not in log
    assert "outcome=invalid_api_key" in log


def test_probes_and_reflection_need_no_key(start_daemon, key_file):
    daemon = start_daemon(api_key=KEY, api_key_file=key_file)
    health = health_pb2_grpc.HealthStub(daemon.channel)
    assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()
    assert "kvasir.v1.Inference" in ProtoReflectionDescriptorDatabase(daemon.channel).get_services()


def hang_up(daemon, said: str) -> str:
    """The new part of the log, once it says so."""
    seen = len(daemon.log())
    daemon.process.send_signal(signal.SIGHUP)
    return eventually(lambda: said in daemon.log()[seen:] and daemon.log()[seen:], said)


def test_a_hang_up_reads_the_keys_again_and_a_bad_file_changes_nothing(start_daemon, key_file):
    daemon = start_daemon(api_key=OTHER_KEY, api_key_file=key_file)
    running = daemon.stub.CompleteStream(pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=100, temperature=0,
                                                            ignore_eos=True), metadata=bearer(KEY))
    next(running)
    key_file.write_text(f"sk-third\n{OTHER_KEY}\n")
    hang_up(daemon, "API keys read again")
    assert refusal_of(lambda: daemon.stub.Complete(SHORT, metadata=bearer(KEY))).code() == grpc.StatusCode.UNAUTHENTICATED
    assert daemon.stub.Complete(SHORT, metadata=bearer("sk-third")).choices
    assert len(list(running)) > 0, "a call that runs goes on"
    for bad, said in (("", "holds no key"), ("sk-new\nsk secret\n", "line 2 has a character"), (None, "cannot be read")):
        if bad is None:
            key_file.unlink()
        else:
            key_file.write_text(bad)
        log = hang_up(daemon, "API keys not changed")
        lines = [line for line in log.splitlines() if " request " not in line]  # a call's line may come late
        assert len(lines) == 1 and said in lines[0] and "sk-" not in log
        assert daemon.stub.Complete(SHORT, metadata=bearer("sk-third")).choices
        assert refusal_of(lambda: daemon.stub.Complete(SHORT)).code() == grpc.StatusCode.UNAUTHENTICATED


def test_without_secrets_a_hang_up_changes_nothing(start_daemon):
    daemon = start_daemon()
    hang_up(daemon, "no API keys and no certificate")
    assert daemon.stub.Complete(SHORT).choices


def cached(daemon, prompt: list[int], key: str | None, **fields) -> int:
    request = pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=prompt))], max_tokens=1, temperature=0, **fields)
    return daemon.stub.Complete(request, metadata=bearer(key) if key else []).usage.cached_tokens


def cached_rest(daemon, prompt: list[int], key: str | None, **fields) -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0} | fields
    answer = daemon.http.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_tenants_and_salts_share_no_blocks_and_doors_do(start_daemon, key_file):
    daemon = start_daemon(api_key=KEY, api_key_file=key_file)
    for number, fields in enumerate(({}, {"cache_salt": "a"}, {"cache_salt": "b"})):
        prompt = prompts.token_ids(daemon, 900, 100)
        assert cached(daemon, prompt, KEY, **fields) == 0, (number, "a salt of its own")
        assert cached_rest(daemon, prompt, KEY, **fields) >= 64, "the same tenant at the other door"
        assert cached(daemon, prompt, KEY, **fields) >= 64
        assert cached_rest(daemon, prompt, OTHER_KEY, **fields) == 0, "another tenant"
        assert cached(daemon, prompt, OTHER_KEY, **fields) >= 64


def test_salts_share_no_blocks_without_keys_either(daemon):
    prompt = prompts.token_ids(daemon, 901, 100)
    assert cached(daemon, prompt, None) == 0
    assert cached(daemon, prompt, None, cache_salt="a") == 0
    assert cached_rest(daemon, prompt, None, cache_salt="a") >= 64
    assert cached_rest(daemon, prompt, None) >= 64
    assert cached(daemon, prompt, None, cache_salt="aa") == 0


def shown_certificate(port: int) -> bytes:
    """What a new connection is shown, whoever signed it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain, context.wrap_socket(plain) as tls:
        return tls.getpeercert(binary_form=True)


def bytes_of(certificate: pathlib.Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


def test_tls_shows_the_new_certificate_after_a_hang_up(start_daemon, tmp_path):
    first, second = make_pair(tmp_path, "first"), make_pair(tmp_path, "second")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(pair):
        certificate.write_bytes(pair[0].read_bytes())
        key.write_bytes(pair[1].read_bytes())

    install(first)
    daemon = start_daemon(trusted=str(first[0]), tls_cert=certificate, tls_key=key)
    assert daemon.stub.Complete(SHORT).choices
    assert shown_certificate(daemon.grpc_port) == bytes_of(first[0])
    running = daemon.stub.CompleteStream(pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=100, temperature=0,
                                                            ignore_eos=True))
    next(running)
    install(second)
    hang_up(daemon, "TLS certificate and key read again")
    assert shown_certificate(daemon.grpc_port) == bytes_of(second[0])
    assert len(list(running)) > 0, "an open connection goes on"
    assert daemon.stub.Complete(SHORT).choices
    with pytest.raises(grpc.RpcError):  # a new connection of a client that trusts the first alone
        pb_grpc.InferenceStub(daemon.new_channel()).Complete(SHORT, timeout=5)
    key.write_bytes(first[1].read_bytes())  # no longer the certificate's
    assert "is not the private key of" in hang_up(daemon, "TLS certificate and key not changed")
    assert shown_certificate(daemon.grpc_port) == bytes_of(second[0])
    with pytest.raises(grpc.RpcError):  # in clear
        pb_grpc.InferenceStub(grpc.insecure_channel(f"127.0.0.1:{daemon.grpc_port}")).Complete(SHORT, timeout=5)
    asked = subprocess.run([binary_path(), "healthcheck", "--http-port", str(daemon.http_port), "--tls-cert", str(certificate)],
                           capture_output=True, text=True, timeout=30, check=False)
    assert asked.returncode == 0, asked.stderr


def test_a_unix_socket_serves_beside_the_port_and_goes_at_the_end(start_daemon, tmp_path, key_file):
    path = tmp_path / "kvasir.sock"
    with socket.socket(socket.AF_UNIX) as stale:  # what an earlier run left
        stale.bind(str(path))
    daemon = start_daemon(api_key=KEY, api_key_file=key_file, grpc_socket=path)
    assert stat.S_ISSOCK(path.stat().st_mode) and stat.S_IMODE(path.stat().st_mode) == 0o660
    channel = grpc.insecure_channel(f"unix:{path}")
    stub = pb_grpc.InferenceStub(channel)
    assert stub.Complete(SHORT, metadata=bearer(KEY)).choices
    assert refusal_of(lambda: stub.Complete(SHORT)).code() == grpc.StatusCode.UNAUTHENTICATED
    tiny = SOURCE_DIR / "tests" / "golden" / "tiny" / "llama-gqa.gguf"
    second = subprocess.run([binary_path(), "serve", "--model", tiny, "--http-port", "0", "--grpc-port", "0", "--kv-budget", "1MiB",
                             "--grpc-socket", path], capture_output=True, text=True, timeout=60, check=False)
    assert "another process listens on it" in second.stderr.splitlines()[-1]
    assert second.returncode == 2 and path.exists(), "another daemon's socket is not taken"
    channel.close()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(timeout=60) == 0
    assert not path.exists()


def test_a_host_that_others_reach_without_keys_is_warned_about(start_daemon, key_file):
    assert re.search(r"host 0\.0\.0\.0 may be reached", start_daemon(host="0.0.0.0").log())
    assert "may be reached" not in start_daemon(host="0.0.0.0", api_key=KEY, api_key_file=key_file).log()

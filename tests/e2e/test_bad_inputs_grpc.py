"""Bad calls at the gRPC door: damaged bytes, values out of range (the same verdicts as REST), floods of resets."""

import math
import os
import random
import socket
import struct

import grpc
import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from daemon import eventually
from stubs import pb

METHODS = ["Complete", "CompleteStream", "Chat", "ChatStream", "Tokenize", "Detokenize", "ListModels", "GetStatus", "Plan"]
CODE = grpc.StatusCode


def raw_call(daemon, method: str, message: bytes, channel=None):
    """Sends bytes as the message; returns the status code and the details."""
    channel = channel or daemon.channel
    path = method if method.startswith("/") else f"/kvasir.v1.Inference/{method}"
    kind = channel.unary_stream if method.endswith("Stream") else channel.unary_unary
    call = kind(path, request_serializer=None, response_deserializer=None)
    with pytest.raises(grpc.RpcError) as error:
        result = call(message, timeout=60)
        if method.endswith("Stream"):
            list(result)
    return error.value.code(), error.value.details()


@pytest.mark.parametrize("method", METHODS)
def test_damaged_message_is_invalid_argument(daemon, method):
    """Never UNIMPLEMENTED, which would tell the client that the method does not exist."""
    rng = random.Random(7)
    with daemon.unharmed():
        for message in (b"\xff\xff\xff\xff", b"\x0a\x7fcut", b"\x08", b"\x00\x01", b"\x0b\x0c\x0d"):
            code, text = raw_call(daemon, method, message)
            assert code == CODE.INVALID_ARGUMENT and "kvasir.v1." in text
        for _ in range(20):  # random bytes may be a valid message of unknown fields; then the values are at fault
            channel_call = daemon.channel.unary_stream if method.endswith("Stream") else daemon.channel.unary_unary
            call = channel_call(f"/kvasir.v1.Inference/{method}")
            try:
                result = call(rng.randbytes(40), timeout=60)
                if method.endswith("Stream"):
                    list(result)
            except grpc.RpcError as error:
                assert error.code() == CODE.INVALID_ARGUMENT


@pytest.mark.parametrize("method", ["Complete", "CompleteStream"])
def test_ill_formed_utf8_in_a_string_is_invalid_argument(daemon, method):
    with daemon.unharmed():
        for text in (b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b"\xe4\xb8"):
            prompt = b"\x0a" + bytes([len(text)]) + text
            assert raw_call(daemon, method, b"\x12" + bytes([len(prompt)]) + prompt)[0] == CODE.INVALID_ARGUMENT
            assert raw_call(daemon, method, b"\x0a" + bytes([len(text)]) + text)[0] == CODE.INVALID_ARGUMENT
    # Protobuf has its own way to stderr for this; a client could fill a disk with it.
    assert "libprotobuf" not in daemon.log() and "contains invalid UTF-8" not in daemon.log()


def test_message_of_very_many_fields_is_refused(daemon):
    with daemon.unharmed():
        assert raw_call(daemon, "Complete", b"\x12\x00" * 1_000_000)[0] == CODE.INVALID_ARGUMENT


def test_message_over_the_limit_is_resource_exhausted(daemon):
    with daemon.unharmed():
        message = pb.CompleteRequest(prompt=[pb.Prompt(text="a" * (9 << 20))]).SerializeToString()
        assert raw_call(daemon, "Complete", message)[0] == CODE.RESOURCE_EXHAUSTED
        assert raw_call(daemon, "ChatStream", message)[0] == CODE.RESOURCE_EXHAUSTED


def test_compressed_message_is_never_inflated(daemon):
    with daemon.unharmed():
        channel = daemon.new_channel(default_compression_algorithm=2)  # gzip
        stub = type(daemon.stub)(channel)
        with pytest.raises(grpc.RpcError) as error:
            stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text="a" * (4 << 20))]), timeout=30)
        assert error.value.code() in (CODE.UNIMPLEMENTED, CODE.INVALID_ARGUMENT, CODE.INTERNAL)
        assert "gzip" in error.value.details()
        channel.close()


def test_unknown_method_and_service_are_unimplemented(daemon):
    with daemon.unharmed():
        assert raw_call(daemon, "/kvasir.v1.Inference/Nothing", b"")[0] == CODE.UNIMPLEMENTED
        assert raw_call(daemon, "/kvasir.v2.Inference/Complete", b"")[0] == CODE.UNIMPLEMENTED


def test_metadata_over_the_limit_is_refused(daemon):
    with daemon.unharmed():
        with pytest.raises(grpc.RpcError) as error:
            daemon.stub.ListModels(pb.ListModelsRequest(), metadata=[("x-big", "a" * 40_000)])
        assert error.value.code() == CODE.RESOURCE_EXHAUSTED


# ---- values: the verdicts of the REST door ----

INF, NAN = math.inf, math.nan
SHARED = {
    "max_tokens": [-1, 0, -2**63], "n": [10**9, 0, -1, 129, 2**32 + 1],
    "temperature": [-0.1, 2.1, NAN, INF, -INF, 1e300], "top_p": [-0.1, 1.1, NAN, INF, -INF],
    "min_p": [-0.1, 1.1, NAN, INF], "presence_penalty": [-2.1, 2.1, NAN, INF, -INF],
    "frequency_penalty": [-2.1, 2.1, NAN, INF, -INF], "repetition_penalty": [0.0, -1.0, 10.1, NAN, INF, 1e-300],
    "top_k": [-2, 2**40], "logit_bias": [{49152: 1.0}, {-1: 1.0}, {1: 101.0}, {1: NAN}, {1: INF}, {2**63 - 1: 1.0},
                                         {i: 1.0 for i in range(20_000)}],
    "stop_token_ids": [[49152], [-1], [2**31], [2**63 - 1], [1] * 257], "stop": [[""], ["x"] * 17, ["y" * 2**20]],
    "priority": [2**31, -2**31 - 1], "timeout_ms": [0, -1, 2**62], "min_tokens": [-1, 17], "cache_salt": ["", "x" * 1025],
}
COMPLETE = SHARED | {
    "logprobs": [21, -1, 4294967295, 4294967296, -2**63],
    "prompt": [[], [pb.Prompt()], [pb.Prompt(text="")], [pb.Prompt(token_ids=pb.TokenIds())],
               [pb.Prompt(token_ids=pb.TokenIds(ids=[49152]))], [pb.Prompt(token_ids=pb.TokenIds(ids=[5, -1]))],
               [pb.Prompt(token_ids=pb.TokenIds(ids=[2**31]))], [pb.Prompt(text="x")] * 129],
}
CHAT = SHARED | {
    "top_logprobs": [21, -1, 5, 4294967295], "max_completion_tokens": [0, -1, 7],
    "messages": [[], [pb.ChatMessage()], [pb.ChatMessage(role="x", content="y")], [pb.ChatMessage(role="user")],
                 [pb.ChatMessage(content="y")], [pb.ChatMessage(role="tool", content="y")],
                 [pb.ChatMessage(role="user", content="x")] * 2049],
}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("name", "kind", "base", "cases"), [
    ("Complete", pb.CompleteRequest, {"prompt": [pb.Prompt(text="x")], "max_tokens": 16}, COMPLETE),
    ("Chat", pb.ChatRequest, {"messages": [pb.ChatMessage(role="user", content="x")], "max_tokens": 16}, CHAT),
], ids=["complete", "chat"])
def test_bad_values_are_invalid_argument_with_the_field(daemon, name, kind, base, cases, streaming):
    wrong = []
    with daemon.unharmed():
        steps = daemon.status().steps_total
        method = getattr(daemon.stub, name + ("Stream" if streaming else ""))
        for field, bad in cases.items():
            for value in bad:
                shown = f"{field}={str(value)[:50]}"
                try:
                    result = method(kind(**(base | {field: value})), timeout=30)
                    if streaming:
                        list(result)
                    wrong.append(f"{shown}: taken")
                    continue
                except grpc.RpcError as error:
                    violations = [v for d in rpc_status.from_call(error).details if d.Is(error_details_pb2.BadRequest.DESCRIPTOR)
                                  for v in error_details_pb2.BadRequest.FromString(d.value).field_violations]
                    right = error.code() == CODE.INVALID_ARGUMENT and len(violations) == 1 and (
                        violations[0].field == field or violations[0].field.startswith((field + "[", field + ".")))
                    if not right:
                        wrong.append(f"{shown}: {error.code()} {error.details()} {violations}")
        assert not wrong, "\n".join(wrong)
        assert daemon.status().steps_total == steps, "no step ran for any of them"


def test_tokenize_and_detokenize_refuse_bad_values(daemon):
    with daemon.unharmed():
        both = pb.TokenizeRequest(prompt="x", messages=[pb.ChatMessage(role="user", content="y")])
        for method, request in ((daemon.stub.Tokenize, pb.TokenizeRequest()), (daemon.stub.Tokenize, both),
                                (daemon.stub.Tokenize, pb.TokenizeRequest(prompt="x" * (2 << 20))),
                                (daemon.stub.Detokenize, pb.DetokenizeRequest(tokens=[49152])),
                                (daemon.stub.Detokenize, pb.DetokenizeRequest(tokens=[-1]))):
            with pytest.raises(grpc.RpcError) as error:
                method(request)
            assert error.value.code() == CODE.INVALID_ARGUMENT, request


# ---- HTTP/2 by hand ----

class RawHttp2:
    """One HTTP/2 connection whose frames the test writes itself."""

    def __init__(self, daemon, window: int | None = None):
        self.socket = socket.create_connection(("127.0.0.1", daemon.grpc_port), timeout=60)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.ended = []
        if window is not None:
            self.h2.local_settings = h2.settings.Settings(
                client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.h2.initiate_connection()
        self.flush()

    def flush(self):
        self.socket.sendall(self.h2.data_to_send())

    def headers(self, method="CompleteStream") -> int:
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, [(":method", "POST"), (":scheme", "http"), (":authority", "x"),
                                      (":path", f"/kvasir.v1.Inference/{method}"), ("te", "trailers"),
                                      ("content-type", "application/grpc")])
        return stream

    def read_status(self, stream: int) -> str | None:
        """grpc-status of the stream, or None when it was reset without one."""
        status = None
        while stream not in self.ended:
            data = self.socket.recv(65536)
            if not data:
                return status
            for event in self.h2.receive_data(data):
                if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                    status = dict(event.headers).get("grpc-status", status)
                if isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                    self.ended.append(event.stream_id)
            self.flush()
        return status

    def drain_input(self):
        """Takes in what the server sent so far, without waiting."""
        self.socket.setblocking(False)
        try:
            while data := self.socket.recv(65536):
                self.h2.receive_data(data)
        except BlockingIOError:
            pass
        finally:
            self.socket.settimeout(60)


@pytest.mark.parametrize("data", [
    b"\x00" + struct.pack(">I", 2**32 - 1) + b"abc",  # announces 4 GiB and ends
    b"\x00" + struct.pack(">I", 100) + b"only a part",  # cut message
    b"\x00\x00",  # cut prefix
    b"",  # no message at all
    b"\x07" + struct.pack(">I", 3) + b"abc",  # unknown flags
], ids=["4GiB", "cut", "cut-prefix", "none", "flags"])
@pytest.mark.parametrize("method", ["Complete", "CompleteStream"])
def test_damaged_framing_ends_the_call_with_an_error(daemon, method, data):
    with daemon.unharmed():
        raw = RawHttp2(daemon)
        stream = raw.headers(method)
        raw.h2.send_data(stream, data, end_stream=True)
        raw.flush()
        status = raw.read_status(stream)
        assert status in (None, "3", "8", "13"), status
        raw.socket.close()


def test_message_that_announces_four_gibibytes_is_not_buffered_without_bound(daemon):
    """gRPC 1.51 judges a size only when all of a message is there; what it holds until then is bounded by its quota."""
    with daemon.unharmed():
        before = resident_bytes(daemon)
        raw = RawHttp2(daemon)
        stream = raw.headers("Complete")
        raw.h2.send_data(stream, b"\x00" + struct.pack(">I", 2**32 - 1))
        raw.flush()
        sent = 0
        try:
            while sent < 400 << 20:
                room = min(raw.h2.local_flow_control_window(stream), raw.h2.max_outbound_frame_size)
                if room > 0:
                    raw.h2.send_data(stream, b"a" * room)
                    raw.flush()
                    sent += room
                    raw.drain_input()
                    continue
                raw.socket.settimeout(2)
                data = raw.socket.recv(65536)
                if not data:
                    break
                raw.h2.receive_data(data)
        except (TimeoutError, ConnectionError, h2.exceptions.ProtocolError):
            pass  # the window stays shut, or the stream was ended
        print("sent", sent >> 20, "MiB; resident", (resident_bytes(daemon) - before) >> 20, "MiB more")
        assert resident_bytes(daemon) - before < 320 << 20
        raw.socket.close()


def flood_of_resets(daemon, count: int):
    """HEADERS and RST_STREAM in pairs, some with a whole request between them, a hundred open at most."""
    message = pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=500, ignore_eos=True).SerializeToString()
    framed = b"\x00" + struct.pack(">I", len(message)) + message
    raw = RawHttp2(daemon)
    most = 0
    for i in range(count):
        stream = raw.headers()
        if i % 4 == 0:
            raw.h2.send_data(stream, framed, end_stream=True)
        raw.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        if i % 50 == 49:
            raw.flush()
            raw.drain_input()
            status = daemon.status()
            most = max(most, status.running_sequences + status.waiting_sequences)
    raw.flush()
    raw.socket.close()
    return most


def resident_bytes(daemon) -> int:
    with open(f"/proc/{daemon.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.all)])
def test_flood_of_reset_streams_leaves_nothing_behind(start_daemon, count):
    # A small arena, so that KV pages touched for the first time do not count as growth.
    daemon = start_daemon(kv_budget="16MiB")
    with daemon.unharmed():
        before = resident_bytes(daemon)
        assert flood_of_resets(daemon, count) <= 125, "a quarter more than may be open"
        eventually(daemon.is_idle, "idle after the flood")
        response = daemon.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(text="x")], max_tokens=2), timeout=60)
        assert len(response.choices) == 1
        # A sanitizer keeps freed memory back, so its builds are not judged.
        if "asan" not in os.environ.get("KVASIR_BIN", "") and "dev" not in os.environ.get("KVASIR_BIN", ""):
            grown = resident_bytes(daemon) - before
            assert grown < 50 << 20, f"{grown >> 20} MiB"


def test_calls_reset_while_they_wait_to_be_tokenised_still_count(daemon):
    """A client may not heap up messages behind one long tokenise by resetting each call: past the limit it is told."""
    with daemon.unharmed():
        slow = [daemon.stub.Tokenize.future(pb.TokenizeRequest(prompt="7" * (1 << 20))) for _ in range(6)]
        channel = daemon.new_channel()
        stub = type(daemon.stub)(channel)
        request = pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=1)
        for attempt in range(2):
            calls = [stub.Complete.future(request) for _ in range(90)]
            stub.GetStatus(pb.GetStatusRequest())  # answered at once, behind them: they have arrived
            if attempt == 1:
                eventually(lambda: sum(c.done() and c.code() == CODE.RESOURCE_EXHAUSTED for c in calls) >= 30,
                           "those past the limit are told")
            for call in calls:
                call.cancel()
        assert not slow[-1].done(), "the tokenising was long enough for this test"
        assert all(call.result().count > 0 for call in slow)
        eventually(lambda: len(stub.Complete(request, wait_for_ready=True).choices) == 1, "the connection works again")
        channel.close()


def test_a_client_that_keeps_its_connection_full_is_never_refused(daemon):
    """When a call ends, the next one may come before the ended one is out of our books."""
    with daemon.unharmed():
        channel = daemon.new_channel()
        stub = type(daemon.stub)(channel)
        calls = [stub.Detokenize.future(pb.DetokenizeRequest(tokens=[i + 20])) for i in range(1500)]
        assert all(call.result().prompt for call in calls)
        channel.close()


@pytest.mark.all
def test_answers_that_are_never_taken_in_end_their_calls(daemon):
    """The client's window stays shut: whole answers and last chunks too wait for it 30 to 60 s and no longer."""
    with daemon.unharmed():
        raw = RawHttp2(daemon, window=0)
        message = pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=2).SerializeToString()
        tokenize = pb.TokenizeRequest(prompt="Once").SerializeToString()
        streams = []
        for method, body in (("Complete", message), ("CompleteStream", message), ("Tokenize", tokenize)):
            streams.append(raw.headers(method))
            raw.h2.send_data(streams[-1], b"\x00" + struct.pack(">I", len(body)) + body, end_stream=True)
        raw.flush()
        eventually(daemon.is_idle, "all were computed")
        raw.socket.settimeout(100)
        for stream in streams:
            raw.read_status(stream)
        assert set(raw.ended) == set(streams)
        raw.socket.close()


def test_hundred_live_calls_of_one_connection_are_the_limit(daemon):
    """HTTP/2 holds the hundred-and-first back; it starts when another ends."""
    with daemon.unharmed():
        channel = daemon.new_channel()
        stub = type(daemon.stub)(channel)
        request = pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=3000, ignore_eos=True)
        calls = [stub.CompleteStream(request) for _ in range(101)]
        eventually(lambda: daemon.status().running_sequences + daemon.status().waiting_sequences >= 100, "100 are in")
        status = daemon.status()
        assert status.running_sequences + status.waiting_sequences == 100
        channel.close()
        del calls
        daemon.wait_idle()

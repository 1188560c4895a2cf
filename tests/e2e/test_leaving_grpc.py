"""Three moments to leave a gRPC call, each by a cancel and by a deadline: the sequence ends, its blocks are free, and the
count of its cause goes up by one. And the reader that stays, but does not read."""

import grpc
import pytest

import prompts
from daemon import eventually
from leaving import Leaving
from stubs import pb

DEADLINE_SECONDS = 2.0  # time enough to reach the moment; what is not reached by then still counts as a deadline


def request_for(daemon, moment: str, seed: int):
    if moment == "prefill":
        ids = pb.Prompt(token_ids=pb.TokenIds(ids=prompts.token_ids(daemon, seed, 6000)))
        return pb.CompleteRequest(prompt=[ids], max_tokens=10, temperature=0)
    return pb.CompleteRequest(prompt=[pb.Prompt(text=prompts.text(seed, 5))], max_tokens=4000, ignore_eos=True, temperature=0)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("how", ["cancel", "deadline"])
@pytest.mark.parametrize("moment", ["queued", "prefill", "decode"])
def test_leaving_ends_the_sequence_frees_its_blocks_and_counts_once(daemon_with, moment, how, streaming):
    daemon = daemon_with(max_sequences=1, step_tokens=16)
    seed = 5000 + 100 * ["queued", "prefill", "decode"].index(moment) + 10 * (how == "deadline") + streaming
    request = request_for(daemon, moment, seed)
    with daemon.unharmed():
        first = None
        if moment == "queued":
            first = daemon.stub.CompleteStream(request_for(daemon, "decode", 1))
            next(first)
        before, leaving = daemon.status(), Leaving(daemon)
        method = daemon.stub.CompleteStream if streaming else daemon.stub.Complete.future
        call = method(request, timeout=DEADLINE_SECONDS if how == "deadline" else 600)
        if how == "cancel":
            reached = {"queued": lambda s: s.waiting_sequences == 1,
                       "prefill": lambda s: s.computed_tokens_total >= before.computed_tokens_total + 32,
                       "decode": lambda s: s.generation_tokens_total >= before.generation_tokens_total + 5}[moment]
            eventually(lambda: reached(daemon.status()), moment)
            call.cancel()
        if streaming:
            with pytest.raises(grpc.RpcError) as error:
                list(call)
            code = error.value.code()
        elif how == "cancel":
            with pytest.raises(grpc.FutureCancelledError):
                call.result()
            code = call.code()
        else:
            code = call.exception().code()
        cause = "grpc_cancel" if how == "cancel" else "deadline"
        assert code == (grpc.StatusCode.CANCELLED if how == "cancel" else grpc.StatusCode.DEADLINE_EXCEEDED)
        leaving.check_counted(cause)
        if first is None:
            leaving.check_stops(cause)
        else:
            assert daemon.status().waiting_sequences == 0 and daemon.status().running_sequences == 1
            assert daemon.status().prompt_tokens_total == before.prompt_tokens_total, "it was never admitted"
            first.cancel()
        daemon.wait_idle()
        if moment == "prefill":
            status = daemon.status()
            assert status.generation_tokens_total == before.generation_tokens_total
            assert status.computed_tokens_total < before.computed_tokens_total + 6000, "the rest was not computed"


def test_a_reader_that_stops_reading_is_aborted_after_the_write_timeout(start_daemon):
    daemon = start_daemon(write_timeout_ms=1000)
    channel = daemon.new_channel(http2_stream_lookahead_bytes=65536, **{"http2.bdp_probe": 0})
    stream = type(daemon.stub)(channel).CompleteStream(pb.CompleteRequest(
        prompt=[pb.Prompt(text="Once")], max_tokens=7000, ignore_eos=True, logprobs=20))
    next(stream)  # and no more
    eventually(lambda: daemon.status().cancelled_total.slow_client == 1, "the slow reader is cut off", 120)
    daemon.wait_idle()
    reading = daemon.stub.CompleteStream(pb.CompleteRequest(prompt=[pb.Prompt(text="Once")], max_tokens=200, ignore_eos=True))
    assert sum(len(c.choices[0].token_ids) for c in reading if c.choices) == 200, "who reads is left alone"
    stream.cancel()
    channel.close()

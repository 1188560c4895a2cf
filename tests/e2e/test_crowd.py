"""Hundreds of mixed requests under a KV budget that holds a fraction of them, with both ways of admission: the gauge never
passes the budget, memory stays where it was after a warm-up, every request ends properly and as it would alone, and in
the end nothing is held."""

import collections
import concurrent.futures
import pathlib
import re

import pytest

import crowd
import mixed
import prompts
from scrape import Scrape
from stubs import pb

BYTES_PER_BLOCK = 23040 * 32  # SmolLM2-135M, f16
NUM_BLOCKS = 44
BUDGET = NUM_BLOCKS * BYTES_PER_BLOCK
CLIENTS = 48  # threads that ask, one request after another
# Above what the process has after a warm-up of every kind, with the whole arena touched: sequences and their buffers,
# connections, threads of gRPC and what malloc keeps for each thread.
RSS_CONSTANT_BYTES = 16 << 20
# Above what it has after start and the budget: the same, and the buffers of a step, the connections and the threads that the
# first requests of each kind touch.
START_CONSTANT_BYTES = 48 << 20


class Gauge(crowd.Beside):
    """Reads /metrics, /v1/kv/status and the kernel's count of memory all the time."""

    def __init__(self, daemon):
        super().__init__([self._look])
        self.daemon, self.peak_live, self.peak_rss, self.peak_waiting = daemon, 0, 0, 0

    def _look(self):
        status = self.daemon.http.get("/v1/kv/status").json()
        scrape = Scrape(self.daemon)
        assert status["taken_blocks_total"] - status["returned_blocks_total"] == status["live_blocks"]
        for live, free in ((status["live_bytes"], status["free_blocks"] * status["bytes_per_block"]),
                           (scrape.value("kvasir_kv_live_bytes"), scrape.value("kvasir_kv_free_bytes"))):
            assert 0 <= live <= BUDGET and live + free == status["total_blocks"] * status["bytes_per_block"] <= BUDGET
            self.peak_live = max(self.peak_live, live)
        self.peak_waiting = max(self.peak_waiting, status["waiting_sequences"])
        self.peak_rss = max(self.peak_rss, rss_bytes(self.daemon), scrape.value("process_resident_memory_bytes"))


def rss_bytes(daemon) -> int:
    text = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text).group(1)) * 1024


def warm_up(daemon, requests):
    """One of every kind, and a prompt that fills the arena: its pages count from here on."""
    fills = prompts.token_ids(daemon, 2999, NUM_BLOCKS * 32)
    daemon.stub.Complete(pb.CompleteRequest(prompt=[pb.Prompt(token_ids=pb.TokenIds(ids=fills))], max_tokens=1))
    kinds = {(r.door, r.leaves, r.has_deadline, r.fields["n"]): r for r in requests}
    crowd.at_once([lambda r=r: r.ask(daemon, "warm-up") for r in kinds.values()])
    daemon.expect_short_answers()
    daemon.wait_idle()


@pytest.mark.parametrize("count", [180, pytest.param(900, marks=[pytest.mark.all, pytest.mark.timeout(1200)])])
@pytest.mark.parametrize("admission", ["reserve", "optimistic"])
def test_hundreds_of_mixed_requests_under_a_budget_for_a_fraction(start_daemon, admission, count):
    daemon = start_daemon(kv_budget=BUDGET, admission=admission)
    rss_at_start = rss_bytes(daemon)
    daemon.http.close()
    daemon.http = mixed.pooled_http(daemon, CLIENTS)
    requests = [mixed.MixedRequest(daemon, number) for number in range(count)]
    assert sum(r.num_cached_tokens() for r in requests) * 23040 > 10 * BUDGET
    warm_up(daemon, requests)
    before, rss_before = Scrape(daemon), rss_bytes(daemon)
    with Gauge(daemon) as gauge, concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        outcomes = list(pool.map(lambda r: r.ask(daemon, "crowd"), requests))
    daemon.wait_idle()
    after = Scrape(daemon)

    status = daemon.http.get("/v1/kv/status").json()
    assert (status["live_bytes"], status["running_sequences"], status["waiting_sequences"]) == (0, 0, 0)
    preemptions = after.value("kvasir_preemptions_total") - before.value("kvasir_preemptions_total")
    print(f"{admission}: {dict(collections.Counter(end for end, _ in outcomes))}, {preemptions:.0f} preemptions, live at most "
          f"{gauge.peak_live / BUDGET:.0%} of the budget, RSS {(gauge.peak_rss - rss_before) / 2**20:+.1f} MiB, since start less the budget "
          f"{(gauge.peak_rss - rss_at_start - BUDGET) / 2**20:+.1f} MiB")
    assert (preemptions == 0) == (admission == "reserve")
    assert gauge.peak_rss <= rss_before + RSS_CONSTANT_BYTES
    assert gauge.peak_rss <= rss_at_start + BUDGET + START_CONSTANT_BYTES
    assert gauge.peak_live > BUDGET // 2 and gauge.peak_waiting > 0, "the crowd was no crowd"
    check_ends(before, after, requests, outcomes)
    compare_sample(daemon, requests, outcomes)


def check_ends(before, after, requests, outcomes):
    """Every sequence ended once, and as its client was told."""
    ends = after.moved(before, "kvasir_requests_total", "finish_reason")
    causes = after.moved(before, "kvasir_requests_total", "cause")
    told = collections.Counter()
    for request, (end, _) in zip(requests, outcomes, strict=True):
        told[end] += request.fields["n"]
    assert all(told[end] > 0 for end in (mixed.WHOLE, mixed.LEFT, mixed.DEADLINE)), told
    assert sum(ends.values()) == sum(told.values())
    assert ends.get("error", 0) == 0 and ends["length"] >= told[mixed.WHOLE]
    assert causes["deadline"] <= told[mixed.DEADLINE]
    assert set(causes) - {""} <= {"deadline", "client_gone", "grpc_cancel"}


def compare_sample(daemon, requests, outcomes):
    sample = [(r, found) for r, (end, found) in zip(requests, outcomes, strict=True) if end == mixed.WHOLE][::6]
    different = [r.number for r, found in sample if r.alone(daemon) != found]
    assert len(sample) >= 15 and not different, f"requests that answer otherwise alone: {different}"

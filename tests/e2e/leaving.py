"""What must be true of a daemon once a client has left: its one cause is counted once, and the work ended with the step in
which the engine heard of it."""

from daemon import eventually

CAUSES = ("client_gone", "grpc_cancel", "deadline", "slow_client", "drain")


def ends(daemon) -> dict:
    """How often sequences ended each way, as /metrics says it."""
    return ({cause: daemon.metric("kvasir_requests_total", finish_reason="abort", cause=cause) for cause in CAUSES}
            | {reason: daemon.metric("kvasir_requests_total", finish_reason=reason) for reason in ("stop", "length", "error")})


class Leaving:
    """Made before the client leaves, on a daemon that serves it alone; `check` once it has left."""

    def __init__(self, daemon):
        self.daemon, self.status, self.ends = daemon, daemon.status(), ends(daemon)

    def check(self, cause: str):
        self.check_stops(cause)
        self.check_counted(cause)

    def check_stops(self, cause: str):
        """The status that first counts the cancel already holds no block, and no step follows it but the one that it was
        taken in."""
        wanted = getattr(self.status.cancelled_total, cause) + 1

        def counted():
            status = self.daemon.status()
            return getattr(status.cancelled_total, cause) == wanted and status

        first = eventually(counted, f"a sequence cancelled for {cause}")
        assert (first.running_sequences, first.waiting_sequences, first.live_blocks, first.live_bytes) == (0, 0, 0, 0)
        self.daemon.wait_idle()
        assert self.daemon.status().steps_total <= first.steps_total + 1

    def check_counted(self, cause: str):
        expected = self.ends | {cause: self.ends[cause] + 1}
        eventually(lambda: ends(self.daemon) == expected, f"{cause} counted once; before {self.ends}")

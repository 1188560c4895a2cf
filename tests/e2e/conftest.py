"""Fixtures of the end-to-end tests: the real binary with the default model, and real clients."""

import openai
import pytest

from daemon import Daemon


@pytest.fixture(scope="session")
def daemon():
    """The daemon that most tests share; each test leaves it idle."""
    running = Daemon()
    yield running
    running.stop()


@pytest.fixture
def start_daemon():
    """Starts daemons with flags of the test's own; all are stopped, and must stop cleanly, at its end."""
    running = []

    def start(**flags) -> Daemon:
        running.append(Daemon(**flags))
        return running[-1]

    yield start
    for each in running:
        each.stop()


@pytest.fixture(scope="module")
def daemon_with():
    """As start_daemon, but tests of one file that ask for equal flags share a daemon: counts start anywhere, and each
    test leaves it idle."""
    running = {}

    def get(**flags) -> Daemon:
        key = tuple(sorted(flags.items()))
        if key not in running:
            running[key] = Daemon(**flags)
        running[key].wait_idle()
        return running[key]

    yield get
    for each in running.values():
        each.stop()


@pytest.fixture(scope="session")
def client(daemon):
    """The openai client as users have it, but without retries: a retry would hide a wrong status."""
    with openai.OpenAI(base_url=daemon.url + "/v1", api_key="unused", max_retries=0, timeout=120) as made:
        yield made

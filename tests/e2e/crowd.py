"""Many clients at once: threads that start together and are waited for, and threads that go on beside what is tested."""

import concurrent.futures
import threading


def at_once(functions) -> list:
    """Runs all functions in threads that start together; results in order. The first exception is raised."""
    barrier = threading.Barrier(len(functions))

    def start(function):
        barrier.wait()
        return function()

    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        return [future.result() for future in [pool.submit(start, f) for f in functions]]


class Beside:
    """Repeats each function in a thread of its own as long as the block below `with` runs, but once at least.

    A thread ends with the first exception of its function, and the block's end raises it: a dead thread would pass as a
    good one.
    """

    def __init__(self, functions):
        self.ending = threading.Event()  # for functions that pause: ending.wait(seconds)
        self.failures: list[str] = []
        self.rounds = [0] * len(functions)
        self._threads = [threading.Thread(target=self._repeat, args=pair) for pair in enumerate(functions)]

    def _repeat(self, index: int, function):
        try:
            while not self.ending.is_set() or self.rounds[index] == 0:
                function()
                self.rounds[index] += 1
        except BaseException as error:  # noqa: BLE001 - told by __exit__
            self.failures.append(f"thread {index}, round {self.rounds[index]}: {error!r}")

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind, *_):
        self.ending.set()
        for thread in self._threads:
            thread.join()
        if kind is None:
            assert not self.failures, self.failures

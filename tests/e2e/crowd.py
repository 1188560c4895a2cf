"""Many clients at once: each thread starts at the same moment, and every one's answer or error is returned."""

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

"""A time that README or docs promise, allowed for as much slower as this machine is meanwhile."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

MOST = 20.0
"""However slow the machine, the promised time is allowed at most so many times."""
WORK = "for _ in range(300_000): pass"
PART = 4
"""A sample is followed by a rest that is so many times as long: the measuring slows down little."""


class Slowdown:
    """How much longer than on a quiet machine the same work takes, from the beginning of the block
    to its end.

    The work is a new process that starts and computes. On a quiet machine that takes as long as
    the processor time it uses; here it also waits for a processor."""

    def __init__(self) -> None:
        self.value = 1.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure)

    def __enter__(self) -> Slowdown:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _measure(self) -> None:
        took = used = 0.0
        while not took or not self._over.is_set():
            began = time.monotonic()
            # Without our environment: tests look for processes that they started by theirs.
            pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", WORK], {})
            _, _, usage = os.wait4(pid, 0)
            last = time.monotonic() - began
            took += last
            used += usage.ru_utime + usage.ru_stime
            self._over.wait(PART * last)
        self.value = max(1.0, took / used)


class Promise:
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.kept = 0.0
        """The moment at which it was, as `time.monotonic()` says it; to be set in the block."""


@contextmanager
def promised(seconds: float) -> Iterator[Promise]:
    """From the beginning of the block: what was promised for so many seconds comes by then, times
    the slowdown of the machine meanwhile."""
    with Slowdown() as slowdown:
        promise = Promise()
        yield promise
    took = promise.kept - promise.began
    allowed = seconds * min(MOST, slowdown.value)
    told = f"promised {seconds:g} s, took {took:.2f} s, slowdown {slowdown.value:.2f}"
    print(told)
    assert 0 < took <= allowed, told

"""The same of several shards at once, each in a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 8
"""Threads for each shard, at most."""


class Together:
    def __init__(self, shards: int) -> None:
        self._most = AT_ONCE * shards
        self._fresh()

    def _fresh(self) -> None:
        """As it is in a new process; threads of a parent do not exist in a fork."""
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self._threads is not None and self._pid == os.getpid():
            self._threads.shutdown()

    def pool(self) -> ThreadPoolExecutor:
        if self._pid != os.getpid():
            self._fresh()
        with self._guard:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._most, "headgate-shards")
            return self._threads

    def attempt(self, works: Mapping[int, Callable[[], T]]) -> dict[int, T | Exception]:
        """Each in a thread of its own, but for the last: what it answered, or how it failed."""
        if not works:
            return {}
        *others, last = works.items()
        pool = self.pool() if others else None
        begun: dict[int, Future[T | Exception]] = {}
        if pool is not None:
            # Each in a copy of this thread's context: `glancing` is meant for all of them.
            for k, work in others:
                begun[k] = pool.submit(copy_context().run, caught, work)
        found = {last[0]: caught(last[1])}
        return {k: begun[k].result() if k in begun else found[k] for k in works}

    def do(self, works: Mapping[int, Callable[[], T]]) -> dict[int, T]:
        """The same; raises what the first of them raised, when all have ended."""
        found: dict[int, T] = {}
        failed: Exception | None = None
        for k, answer in self.attempt(works).items():
            if isinstance(answer, Exception):
                failed = failed or answer
            else:
                found[k] = answer
        if failed is not None:
            raise failed
        return found


def caught(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    # Raised again where it is asked for, when all have ended.
    except Exception as error:
        return error

"""Virtual time: it passes only while every thread of a worker waits, so a minute takes a moment.

The worker is the real one. Its event loop, and the product's threads that wait by the clock, wait
here instead. What the loop hands to threads without such a wait is called in the loop itself. One
thread runs at a time, and chores start at the mean of their random periods, so every run of a test
does the same.
"""

from __future__ import annotations

import asyncio
import math
import random
import select
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headgate.clock import Clock
from headgate.stores.bucket import clock as bucket_clock
from headgate.stores.bucket import poller
from headgate.stores.postgres import bell
from headgate.threads import OwnThread
from headgate.worker import lease

WAITING = (bell, lease, poller)
"""The modules whose threads wait by the clock."""
TICK = 1e-7
BEGAN = 1_800_000_000.123456
"""Seconds since the epoch at which the machine started, with as many digits as most times have."""


class VirtualTime:
    """All clocks of this process, until the test ends. Made before the store is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.on_change: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._threads = 1
        """Threads that wait here now and then; the first is that of the event loop."""
        self._waits: dict[int, tuple[float, Callable[[], object]]] = {}
        """By thread: until when it waits, and what for."""
        self._ended = False
        patch.setattr(time, "monotonic", self._monotonic)
        patch.setattr(Clock, "boot", lambda _: self.now)
        patch.setattr(Clock, "now", lambda _: self.wall)
        patch.setattr(bucket_clock, "_began", BEGAN)
        patch.setattr(random, "uniform", lambda a, b: (a + b) / 2)
        patch.setattr(OwnThread, "call", lambda _, fn, *args: _called(fn, *args))
        classes = {"Thread": _Thread, "Event": _Event, "Condition": _Condition}
        ours = {name: type(name, (made,), {"time": self}) for name, made in classes.items()}
        for module in WAITING:
            patch.setattr(module, "threading", _changed_module(threading, **ours))
        patch.setattr(bell, "select", _changed_module(select, poll=lambda: _Poll(self)))

    def _monotonic(self) -> float:
        """Each look at the clock takes a tick, so that nothing read before is as new as now."""
        with self._changed:
            self.now += TICK
            return self.now

    @property
    def wall(self) -> float:
        """Seconds since the epoch."""
        return BEGAN + self.now

    @staticmethod
    async def passes(seconds: float) -> None:
        """In no real time."""
        await asyncio.sleep(seconds)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=lambda: _Loop(_Selector(self))) as runner:
            runner.run(main)

    def end(self) -> None:
        """No thread waits here any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, seconds: float | None, is_ready: Callable[[], object]) -> None:
        """Until it is ready or the time has passed, and all other threads wait."""
        until = math.inf if seconds is None else self.now + seconds
        me = threading.get_ident()
        with self._changed:
            self._waits[me] = until, is_ready
            self._changed.notify_all()
            while not self._ended and self._next() != me:
                self._changed.wait()
            del self._waits[me]

    def _next(self) -> int | None:
        """The thread that goes on; None: another one still runs."""
        if len(self._waits) < self._threads:
            return None
        while True:
            for thread, (until, is_ready) in self._waits.items():
                if until <= self.now or is_ready():
                    return thread
            self.now = min(until for until, _ in self._waits.values())
            assert self.now < math.inf, "every thread waits for another one"
            self.on_change()

    def change(self, threads: int = 0) -> None:
        """A thread may be ready now. `threads`: how many have started; negative if they ended."""
        with self._changed:
            self._threads += threads
            self._changed.notify_all()


class _Thread(threading.Thread):
    time: VirtualTime

    def start(self) -> None:
        self.time.change(threads=1)
        super().start()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.time.change(threads=-1)


class _Event(threading.Event):
    time: VirtualTime

    def set(self) -> None:
        super().set()
        self.time.change()

    def wait(self, timeout: float | None = None) -> bool:
        self.time.wait(timeout, self.is_set)
        return self.is_set()


class _Condition(threading.Condition):
    time: VirtualTime
    _notified = 0

    def notify(self, n: int = 1) -> None:
        self._notified += 1
        self.time.change()

    def notify_all(self) -> None:
        self.notify()

    def wait(self, timeout: float | None = None) -> bool:
        before = self._notified
        self.release()
        try:
            self.time.wait(timeout, lambda: self._notified != before)
        finally:
            self.acquire()
        return self._notified != before


class _Poll:
    """`select.poll()`."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._poll = select.poll()
        self.register = self._poll.register

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        self._time.wait(milliseconds / 1000, lambda: self._poll.poll(0))
        return self._poll.poll(0)


class _Selector(selectors.DefaultSelector):
    """Of the event loop."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self._time = time

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        look = super().select
        if timeout is None or timeout > 0:
            self._time.wait(timeout, lambda: look(0))
        return look(0)


class _Loop(asyncio.SelectorEventLoop):
    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return _called(func, *args)


def _called(fn: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
    """Call it here and now."""
    future = asyncio.get_running_loop().create_future()
    try:
        future.set_result(fn(*args))
    except Exception as error:
        future.set_exception(error)
    return future


def _changed_module(module: ModuleType, **names: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(module), **names})

"""Waiting for a bell on behalf of many: one thread per app and bell, however many wait.

A bell may cost an operating-system handle, of which there are few; and a thread of the
event loop's executor per waiting coroutine would soon leave none for anything else.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from headgate.stores.protocol import Bell, Store

SAFETY_POLL = 1.0
"""Seconds after which waiters look again though nothing rang."""
PACE = 0.0005
"""Seconds per waiter between two rounds: each round makes every waiter look in the store."""


class Watch:
    """Calls everyone who waits whenever the bell rang."""

    def __init__(self, store: Callable[[], Store], what: str) -> None:
        self._store = store
        self._what = what
        self._lock = threading.Lock()
        self._waiters: dict[object, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self._stop: tuple[int, int] | None = None

    @contextmanager
    def calling(self, wake: Callable[[], None]) -> Generator[None]:
        """Call `wake`, from another thread, whenever it is worth looking again.

        The bell is heard from before this enters: what changes after the first look inside
        the block is never missed.
        """
        mark = object()
        with self._lock:
            if self._thread is None:
                self._start()
            self._waiters[mark] = wake
        try:
            yield
        finally:
            with self._lock:
                del self._waiters[mark]

    def _start(self) -> None:
        bell = self._store().bell(self._what)
        self._stop = os.pipe()
        self._thread = threading.Thread(
            target=self._run,
            args=(bell, self._stop[0]),
            name=f"headgate-{self._what}-bell",
            daemon=True,
        )
        self._thread.start()

    def _run(self, bell: Bell, stop: int) -> None:
        try:
            while True:
                rang, stopped = _listen(bell, stop)
                with self._lock:
                    if stopped or not self._waiters:
                        # Under the lock: whoever comes now finds no thread and starts one.
                        self._forget(stop)
                        return
                    waiters = list(self._waiters.values())
                if rang:
                    for wake in waiters:
                        wake()
                    _told_to_stop(stop, PACE * len(waiters))
        finally:
            bell.close()

    def _forget(self, stop: int) -> None:
        if self._stop is not None and self._stop[0] == stop:
            os.close(self._stop[0])
            os.close(self._stop[1])
            self._stop = None
            self._thread = None

    def close(self) -> None:
        """End the thread now."""
        with self._lock:
            thread = self._thread
            if self._stop is not None:
                os.write(self._stop[1], b"!")
        if thread is not None:
            thread.join(timeout=5)


def _listen(bell: Bell, stop: int) -> tuple[bool, bool]:
    """Wait a while for the bell: (it rang, told to stop)."""
    fd = bell.fileno()
    if fd is None:
        return bell.wait(0.05), _told_to_stop(stop, 0)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.register(stop, select.POLLIN)
    ready = {handle for handle, _ in poll.poll(SAFETY_POLL * 1000)}
    # Drained before anyone looks: a ring that comes after that is kept for the next round.
    bell.drain()
    return fd in ready, stop in ready


def _told_to_stop(stop: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(stop, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


@contextmanager
def ringing(watch: Watch) -> Generator[threading.Event]:
    """An event for sync code that is set whenever it is worth looking again."""
    event = threading.Event()
    with watch.calling(event.set):
        yield event


@contextmanager
def aringing(watch: Watch) -> Generator[asyncio.Event]:
    """The same for a coroutine."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended in the meantime: nobody waits there
            loop.call_soon_threadsafe(event.set)

    with watch.calling(wake):
        yield event


async def rung_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until it is set, for so many seconds at most; whether it was."""
    # Not `asyncio.wait_for`: where the event is set at the moment at which the task is cancelled,
    # that of Python 3.11 forgets the cancellation, and who was to end waits for the next ring.
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Deadline:
    """A point in time by which something must have happened; None: never."""

    def __init__(self, timeout: float | None, now: Callable[[], float]) -> None:
        self._now = now
        self._begin = now()
        self._end = None if timeout is None else self._begin + timeout

    def pause(self) -> float:
        """How long to wait for a ring before looking anyway."""
        if self._end is None:
            return SAFETY_POLL
        return min(SAFETY_POLL, max(0.0, self._end - self._now()))

    @property
    def waited(self) -> float:
        return self._now() - self._begin

    @property
    def passed(self) -> bool:
        return self._end is not None and self._now() >= self._end

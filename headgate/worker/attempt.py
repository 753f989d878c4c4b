"""One attempt as the worker holds it, and the port through which its code reaches it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from headgate.context import Context
from headgate.errors import Cancel, StaleAttempt
from headgate.jobs import Claimed, NewJob, Progress
from headgate.stores.protocol import Store
from headgate.tasks import Task
from headgate.worker.chains import Hold
from headgate.worker.execute import delay_before_retry
from headgate.worker.outcome import Allowance, Stop

_RETAKE_POLL = 1.0


class Desk(Protocol):
    """What an attempt tells the worker's loop; any thread may call."""

    store: Store

    def note_progress(self, progress: Progress) -> None: ...
    def note_released(self, change: int) -> None: ...
    def settle(self, token: int) -> None:
        """Return when the store knows that this attempt runs, in which slots. May block."""
        ...


class Attempt:
    """A claimed job from its grant to its finish."""

    def __init__(
        self,
        claimed: Claimed,
        task: Task[..., Any],
        desk: Desk,
        hold: Hold | None = None,
        began: float = 0.0,
        granted_at: float | None = None,
    ) -> None:
        self.claimed = claimed
        self.token = claimed.token
        self.task = task
        self.hold = Hold.of(claimed) if hold is None else hold
        self.began = began
        """By the event loop's clock."""
        self.timeout = task.timeout
        self.deadline: float | None = None
        """By CLOCK_BOOTTIME, for the keeper; None without a time-out."""
        self.stop: Stop | None = None
        self.entered = False
        """Its coroutine has made its first step."""
        self.unstarted = False
        self.followups: list[NewJob] = []
        self.halt: Callable[[Stop], None] = lambda _: None
        """How its code is stopped: set by whoever runs it."""
        self.port = Port(self, desk)
        self.ctx = Context.of(claimed, self.port, granted_at)

    def ask_to_stop(self, stop: Stop) -> bool:
        """The first reason counts; only losing the attempt to somebody else overrides it."""
        if self.stop is not None and (stop.kind != "stale" or self.stop.kind == "stale"):
            return False
        self.stop = stop
        self.halt(stop)
        return True

    def over(self) -> bool:
        """The code has ended; whether its slots are there for the next one."""
        holds = self.port.close()
        return holds and (self.stop is None or self.stop.kind in ("timeout", "cancel"))

    def allowance(self) -> Allowance:
        return Allowance(self.claimed.errors, self.task.retries, self._plain_delay)

    def _plain_delay(self) -> float:
        return delay_before_retry(self.task, self.claimed.errors, TimeoutError())


class Port:
    """The `AttemptPort` of code in this process: the loop's coroutines and threads."""

    def __init__(self, attempt: Attempt, desk: Desk) -> None:
        self._attempt = attempt
        self._desk = desk
        self._lock = threading.Lock()
        self._lent = False
        self.holding = True
        """False while its slots are given back, or on their way."""
        self._closed = False

    def progress(self, fraction: float, text: str) -> None:
        self._desk.note_progress(Progress(self._attempt.token, fraction, text))

    def extend(self, seconds: float) -> None:
        self._desk.settle(self._attempt.token)
        if not self._desk.store.extend(self._attempt.token, seconds):
            raise self._stale()

    def release(self) -> None:
        self._desk.settle(self._attempt.token)
        with self._lock:
            # The attempt may have ended while this thread was on its way here (a coroutine that
            # was cancelled): then the next job may run in these slots already.
            if self._closed:
                raise self._stale()
            self.holding = False
        if not self._desk.store.release_groups(self._attempt.token):
            raise self._stale()
        with self._lock:
            self._lent = True
        self._desk.note_released(+1)

    def retake(self, timeout: float | None) -> bool:
        """Wait for the same groups. The bell is opened before the first try: a slot given
        back between a failed try and the wait would otherwise ring unheard."""
        attempt, store = self._attempt, self._desk.store
        began = time.monotonic()
        deadline = None if timeout is None else began + timeout
        bell = store.bell("room")
        try:
            while not store.retake_groups(attempt.token, time.monotonic() - began):
                if attempt.stop is not None:
                    raise Cancel(attempt.stop.reason)
                left = _RETAKE_POLL if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return False
                # A cancel does not always ring: the poll bounds how late it is seen.
                bell.wait(min(left, _RETAKE_POLL))
            self.holding = True
        finally:
            bell.close()
            self._take_room_back()
        return True

    def close(self) -> bool:
        """The attempt is over; whether it held its slots to the end."""
        with self._lock:
            self._closed = True
        self._take_room_back()
        return self.holding

    def _take_room_back(self) -> None:
        """After the wait, or when the attempt ended in the middle of it: once in any case."""
        if not self._lent:
            return
        with self._lock:
            lent, self._lent = self._lent, False
        if lent:
            self._desk.note_released(-1)

    def followup(self, job: NewJob) -> None:
        self._attempt.followups.append(job)

    def is_cancelled(self) -> bool:
        return self._attempt.stop is not None

    def cancel_reason(self) -> str:
        return self._attempt.stop.reason if self._attempt.stop is not None else ""

    def _stale(self) -> StaleAttempt:
        return StaleAttempt(
            f"attempt {self._attempt.token} of job {self._attempt.claimed.job} is no longer the"
            " running one: nothing was changed"
        )

"""One attempt as the worker holds it, and as its code reaches it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from headgate.context import Context
from headgate.errors import Cancel, StaleAttempt, StoreBusy, StoreInDoubt, StoreUnavailable
from headgate.jobs import Claimed, NewJob, Progress
from headgate.stores.protocol import Store
from headgate.tasks import Task
from headgate.worker.chains import Hold
from headgate.worker.execute import delay_before_retry
from headgate.worker.outcome import Allowance, Stop

log = logging.getLogger("headgate.worker")

_RETAKE_POLL = 1.0
_AGAIN = 0.1


class Desk(Protocol):
    """What an attempt tells the worker's loop; any thread may call."""

    store: Store

    def note_progress(self, progress: Progress) -> None: ...
    def note_released(self, change: int) -> None: ...
    def settle(self, token: int) -> None:
        """Return when the store knows that this attempt runs, in which slots. May block."""
        ...


def _nothing(_: Stop) -> None:
    """Nothing runs that could be halted."""


class Attempt:
    """A claimed job from its grant to its finish, and the `AttemptPort` of its code where that
    runs in this process.

    It holds nothing that holds it, once it is over: thousands of these end in a second, and
    what is freed at once need not be searched for by the garbage collector.
    """

    __slots__ = (
        "_closed",
        "_desk",
        "_lent",
        "_lock",
        "began",
        "claimed",
        "deadline",
        "entered",
        "followups",
        "granted_at",
        "halt",
        "hold",
        "holding",
        "row",
        "stop",
        "task",
        "timeout",
        "token",
        "unstarted",
    )

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
        """On the monotonic clock itself: that of uvloop knows whole milliseconds only."""
        self.granted_at = granted_at
        self.timeout = task.timeout
        self.deadline: float | None = None
        """By CLOCK_BOOTTIME, for the keeper; None without a time-out."""
        self.stop: Stop | None = None
        self.entered = False
        """Its coroutine has made its first step."""
        self.unstarted = False
        self.row: int | None = None
        """Where it is noted in the `Runs` of its process."""
        self.followups: list[NewJob] = []
        self.halt: Callable[[Stop], None] = _nothing
        """How its code is stopped: set by whoever runs it."""
        self._desk = desk
        self._lock = threading.Lock()
        self._lent = False
        self.holding = True
        """False while its slots are given back, or on their way."""
        self._closed = False

    def context(self) -> Context:
        """What its code is given."""
        return Context.of(self.claimed, self, self.granted_at)

    # --- its end --------------------------------------------------------------------------------

    def ask_to_stop(self, stop: Stop) -> bool:
        """The first reason counts; only losing the attempt to somebody else overrides it."""
        if self.stop is not None and (stop.kind != "stale" or self.stop.kind == "stale"):
            return False
        self.stop = stop
        self.halt(stop)
        return True

    def over(self) -> bool:
        """The code has ended; whether its slots are there for the next one."""
        self.halt = _nothing
        with self._lock:
            self._closed = True
        self._take_room_back()
        return self.holding and (self.stop is None or self.stop.kind in ("timeout", "cancel"))

    def allowance(self) -> Allowance:
        return Allowance(self.claimed.errors, self.task.retries, self._plain_delay)

    def _plain_delay(self) -> float:
        return delay_before_retry(self.task, self.claimed.errors, TimeoutError())

    # --- what its code asks for -----------------------------------------------------------------

    def progress(self, fraction: float, text: str) -> None:
        self._desk.note_progress(Progress(self.token, fraction, text))

    def extend(self, seconds: float) -> None:
        self._desk.settle(self.token)
        if not self._desk.store.extend(self.token, seconds):
            raise self._stale()

    def release(self) -> None:
        self._desk.settle(self.token)
        with self._lock:
            # The attempt may have ended while this thread was on its way here (a coroutine that
            # was cancelled): then the next job may run in these slots already.
            if self._closed:
                raise self._stale()
            self.holding = False
        if not self._give_groups_back():
            raise self._stale()
        with self._lock:
            self._lent = True
        self._desk.note_released(+1)

    def _give_groups_back(self) -> bool:
        """False: the attempt is no longer the running one. After a lost answer nobody knows
        whether they were given back, and code that goes on as if it held them may run beside
        another that does: so the store is asked until it is known."""
        doubt = False
        while True:
            try:
                # Told twice, it changes nothing: then they are gone, in one way or the other.
                return self._desk.store.release_groups(self.token) or doubt
            except (StoreBusy, StoreUnavailable) as error:
                doubt = doubt or isinstance(error, StoreInDoubt)
                if not doubt:
                    self.holding = True
                if not doubt or self.stop is not None:
                    raise
            time.sleep(_AGAIN)

    def retake(self, timeout: float | None) -> bool:
        """Wait for the same groups. The bell is opened before the first try: a slot given
        back between a failed try and the wait would otherwise ring unheard."""
        store = self._desk.store
        began = time.monotonic()
        deadline = None if timeout is None else began + timeout
        bell = store.bell("room")
        try:
            while not self._try_retake(time.monotonic() - began):
                if self.stop is not None:
                    raise Cancel(self.stop.reason)
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

    def _try_retake(self, waited: float) -> bool:
        try:
            return self._desk.store.retake_groups(self.token, waited)
        except (StoreBusy, StoreUnavailable) as error:
            # The code cannot go on without its groups, and asking again does no harm: wait, as
            # for others who hold them. Should the lease end meanwhile, the attempt is stopped.
            log.warning("job %s waits for its groups: %s", self.claimed.job, error)
            return False

    def _take_room_back(self) -> None:
        """After the wait, or when the attempt ended in the middle of it: once in any case."""
        if not self._lent:
            return
        with self._lock:
            lent, self._lent = self._lent, False
        if lent:
            self._desk.note_released(-1)

    def followup(self, job: NewJob) -> None:
        self.followups.append(job)

    def is_cancelled(self) -> bool:
        return self.stop is not None

    def cancel_reason(self) -> str:
        return self.stop.reason if self.stop is not None else ""

    def _stale(self) -> StaleAttempt:
        return StaleAttempt(
            f"attempt {self.token} of job {self.claimed.job} is no longer the running one:"
            " nothing was changed"
        )

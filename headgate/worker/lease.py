"""Leases in time: when to renew, when to stop, when to kill. Pure decisions, then the loop.

All is counted from the *sending* of the last renewal that was confirmed: the store cannot
have started the lease earlier than that. Past two thirds the worker is told to stop, by five
sixths it is killed with all its children, and only after that may the lease end. The keeper
kills a little before five sixths, so that the guard, which then ends everything, need not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from headgate.backoff import worth_telling
from headgate.clock import Clock
from headgate.errors import StoreError
from headgate.stores.protocol import Store
from headgate.worker.board import Row
from headgate.worker.runs import Run

log = logging.getLogger("headgate.worker")

Stage = Literal["fresh", "renew", "stop", "kill"]

RENEW = 1 / 3
STOP = 2 / 3
KILL = 19 / 24
LAST = 5 / 6
"""When the guard kills what the keeper has not."""


def stage(now: float, renewed: float, lease: float) -> Stage:
    """What a lease that was last renewed then asks for now.

    >>> [stage(now, 100.0, 30.0) for now in (105, 110, 120, 124)]
    ['fresh', 'renew', 'stop', 'kill']
    """
    age = now - renewed
    if age >= lease * KILL:
        return "kill"
    if age >= lease * STOP:
        return "stop"
    if age >= lease * RENEW:
        return "renew"
    return "fresh"


def next_change(now: float, renewed: float, lease: float) -> float:
    """Seconds until `stage` would say something else; never negative.

    >>> next_change(105.0, 100.0, 30.0)
    5.0
    """
    ahead = [renewed + lease * part - now for part in (RENEW, STOP, KILL)]
    return min((seconds for seconds in ahead if seconds > 0), default=0.0)


def must_kill(now: float, rows: Iterable[Row]) -> bool:
    """Has any worker with a lease come so near to its end that its code must be gone?"""
    return any(row.lease and now - row.renewed >= row.lease * LAST for row in rows)


def over(now: float, rows: Iterable[Row]) -> bool:
    """Has any lease ended, so that its slots may have been given away?"""
    return any(row.lease and now - row.renewed >= row.lease for row in rows)


def guard_timeout(now: float, rows: Iterable[Row]) -> float | None:
    """How long the guard may sleep before `must_kill` has to be asked again."""
    ends = [row.renewed + row.lease * LAST - now for row in rows if row.lease]
    return max(0.0, min(ends)) if ends else None


@dataclass(slots=True)
class Lease:
    """One worker's lease as its keeper sees it."""

    worker: str
    seconds: float
    sent: float
    dead: bool = False
    """The store said that the lease has ended: it cannot be had back."""
    failures: int = 0
    """Renewals in a row that the store did not answer."""

    def outlived_by(self, runs: Iterable[Run], seen: float) -> list[tuple[Run, float]]:
        """The attempts that ran on after this lease, each with the last time at which it ran for
        certain. `seen`: when their process was last known to live.

        >>> ran = [Run("a", 1), Run("b", 2, 129.0), Run("c", 3, 131.0)]
        >>> [(run.job, at) for run, at in Lease("w", 30.0, sent=100.0).outlived_by(ran, 132.0)]
        [('a', 132.0), ('c', 131.0)]
        >>> Lease("w", 30.0, sent=100.0).outlived_by(ran, 129.5)
        []
        """
        end = self.sent + self.seconds
        if seen < end and not self.dead:
            return []
        return [(run, run.ended or seen) for run in runs if run.ended is None or run.ended > end]


class Renewer:
    """Renews leases from a thread of its own, so that nothing else can make it late.

    `confirmed(lease)` is called after each renewal, in this thread, `failed(lease)` after each
    that the store did not answer.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        confirmed: Callable[[Lease], None] = lambda _: None,
        failed: Callable[[Lease], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._confirmed = confirmed
        self._failed = failed
        self._leases: dict[str, Lease] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="headgate-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def add(self, lease: Lease) -> None:
        with self._changed:
            self._leases[lease.worker] = lease
            self._changed.notify()

    def remove(self, worker: str) -> None:
        with self._changed:
            self._leases.pop(worker, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopped:
                    return
                now = self._clock.boot()
                live = [lease for lease in self._leases.values() if not lease.dead]
                due = [x for x in live if stage(now, x.sent, x.seconds) != "fresh"]
                if not due:
                    waits = [next_change(now, x.sent, x.seconds) for x in live]
                    self._changed.wait(min(waits, default=None))
                    continue
            failed = [lease for lease in due if not self._renew(lease)]
            if failed:
                with self._changed:
                    self._changed.wait(min(lease.seconds for lease in failed) / 30)

    def _renew(self, lease: Lease) -> bool:
        # Read before the call: the store may start the lease at any moment after this line.
        sent = self._clock.boot()
        try:
            alive = self._store.renew(lease.worker)
        except StoreError as error:
            lease.failures += 1
            if worth_telling(lease.failures):
                log.warning("the lease of worker %s was not renewed: %s", lease.worker, error)
            self._failed(lease)
            return False
        if lease.failures:
            log.info("the store answers again about the lease of worker %s", lease.worker)
            lease.failures = 0
        if alive:
            lease.sent = sent
        else:
            lease.dead = True
            log.error("the lease of worker %s has ended: its slots may be given away", lease.worker)
        self._confirmed(lease)
        return True

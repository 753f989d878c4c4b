"""Waiting for room under a cap that blocks: what was refused is submitted again.

The store never waits: it takes a job in or refuses it. Whoever can wait tries again when the
bell `room` rings, and now and then without it, until the cap's time-out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from headgate.caps import check_waits, wait_of
from headgate.jobs import NewJob, Submitted
from headgate.threads import in_thread
from headgate.waiting import SAFETY_POLL, Watch, aringing, ringing, rung_within

Store = Callable[[list[NewJob]], list[Submitted]]


def waits(jobs: Sequence[NewJob], done: Sequence[Submitted]) -> bool:
    return any(
        one.refused is not None and wait_of(job, one) > 0
        for job, one in zip(jobs, done, strict=True)
    )


def check_no_waits(jobs: Sequence[NewJob]) -> None:
    for job in jobs:
        check_waits(job.caps, "a transaction of yours cannot wait for others to end")


class _Line:
    """What was refused and may be tried again, in the order of submission."""

    def __init__(self, jobs: Sequence[NewJob], done: list[Submitted]) -> None:
        self._jobs = jobs
        self._done = done
        self._began = time.monotonic()

    def left(self) -> list[int]:
        passed = time.monotonic() - self._began
        return [
            n
            for n, (job, one) in enumerate(zip(self._jobs, self._done, strict=True))
            if one.refused is not None and wait_of(job, one) > passed
        ]

    def pause(self, left: Sequence[int]) -> float:
        """How long to wait for the bell: no longer than until the first gives up."""
        passed = time.monotonic() - self._began
        shortest = min((wait_of(self._jobs[n], self._done[n]) for n in left), default=math.inf)
        return max(0.0, min(SAFETY_POLL, shortest - passed))

    def jobs(self, left: Sequence[int]) -> list[NewJob]:
        return [self._jobs[n] for n in left]

    def given_up(self) -> list[int]:
        return [
            n
            for n, (job, one) in enumerate(zip(self._jobs, self._done, strict=True))
            if one.refused is not None and wait_of(job, one) > 0
        ]

    def last(self, left: Sequence[int]) -> list[NewJob]:
        """The same for the last time: whoever is refused now is refused for good, and counts."""
        return [
            replace(job, caps=tuple(replace(use, wait=0.0) for use in job.caps))
            for job in self.jobs(left)
        ]

    def put(self, left: Sequence[int], done: Sequence[Submitted]) -> None:
        for n, one in zip(left, done, strict=True):
            self._done[n] = one


def wait_for_room(
    watch: Watch, jobs: Sequence[NewJob], done: list[Submitted], store: Store
) -> None:
    """Submit what was refused again until it fits or its time is over; `done` tells how."""
    line = _Line(jobs, done)
    with ringing(watch) as rung:
        while left := line.left():
            # Cleared before the try: room that is made after a failed try rings again.
            rung.clear()
            line.put(left, store(line.jobs(left)))
            if left := line.left():
                rung.wait(line.pause(left))
    if left := line.given_up():
        line.put(left, store(line.last(left)))


async def await_room(
    watch: Watch, jobs: Sequence[NewJob], done: list[Submitted], store: Store
) -> None:
    """The same for a coroutine."""
    line = _Line(jobs, done)
    with aringing(watch) as rung:
        while left := line.left():
            rung.clear()
            line.put(left, await in_thread(store, line.jobs(left)))
            if left := line.left():
                await rung_within(rung, line.pause(left))
    if left := line.given_up():
        line.put(left, await in_thread(store, line.last(left)))

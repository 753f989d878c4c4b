"""Promise: a job class is told of what was submitted and will never run to its end."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from headgate import (
    Aborted,
    App,
    Cap,
    Job,
    Worker,
)
from headgate.jobs import JobFilter
from headgate.testing import TestClock, drain
from tests.waiting import PATIENCE, wait_until


def advance(app: App, seconds: float) -> None:
    assert isinstance(app.clock, TestClock)
    app.clock.advance(seconds)


def declare_told(app: App, told: list[tuple[int, Aborted]]) -> type[Any]:
    @app.job
    class Told(Job):
        queue = "slow"

        def __init__(self, n: int) -> None:
            self.n = n

        def run(self) -> None:
            if self.n < 0:
                raise ValueError("below zero")

        def on_aborted(self, aborted: Aborted) -> None:
            told.append((self.n, aborted))

    drain(app)  # a worker was there once, so the store knows the class
    return Told


def test_a_class_is_told_of_what_was_cancelled(both: App) -> None:
    told: list[tuple[int, Aborted]] = []
    cls = declare_told(both, told)
    one, two, done, failed = (cls(n).run_in_worker() for n in (1, 2, 3, -1))
    one.cancel("not needed")
    two.cancel()
    assert drain(both).failed == 1
    assert told == [
        (1, Aborted(one.id, "cancelled", "not needed")),
        (2, Aborted(two.id, "cancelled", "cancelled")),
    ]
    assert (done.status(), failed.status()) == ("succeeded", "failed")
    (teller,) = both.store.find(JobFilter(task="Told.on_aborted"), limit=1)
    assert (teller.parent, teller.queue, teller.needs.all) == (two.id, "slow", ())
    drain(both)
    assert len(told) == 2


def test_a_class_is_told_of_what_expired(app: App) -> None:
    told: list[tuple[int, Aborted]] = []
    cls = declare_told(app, told)
    handle = cls(1).run_in_worker(expires=5)
    advance(app, 6)
    drain(app)
    assert told == [(1, Aborted(handle.id, "cancelled", "expired"))]


def test_a_class_is_told_of_what_a_claim_found_expired(both: App) -> None:
    told: list[tuple[int, Aborted]] = []
    cls = declare_told(both, told)
    handle = cls(1).run_in_worker(expires=0.05)
    wait_until(lambda: both.store.now() > (handle.record().expires_at or 0))
    drain(both)
    assert told == [(1, Aborted(handle.id, "cancelled", "expired"))]


def test_a_class_is_told_of_what_was_lost_for_good_and_not_before(both: App) -> None:
    from tests.cli.hands import Hands

    told: list[tuple[int, Aborted]] = []
    cls = declare_told(both, told)
    handle = cls(1).run_in_worker(max_lost=1)
    for _ in range(2):
        assert told == []
        hands = Hands(both.store, "Told")
        assert [one.job for one in hands.claim()] == [handle.id]
        both.store.declare_dead(hands.id, "killed")
        for fd in hands.registration.fds:
            os.close(fd)
    drain(both)
    assert told == [(1, Aborted(handle.id, "failed", "lost"))]


def test_a_class_is_told_of_what_a_newer_one_superseded(both: App) -> None:
    told: list[tuple[int, Aborted]] = []

    @both.job
    class Told(Job):
        caps = (Cap("newest", max_total=1, when_full="replace"),)

        def __init__(self, n: int) -> None:
            self.n = n

        def run(self) -> None: ...

        def on_aborted(self, aborted: Aborted) -> None:
            told.append((self.n, aborted))

    drain(both)
    old, new = Told(1).run_in_worker(), Told(2).run_in_worker()
    drain(both)
    drain(both)
    assert told == [(1, Aborted(old.id, "cancelled", "superseded"))]
    assert new.status() == "succeeded"


def test_a_class_is_told_of_what_was_cancelled_while_it_ran(both: App) -> None:
    told: list[Aborted] = []
    started = threading.Event()

    @both.job
    class Told(Job):
        async def run(self) -> None:
            started.set()
            await asyncio.sleep(30)

        async def on_aborted(self, aborted: Aborted) -> None:
            told.append(aborted)

    worker = threading.Thread(target=Worker(both, burst=True).run)
    handle = Told().run_in_worker()
    worker.start()
    assert started.wait(PATIENCE)
    handle.cancel("enough")
    worker.join(PATIENCE)
    assert told == [Aborted(handle.id, "cancelled", "enough")]


def test_telling_is_tried_again_as_the_class_says(app: App) -> None:
    tries: list[int] = []

    @app.job(retries=2, retry_delay=1)
    class Told(Job):
        def run(self) -> None: ...

        async def on_aborted(self, aborted: Aborted) -> None:
            tries.append(1)
            if len(tries) < 3:
                raise OSError("not yet")

    drain(app)
    Told().run_in_worker().cancel()
    assert drain(app, advance=True).retry == 2
    assert len(tries) == 3

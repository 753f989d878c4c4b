"""Limits changed, paused, resumed and ended by time under load: never over, nobody stuck."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.checker import Change
from headgate.concurrency import Concurrency
from headgate.execlog import now
from tests.waiting import wait_until

from . import scene
from .conftest import Fleet

FULL = os.environ.get("HEADGATE_PROOF") == "full"
CHANGES = 200 if FULL else 50
TENANTS = [f"t{n}" for n in range(6)]
DECLARED = {"shared": 10, "tenant/t0": 2, "tenant/t1": 2}
dice = random.Random(7)


class Operator:
    """Says things about groups, and tells the checker when each counts: a raise from before it is
    asked for, a lowering from after it is granted. A pause is a limit of 0 to the checker."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.desk = Concurrency(lambda: fleet.store, lambda: "operator")
        self.limit: dict[str, int | None] = dict(DECLARED)
        self.paused = dict.fromkeys(DECLARED, False)
        self.noted: dict[str, int | None] = dict(DECLARED)

    @contextmanager
    def noting(self, group: str, raised_at: float | None = None) -> Iterator[None]:
        """`raised_at`: a raise comes by itself, not before then."""
        before = now() if raised_at is None else raised_at
        yield
        value = 0 if self.paused[group] else self.limit[group]
        old, self.noted[group] = self.noted[group], value
        raised = value is None or (old is not None and value > old)
        self.fleet.changes.append(Change(before if raised else now(), group, value))

    def act(self, group: str) -> None:
        deeds = [self.set_limit, self.set_limit, self.for_a_moment, self.reset, self.pause]
        dice.choice([self.resume] if self.paused[group] else deeds)(group)

    def set_limit(self, group: str) -> None:
        value = dice.choice([0, 1, 2, 3, 5, 8, 13, None])
        with self.noting(group):
            self.limit[group] = value
            self.desk.set(group, value, reason="test")

    def reset(self, group: str) -> None:
        with self.noting(group):
            self.limit[group] = DECLARED[group]
            self.desk.reset(group, reason="test")

    def pause(self, group: str) -> None:
        with self.noting(group):
            self.paused[group] = True
            self.desk.pause(group, reason="test")

    def resume(self, group: str) -> None:
        with self.noting(group):
            self.paused[group] = False
            self.desk.resume(group, reason="test")

    def for_a_moment(self, group: str) -> None:
        began, lasts = now(), 0.15
        with self.noting(group):
            self.limit[group] = dice.choice([1, 4, 12])
            self.desk.set(group, self.limit[group], reason="test", lasts=lasts)
        if self.fleet.changes[-1].t >= began + lasts:
            # It was answered when it may have been over already: nobody can be held to it.
            self.fleet.changes.pop()
        with self.noting(group, raised_at=began + lasts):
            self.limit[group] = DECLARED[group]
            wait_until(
                lambda: self.fleet.store.values([group])[group].source == "code", why="it ends"
            )


def feed(fleet: Fleet) -> None:
    """Something to do for every group."""
    shared = [scene.shared_async.call(dice.uniform(0.01, 0.05)) for _ in range(40)]
    fleet.submit(shared, [{"shared": 1}] * 40)
    names = [name for name in TENANTS for _ in range(10)]
    tenants = [scene.per_tenant.call(name, dice.uniform(0.01, 0.05)) for name in names]
    fleet.submit(tenants, [{f"tenant/{name}": 1} for name in names], turns=names)


def test_many_changes_under_load(fleet: Fleet) -> None:
    fleet.start("--processes", "3", "--concurrency", "20")
    operator = Operator(fleet)
    with fleet.fed(150, lambda: feed(fleet)):
        wait_until(lambda: fleet.done() > 20, why="they run")
        for _ in range(CHANGES):
            operator.act(dice.choice(list(DECLARED)))
            time.sleep(dice.uniform(0.0, 0.06))
        for group in DECLARED:
            operator.resume(group)
            operator.reset(group)
    fleet.wait_done()
    fleet.stop()
    report = fleet.judge(scene.LIMITS, room=60)
    print(report.text())
    assert report.ok, report.text()
    changes = fleet.store.events("limit_changed", 10_000)
    assert len(changes) >= CHANGES / 2, "but for what changed nothing"
    assert fleet.store.words() == []

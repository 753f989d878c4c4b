"""Schedules on a store with a clock in hand."""

from __future__ import annotations

import json
from typing import Any

from headgate.jobs import JobFilter, NewJob
from headgate.schedules import template
from headgate.schedules.planning import plan, table_of
from headgate.schedules.rounds import Rounds
from headgate.stores.protocol import Schedules, ScheduleSpec, Store, Ticking, TickRecord
from tests.conformance.conftest import Rig

MINUTE = 60.0
START = 1_800_000_000.0
"""A whole minute, at which the clock of every test begins."""


def spec(
    name: str = "tidy", when: str = "* * * * *", task: str = "task", **more: Any
) -> ScheduleSpec:
    job = template.to_text(more.pop("job", None) or NewJob(task, args='{"n":1}'))
    return ScheduleSpec(name, when, job=job, **more)


class Desk:
    """Declares, lets time pass, and ticks as often as there is something to do."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.store: Store = rig.store
        self.rounds = Rounds(rig.store)

    def declare(self, *specs: ScheduleSpec, declarer: str = "app", release: str = "") -> None:
        self.store.declare_schedules(Schedules(declarer, release, specs))

    def tick(self) -> None:
        """Rounds until nothing is due."""
        self.rounds.changed()
        for _ in range(1000):
            if self.rounds.round() > 0:
                return
        raise AssertionError("there is always something due")

    def wait(self, seconds: float) -> None:
        self.rig.clock.advance(seconds)
        self.tick()

    def outcomes(self, name: str = "tidy") -> list[tuple[float, str]]:
        """(seconds since the start, outcome), oldest first."""
        found = self.store.ticks(name, 1000)
        return [(tick.at - START, tick.outcome) for tick in reversed(found)]

    def ticks(self, name: str = "tidy") -> list[TickRecord]:
        return list(reversed(self.store.ticks(name, 1000)))

    def jobs(self) -> int:
        return self.store.count(JobFilter())


def run_all(rig: Rig) -> list[dict[str, object]]:
    """Claim what is ready and end it: what each was told."""
    hand = rig.hand()
    found = [json.loads(claimed.options) for claimed in hand.claim()]
    hand.end_all()
    hand.leave()
    rig.hands.remove(hand)
    return found


def planned(desk: Desk) -> Ticking:
    """What a ticker that looks now would do."""
    due = desk.store.due_schedules()
    return plan(due.schedules[0], table_of(due.schedules[0].spec), due.now)

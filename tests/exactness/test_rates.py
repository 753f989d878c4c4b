"""A rate over several processes: judged by the starts that the store has recorded, and by the
jobs' own log."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Sequence

from headgate.jobs import JobFilter
from tests.waiting import wait_until

from . import scene
from .conftest import Fleet

FULL = os.environ.get("HEADGATE_PROOF") == "full"
SECONDS = 30 if FULL else 3
RATE = 50
NOTHING: list[dict[str, int]] = [{}]
"""What a job holds: a start under a rate is not held."""
CLOCKS = 0.001
"""Seconds by which two readings of different clocks may differ: in a file, starts are noted by
the wall clock and end by the clock of the boot."""


def recorded(fleet: Fleet, task: str) -> list[float]:
    """When each attempt was granted, by the store."""
    found: list[float] = []
    after: str | None = None
    while page := fleet.store.find(JobFilter(task=task), limit=500, after=after):
        found += [a.started_at for job in page for a in fleet.store.attempts(job.id)]
        after = page[-1].id
    return sorted(found)


def logged(fleet: Fleet, task: str) -> list[float]:
    """When each job's own code began."""
    lines = [json.loads(line) for line in fleet.log.read_text().splitlines()]
    return sorted(line["t"] for line in lines if line["ev"] == "start" and line["task"] == task)


def closest(times: Sequence[float], count: int) -> float:
    """The shortest time in which `count` of them lie, and one more."""
    return min((b - a for a, b in zip(times, times[count:], strict=False)), default=float("inf"))


def settle(fleet: Fleet) -> None:
    """All has ended, and the last starts count no more."""
    fleet.stop()
    names = ("burst", "smooth")
    wait_until(lambda: not any(fleet.store.group(g)[0].held for g in names), why="the period ends")


def test_never_more_than_the_rate_in_any_window(fleet: Fleet) -> None:
    """Two rates side by side: one of which all may start at once, one whose starts are spaced."""
    count = RATE * SECONDS
    calls = [
        *(scene.in_bursts.call() for _ in range(count)),
        *(scene.evenly.call() for _ in range(count)),
    ]
    fleet.submit(calls, NOTHING * len(calls))
    fleet.start("--processes", "4", "--concurrency", "20")
    fleet.wait_done(SECONDS * 3 + 30)
    store = fleet.app.url.partition(":")[0]

    granted, begun = recorded(fleet, "in_bursts"), logged(fleet, "in_bursts")
    assert len(granted) == len(begun) == count
    assert closest(granted, RATE) >= 1.0 - CLOCKS
    # A job whose process had to wait for a processor begins late, and then closer to the next.
    print(f"{store}: {RATE + 1} jobs began within {closest(begun, RATE):.3f} s at least")
    # All of the first period may start at once, so that the last comes a period earlier.
    use = (count - RATE) / RATE / (granted[-1] - granted[0])
    print(f"{store}: {use:.1%} of the rate was used")
    if FULL:
        assert use >= 0.95

    granted = recorded(fleet, "evenly")
    assert len(granted) == count
    assert closest(granted, 1) >= 1 / RATE - CLOCKS
    assert closest(granted, RATE) >= 1.0 - CLOCKS
    # Each waits for the one before it: what a wake-up takes is lost, every time.
    use = (count - 1) / RATE / (granted[-1] - granted[0])
    print(f"{store}: {use:.1%} of the rate was used, one at a time")
    settle(fleet)


def test_keys_share_a_rate_and_a_killed_worker_changes_nothing(fleet: Fleet) -> None:
    backlog = {"big": 150, **{f"small-{n}": 30 for n in range(4)}}
    turns = [turn for turn, count in backlog.items() for _ in range(count)]
    fleet.submit([scene.in_bursts.call(turn) for turn in turns], NOTHING * len(turns), turns=turns)
    fleet.start("--processes", "3", "--concurrency", "10")
    wait_until(lambda: fleet.done() >= 40, why="they run")
    victim = next(w for w in fleet.store.workers() if w.pid)
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: fleet.done() >= 125, why="they go on")
    lines = [json.loads(line) for line in fleet.log.read_text().splitlines()]
    first = Counter(line["turn"] for line in lines if line["ev"] == "start")
    assert len(first) == 5
    assert min(first.values()) >= 18, f"each of five keys has its share: {first}"
    fleet.wait_done()
    assert closest(recorded(fleet, "in_bursts"), RATE) >= 1.0 - CLOCKS
    settle(fleet)

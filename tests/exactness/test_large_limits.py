"""Limits of five hundred and more, with workers that have room for more than that: reached, and
never passed."""

from __future__ import annotations

import random

import pytest

from tests.waiting import wait_until

from . import scene
from .conftest import Fleet
from .peaks import peaks

dice = random.Random(13)


def started(fleet: Fleet) -> int:
    return fleet.log.read_bytes().count(b'"ev":"start"') if fleet.log.exists() else 0


@pytest.mark.parametrize("value", [500, 1000])
def test_a_large_limit_is_reached_and_never_passed(fleet: Fleet, value: int) -> None:
    room = value + value // 5
    fleet.start("--processes", "4", "--concurrency", str(room // 4))
    fleet.set_limit("crowd", value, before=scene.LIMITS["crowd"])
    count = 6 * value
    scene.door().touch()
    calls = [scene.crowd.call(dice.uniform(0.05, 0.5)) for _ in range(count)]
    fleet.submit(calls, [{"crowd": 1}] * count)
    wait_until(lambda: started(fleet) >= value, why="it is full")
    # All leave at once, and four processes fill it again.
    scene.door().unlink()
    fleet.wait_done()
    fleet.stop()
    report = fleet.judge(scene.LIMITS, room=room)
    print(report.text())
    assert report.ok, report.text()
    assert peaks(report)["crowd"] == value

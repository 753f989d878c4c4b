"""Ninety-nine tasks without a limit and one with: it is kept exactly, and binds nobody else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores import store_url

from . import hundred
from .conftest import Fleet, opened
from .peaks import peaks

JOBS_OF_EACH = 15
LIMITED = 240
dice = random.Random(12)


@pytest.fixture(params=["postgres"])
def fleet(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Fleet]:
    url = store_url(request.param, tmp_path)
    with opened(url, tmp_path, monkeypatch, module=hundred) as fleet:
        yield fleet


def test_one_limited_task_among_ninety_nine_others(fleet: Fleet) -> None:
    tasks = [*hundred.PLAIN * JOBS_OF_EACH, *[hundred.limited] * LIMITED]
    dice.shuffle(tasks)
    fleet.start("--processes", "4", "--concurrency", "25", scene="tests.exactness.hundred:app")
    fleet.submit(
        [task.call(dice.uniform(0.005, 0.03)) for task in tasks],
        [{"limited": 1} if task is hundred.limited else {} for task in tasks],
    )
    fleet.wait_done()
    fleet.stop()
    report = fleet.judge(hundred.LIMITS, room=100)
    most = peaks(report)
    print(f"{most['']} of the others at once\n{report.text()}")
    assert report.ok, report.text()
    assert report.unjudged == set()
    assert most["limited"] == hundred.LIMITS["limited"]
    assert most[""] > 10, "the others take the room that there is"

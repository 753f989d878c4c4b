"""Workers that declare different values for the same limit: at every moment one of them counts,
for all of them, and an operator's word counts before any."""

from __future__ import annotations

import random

from headgate.checker import Change
from headgate.execlog import now
from tests.waiting import wait_until

from . import scene
from .conftest import Fleet

MOST = 60
dice = random.Random(6)


def feed(fleet: Fleet) -> None:
    calls = [scene.shared_async.call(dice.uniform(0.01, 0.05)) for _ in range(MOST)]
    fleet.submit(calls, [{"shared": 1}] * MOST)


def value(fleet: Fleet) -> int | None:
    return fleet.store.group("shared")[0].value


def test_workers_that_disagree_about_a_limit(fleet: Fleet) -> None:
    with fleet.fed(MOST // 2, lambda: feed(fleet)):
        disagree(fleet)
    fleet.wait_done()
    fleet.stop()
    report = fleet.judge(scene.LIMITS, room=60)
    print(report.text())
    assert report.ok, report.text()
    assert report.usage["shared"].peak == 10


def disagree(fleet: Fleet) -> None:
    def run(count: int) -> None:
        goal = fleet.done() + count
        wait_until(lambda: fleet.done() >= goal, why=f"{count} more have run")

    fleet.start("--name", "ten", "--concurrency", "20", HEADGATE_TEST_SHARED="10")
    run(60)
    # Without a release the last start counts, for those who started before it, too.
    fleet.start("--name", "two", "--concurrency", "20", HEADGATE_TEST_SHARED="2")
    wait_until(lambda: value(fleet) == 2, why="the second has declared its value")
    fleet.changes.append(Change(now(), "shared", 2))
    run(40)
    told = [one.detail for one in fleet.store.oddities() if one.what == "disagreement"]
    assert len(told) == 1, "it is shown"
    assert "shared" in told[0]
    fleet.set_limit("shared", 5, before=2)
    run(40)
    # Whatever is declared below it, and whoever starts last.
    fleet.start("--name", "last", "--concurrency", "20", HEADGATE_TEST_SHARED="10")
    run(40)
    assert value(fleet) == 5
    fleet.changes.append(Change(now(), "shared", 10))
    fleet.app.concurrency.reset("shared", reason="test")
    run(60)

"""`ready`, `running` and the slots follow from `jobs`: whatever is missing of them is rebuilt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.jobs import Finish
from headgate.stores import open_store
from headgate.stores.protocol import Exchange
from tests.conformance.conftest import HandClock, Rig, need
from tests.postgres.rival import Rival, Waiter, until_blocked


class Scene:
    """One job in every state, those that run under a limit."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        rig.declare(api=2)
        self.hand = rig.hand()
        (done,) = rig.submit()
        for claimed in self.hand.claim():
            self.hand.end(claimed)
        self.running = rig.submit(2, needs=need("api"))
        self.claimed = self.hand.claim()
        (ready,) = rig.submit(task="nobody")
        (unrouted,) = rig.submit(task="unknown", routed=False)
        (scheduled,) = rig.submit(delay=500)
        self.ids = [done, *self.running, ready, unrouted, scheduled]
        self.before = self.states()

    def states(self) -> list[str]:
        return [self.rig.state(id) for id in self.ids]


@pytest.fixture
def scene(postgres_url: str) -> Iterator[Scene]:
    clock = HandClock()
    store = open_store(postgres_url, clock=clock)
    assert store.doctor() == []
    yield Scene(Rig(store, clock))
    assert store.doctor() == [], "what was mended is whole"
    store.close()


@pytest.fixture
def hurt(scene: Scene, postgres_url: str) -> Iterator[Rival]:
    with Rival(postgres_url) as rival:
        yield rival


def mend(scene: Scene) -> set[str]:
    found = {trouble.what for trouble in scene.rig.store.doctor()}
    mended = scene.rig.store.doctor(repair=True)
    assert {trouble.what for trouble in mended} == found
    assert all(trouble.repaired for trouble in mended)
    return found


def test_a_lost_line(scene: Scene, hurt: Rival) -> None:
    hurt.run("TRUNCATE headgate.ready, headgate.unrouted, headgate.scheduled")
    hurt.commit()
    assert mend(scene) == {"jobs-nowhere"}
    assert scene.states() == scene.before
    rig = scene.rig
    scene.hand.claim()
    assert rig.state(scene.ids[-1]) == "scheduled", "it waits for its time as before"
    rig.clock.advance(501)
    assert scene.ids[-1] in {claimed.job for claimed in scene.hand.claim()}


def test_a_lost_retry(scene: Scene, hurt: Rival) -> None:
    """Until when it was to wait is told nowhere else: it may start, and counts what it had."""
    rig, (first, *_) = scene.rig, scene.claimed
    assert scene.hand.end(first, "retry", delay=500.0)
    hurt.run("TRUNCATE headgate.scheduled")
    hurt.commit()
    assert mend(scene) == {"jobs-nowhere"}
    assert rig.state(first.job) == "ready"
    (again,) = [one for one in scene.hand.claim() if one.job == first.job]
    assert again.attempt == 2


def test_lost_slots(scene: Scene, hurt: Rival) -> None:
    hurt.run("DELETE FROM headgate.slots WHERE slot = 0")
    hurt.commit()
    assert scene.rig.held("api") == 1
    assert mend(scene) == {"slotless-attempts"}
    assert scene.rig.held("api") == 2
    for claimed in scene.claimed:
        assert scene.hand.end(claimed)
    assert scene.rig.held("api") == 0


def test_a_slot_that_somebody_takes_meanwhile_is_not_written_down_for_another(
    scene: Scene, hurt: Rival
) -> None:
    """Two that are given the same number are one row: one of them would hold nothing."""
    rig = scene.rig
    hurt.run("DELETE FROM headgate.slots WHERE slot = 1")
    version = hurt.value("SELECT value FROM headgate.counters WHERE name = 'limits'")
    hurt.commit()
    take = "SELECT slot FROM headgate.take_slot('api', 1, 'x', 'y', 1e9, %s, true, 9, false)"
    assert hurt.value(take, version) == 1
    waiter = Waiter(lambda: rig.store.doctor(repair=True))
    with Rival(str(rig.store.url)) as watch:
        until_blocked(watch)
    hurt.commit()
    assert [trouble.what for trouble in waiter.result()] == ["slotless-attempts"]
    assert rig.held("api") == 3
    for claimed in scene.claimed:
        assert scene.hand.end(claimed)
    assert rig.held("api") == 1


def test_lost_attempts(scene: Scene, hurt: Rival) -> None:
    hurt.run("TRUNCATE headgate.running")
    hurt.commit()
    assert mend(scene) == {"holderless-slots", "jobs-nowhere"}
    assert scene.rig.held("api") == 0
    assert [scene.rig.state(id) for id in scene.running] == ["ready", "ready"]
    stale = scene.rig.store.exchange(
        Exchange(scene.hand.id, [Finish(c.token, "succeeded") for c in scene.claimed])
    ).stale
    assert stale == {c.token for c in scene.claimed}, "their attempts run no more"


def test_all_that_can_be_rebuilt_is_gone(scene: Scene, hurt: Rival) -> None:
    """As in a dump that was taken while the tables were being emptied."""
    hurt.run("TRUNCATE headgate.ready, headgate.running, headgate.slots")
    hurt.commit()
    assert mend(scene) == {"jobs-nowhere"}
    assert scene.rig.held("api") == 0
    scene.hand.running.clear()
    assert len(scene.hand.claim()) == 2


def test_a_lost_worker(scene: Scene, hurt: Rival) -> None:
    hurt.run("TRUNCATE headgate.workers, headgate.leases")
    hurt.commit()
    assert mend(scene) == {"workerless-attempts"}
    assert [scene.rig.state(id) for id in scene.running] == ["ready", "ready"]
    assert scene.rig.held("api") == 0


def test_places_in_line_of_what_is_elsewhere(scene: Scene, hurt: Rival) -> None:
    hurt.run("INSERT INTO headgate.ready SELECT queue, priority, band, turn, lane, place, n, 0, 0"
             " FROM headgate.jobs WHERE band <> '' ON CONFLICT DO NOTHING")  # fmt: skip
    hurt.run("INSERT INTO headgate.ready VALUES ('q', 0, 'b', '', '', 1, 123456, 0, 0)")
    hurt.commit()
    assert mend(scene) == {"jobs-in-line-twice", "bodiless-rows"}
    assert scene.states() == scene.before

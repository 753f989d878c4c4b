"""A round trip of a worker, or a change of a limit, whose commit does not come: the others neither
get what it has in hand nor wait for it, and who must know how it ends waits for just that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import pytest

from headgate.errors import StoreInDoubt
from headgate.jobs import Finish
from headgate.stores.postgres.connection import Connection
from headgate.stores.postgres.database import Database
from tests.conformance.conftest import Rig, need
from tests.postgres.rival import PATIENCE, Rival, Waiter, until_blocked
from tests.waiting import wait_until

T = TypeVar("T")
either_way = pytest.mark.parametrize("kept", [True, False], ids=["kept", "undone"])


class LeftOpen(Generic[T]):
    """A call in a thread and a session of its own that has done all but commit. With `act` it is
    the transaction of that function which is left open, else the first."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, call: Callable[[], T], *, act: bool = False
    ) -> None:
        self._reached, self._go = threading.Event(), threading.Event()
        self._kept = True
        self._armed = not act
        self._thread = 0
        commit, call_two = Database._commit, Database.call_two

        def held(database: Database, connection: Connection, rings: Iterable[str]) -> None:
            if self._armed and threading.get_ident() == self._thread:
                self._armed = False
                self._reached.set()
                assert self._go.wait(PATIENCE)
                if not self._kept:
                    connection.close()
            commit(database, connection, rings)

        def acting(database: Database, *arguments: Any) -> tuple[Any, Any]:
            if threading.get_ident() == self._thread:
                self._armed = True
            return call_two(database, *arguments)

        def run() -> T:
            self._thread = threading.get_ident()
            return call()

        monkeypatch.setattr(Database, "_commit", held)
        if act:
            monkeypatch.setattr(Database, "call_two", acting)
        self._waiter = Waiter(run)
        assert self._reached.wait(PATIENCE), "it does not come to its commit"

    def end(self, kept: bool) -> T | None:
        """Commit, and the answer; or the connection is lost and all is undone."""
        self._kept = kept
        self._go.set()
        if kept:
            return self._waiter.result()
        with pytest.raises(StoreInDoubt):
            self._waiter.result()
        return None


def at_once(call: Callable[[], T]) -> T:
    """It waits for nobody."""
    return Waiter(call).result()


@either_way
@pytest.mark.parametrize("jobs", [1, 5])
def test_a_claim_beside_a_change_of_a_limit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, jobs: int, kept: bool
) -> None:
    """Which value it would be granted by is not known yet. One job alone is looked for and taken
    in one step, of several there is a choice."""
    rig.declare(gpu=4)
    rig.submit(jobs, needs=need("gpu"))
    hand = rig.hand()
    change = LeftOpen(monkeypatch, lambda: rig.set_limit("gpu", 0 if jobs == 1 else 2))
    for _ in range(3):
        got = at_once(lambda: hand.exchange(room=5))
        assert got.claimed == ()
        assert got.wake_in is not None
        assert got.wake_in < 0.2, "again soon"
    change.end(kept)
    by_the_new_value = 0 if jobs == 1 else 2
    expected = by_the_new_value if kept else min(jobs, 4)
    got = hand.claim()

    def all_got() -> bool:
        got.extend(hand.claim())
        return len(got) >= expected

    # The server may take a moment to see that the connection is gone.
    wait_until(all_got, why=f"{expected} are granted")
    assert len(got) == expected


class Scene:
    """One worker ends an attempt and claims two more in a round trip that is left open; the lease
    of that worker ends meanwhile. Another has attempts under another limit."""

    def __init__(self, rig: Rig, rival: Rival, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig = rig
        rig.declare(gpu=2, api=3)
        self.jobs = rig.submit(4, needs=need("gpu"))
        rig.submit(6, needs=need("api"), task="other")
        self.hand, self.other = rig.hand(), rig.hand("other")
        (mine,) = self.hand.claim(room=1, tasks=["task"])
        self.theirs = self.other.claim(room=2, tasks=["other"])
        self.ends = [Finish(mine.token, "succeeded")]
        self.trip = LeftOpen(monkeypatch, self.exchange, act=True)
        rival.run("UPDATE headgate.leases SET ends = 0 WHERE worker = %s", self.hand.id)
        rival.commit()

    def exchange(self) -> Any:
        return self.hand.exchange(self.ends, room=2, tasks=["task"])

    def check_others_go_on(self) -> None:
        got = at_once(lambda: self.other.exchange(room=5))
        assert [one.task for one in got.claimed] == ["other"], "what is left, and no gpu"
        assert got.wake_in is not None
        assert got.wake_in < 0.2, "again soon: somebody is at work there"
        assert at_once(lambda: self.other.end(self.theirs[0]))
        assert self.rig.held("gpu") == 1, "as it was before"


@pytest.fixture
def scene(rig: Rig, rival: Rival, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(rig, rival, monkeypatch)


@either_way
def test_beside_a_round_trip_that_is_left_open(scene: Scene, kept: bool) -> None:
    rig, hand = scene.rig, scene.hand
    scene.check_others_go_on()
    assert at_once(rig.store.sweep).lost_workers == (), "who is at work is live, however late"
    assert at_once(lambda: rig.store.renew(hand.id))
    # What was not told is told again, as the worker would.
    got = scene.trip.end(kept) or scene.exchange()
    assert not got.stale
    assert [one.job for one in got.claimed] == scene.jobs[1:3]
    assert rig.state(scene.jobs[0]) == "succeeded"
    assert scene.other.claim(tasks=["task"]) == []
    assert rig.held("gpu") == 2


@either_way
def test_a_worker_is_declared_dead_in_its_round_trip(
    scene: Scene, watch: Rival, kept: bool
) -> None:
    """What it claims there must not belong to nobody: who declares it dead waits for the end."""
    rig, hand = scene.rig, scene.hand
    burying = Waiter(lambda: rig.store.declare_dead(hand.id, "killed"))
    until_blocked(watch)
    scene.check_others_go_on()
    assert burying.waits
    scene.trip.end(kept)
    burying.result()
    hand.running.clear()
    states = [rig.state(id) for id in scene.jobs]
    assert states == ["succeeded" if kept else "ready", *["ready"] * 3]
    assert rig.held("gpu") == 0
    assert scene.exchange().dead, "whatever it says later"
    assert len(scene.other.claim(tasks=["task"])) == 2
    assert rig.held("gpu") == 2

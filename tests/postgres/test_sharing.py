"""A small limit of short jobs is used by several processes at once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bench.fill import fill
from bench.fleet import Fleet, workers
from bench.tasks import LIMITED, app
from headgate import App, Worker
from headgate.choice.chooser import IDLE_AFTER, WATCH_EVERY
from headgate.stores.postgres.view import IDLE
from headgate.worker import claimer
from headgate.worker.offering import ALONE, Offering
from tests.conformance.conftest import Hand, Rig, need
from tests.conformance.test_ahead import ask, go_on, parts
from tests.postgres import pgbouncer
from tests.postgres.rival import Rival
from tests.postgres.server import Server

BACKLOG = 10_000
SHARE = 2000
MOST = 400_000


def test_processes_share_a_small_limit_of_jobs_that_take_no_time(
    empty_database: str, tmp_path: Path
) -> None:
    """Each would be as fast with one slot as with ten: alone, one of them would keep all for as
    long as there is work."""
    jobs = [(app.tasks["limited"].call().new_job(), 2 * BACKLOG)]
    sent = fill(empty_database, jobs)
    options = ("--processes", "3", "--concurrency", "100")
    with workers(tmp_path, empty_database, *options, held=True) as fleet:

        def shared() -> bool:
            nonlocal sent
            if sent - fleet.traces.count(LIMITED) < BACKLOG:
                assert sent < MOST, "one process has kept all"
                sent += fill(empty_database, jobs)  # before the line is empty: who holds, holds
            return len(ran := sorted(fleet.traces.each(LIMITED))) > 1 and ran[-2] >= SHARE

        fleet.go()
        # On a machine that is busy with other things nobody has a processor to offer slots for.
        fleet.wait(shared, "two of them have run many")
        fleet.wait(lambda: fleet.traces.count(LIMITED) >= sent, "all have run")
    assert fleet.traces.count(LIMITED) == sent


SHORT = 0.02
SOME = 100
ENOUGH = 16_000


@pytest.mark.parametrize("way", ["told", "deaf", "bounced"])
def test_who_comes_later_gets_a_part(postgres: Server, tmp_path: Path, way: str) -> None:
    """The one that is there has use for all slots, and hands them on from job to job. The others
    have nothing else to run, whether or not they can be woken."""
    urls = {"told": postgres.fresh, "deaf": lambda: postgres.fresh(listen="off")}
    url = urls.get(way, pgbouncer.shared().fresh)()
    fleets: list[Fleet] = []
    sent = 0

    def ran() -> int:
        return sum(fleet.traces.count(LIMITED) for fleet in fleets)

    def feed() -> None:
        nonlocal sent
        while sent - ran() < 1000:
            assert sent < ENOUGH, f"one has kept all: {[f.traces.each(LIMITED) for f in fleets]}"
            jobs = [app.tasks["tenth"].call(SHORT).new_job() for _ in range(500)]
            sent += len(fleets[0].store.submit(jobs))

    def have_run(fleet: Fleet, each: int) -> bool:
        feed()
        counts = fleet.traces.each(LIMITED)
        return len(counts) > each - 1 and all(count >= SOME for count in counts)

    options = ("--concurrency", "20")
    for folder in ("first", "later"):
        (tmp_path / folder).mkdir()
    with workers(tmp_path / "first", url, *options) as first:
        fleets.append(first)
        first.wait(lambda: have_run(first, 1), "it has all for itself")
        with workers(tmp_path / "later", url, *options, count=2) as later:
            fleets.append(later)
            later.wait(lambda: have_run(later, 2), "both have run some")
        first.wait(lambda: ran() >= sent, "all have run")


@pytest.mark.parametrize("deaf", [False, True])
def test_slots_are_left_alone_for_as_long_as_others_sleep(
    postgres: Server, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    """Where nobody can be woken, it is longer by the time between two looks: what is taken back
    sooner is seen by chance only."""
    made: list[Offering] = []

    def make(*given: Any) -> Offering:
        made.append(Offering(*given))
        return made[0]

    monkeypatch.setattr(claimer, "Offering", make)
    with closing(App(url=postgres.fresh(**({"listen": "off"} if deaf else {})))) as own:
        own.task(nothing).submit()
        Worker(own, "w", burst=True).run()
    assert [one.alone for one in made] == [ALONE + (claimer._POLL_WITHOUT_BELL if deaf else 0.0)]


async def nothing() -> None: ...


# --- who says that it is idle, and who hears it ---------------------------------------------------


def marks(rival: Rival) -> list[tuple[str, str]]:
    found = rival.run("SELECT grp, worker FROM headgate.refused ORDER BY grp")
    rival.rollback()
    return [(group, worker) for group, worker in found]


def busy(rig: Rig, limit: int) -> Hand:
    """A worker that has all slots of `api`."""
    rig.declare(api=limit)
    rig.submit(100, needs=need("api"))
    hand = rig.hand("busy")
    assert len(parts(ask(hand, room=10, ahead_room=20).claimed)[0]) == limit
    return hand


def pass_time(rig: Rig, holder: Hand, *idle: Hand, seconds: float = 2 * IDLE_AFTER) -> None:
    """The holder goes on, so that the lane moves; the others look, and find nothing."""
    for _ in range(round(seconds / WATCH_EVERY)):
        rig.clock.advance(1.01 * WATCH_EVERY)
        go_on(holder)
        for hand in idle:
            assert hand.claim() == []


def test_who_has_nothing_to_run_says_so_once_for_all(rig: Rig, rival: Rival) -> None:
    holder = busy(rig, 4)
    first, second = rig.hand("first"), rig.hand("second")
    pass_time(rig, holder, first, second, seconds=IDLE_AFTER / 2)
    assert marks(rival) == [], "not at once"
    assert holder.state.idle_elsewhere == frozenset()
    pass_time(rig, holder, first, second)
    assert marks(rival) == [(f"{IDLE}api", first.id)], "that one of them is idle is enough"
    assert go_on(holder) > 0, "what is reserved goes on: nobody is in want of a place in line"
    assert holder.state.idle_elsewhere == {"api"}
    rig.clock.advance(1.1)
    go_on(holder)
    assert holder.state.idle_elsewhere == frozenset(), "they are gone, or have got something"


def test_who_has_something_to_run_does_not(rig: Rig, rival: Rival) -> None:
    holder = busy(rig, 4)
    other = rig.hand("other", tasks=("task", "other"))
    rig.submit(task="other")
    assert len(other.claim()) == 1
    pass_time(rig, holder, other)
    assert marks(rival) == []


def test_of_one_slot_nobody_wants_a_part(rig: Rig, rival: Rival) -> None:
    holder, other = busy(rig, 1), rig.hand("other")
    pass_time(rig, holder, other)
    assert marks(rival) == []


def test_who_has_one_slot_keeps_it(rig: Rig, rival: Rival) -> None:
    rig.declare(api=2)
    rig.submit(100, needs=need("api"))
    holders = [rig.hand("a"), rig.hand("b")]
    for hand in holders:
        assert len(parts(ask(hand, room=1, ahead_room=20).claimed)[0]) == 1
    idle = rig.hand("idle")
    pass_time(rig, holders[0], idle)
    assert marks(rival) == [(f"{IDLE}api", idle.id)]
    assert holders[0].state.idle_elsewhere == frozenset()

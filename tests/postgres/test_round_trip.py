"""One round trip of a worker on PostgreSQL: as many slot rows as holders, nothing lost with an
answer, nothing extra for those without limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from headgate.jobs import CapUse, Claimed, Finish, NewJob
from headgate.stores.postgres import store
from headgate.stores.postgres import trip as trips
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.exchanging import Exchanger
from headgate.stores.postgres.store import PostgresStore
from headgate.stores.postgres.transaction import SQL, Transaction
from headgate.stores.postgres.trip import RoundTrip
from headgate.stores.protocol import Claim, Exchange, Passed
from headgate.stores.relational import finishing
from tests.conformance.conftest import Hand, Rig, need
from tests.postgres.lost import lost_answer
from tests.postgres.rival import Rival, Waiter
from tests.postgres.sent import Sent
from tests.waiting import PATIENCE


def database(rig: Rig) -> Database:
    assert isinstance(rig.store, PostgresStore)
    return rig.store._db


def slot_rows(rig: Rig, group: str) -> tuple[int, int]:
    """Rows of the group, and those of them that somebody holds."""
    with database(rig).read() as tx:
        row = tx.row(
            "SELECT count(*) AS rows, count(token) AS held FROM headgate.slots WHERE grp = :grp"
            " AND epoch = (SELECT max(epoch) FROM headgate.epochs)",
            {"grp": group},
        )
    assert row is not None
    return row["rows"], row["held"]


def done(hand: Hand) -> list[Finish]:
    return [Finish(token, "succeeded", result="null") for token in list(hand.running)]


@pytest.mark.parametrize("limit", [1, 4, 51, 101, 500, 1000, 100_000])
def test_as_many_slots_as_holders_at_once(rig: Rig, limit: int) -> None:
    """A limit costs nothing to declare, whatever its value; its rows are used again."""
    rig.declare(api=limit)
    most = min(limit, 1100)
    for _ in range(3):
        rig.submit(most // 3 + 10, needs=need("api"))
    waiting = 3 * (most // 3 + 10)
    hand = rig.hand()
    first = hand.claim(room=5000)
    assert len(first) == min(limit, waiting)
    assert slot_rows(rig, "api") == (len(first), len(first))
    assert rig.held("api") == len(first)
    # What ends and what starts next, in one round trip, in the same rows.
    rig.submit(20, needs=need("api"))
    left = waiting + 20 - len(first)
    again = hand.exchange(done(hand), room=5000)
    assert len(again.claimed) == min(limit, left)
    rows, held = slot_rows(rig, "api")
    assert (rows, held) == (max(len(first), held), len(again.claimed))
    numbers = [slot for c in again.claimed for _, slot in c.groups]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_loses_nothing(rig: Rig, applied: bool) -> None:
    rig.declare(api=2)
    rig.submit(4, needs=need("api"))
    hand = rig.hand()
    first = hand.claim(room=1)
    with lost_answer(applied=applied):
        rig.store.exchange(Exchange(hand.id, done(hand), claim=Claim(2, hand.tasks, hand.state)))
    got = hand.exchange(done(hand), room=2)
    assert got.stale == frozenset(), "its end was told by the round trip whose answer was lost"
    assert len(got.claimed) == 2
    assert rig.state(first[0].job) == "succeeded"
    assert rig.held("api") == 2
    assert {slot.token for slot in rig.store.group("api")[1]} == {c.token for c in got.claimed}


def test_what_was_reserved_in_a_lost_answer_goes_back(rig: Rig) -> None:
    rig.declare(api=1)
    ids = rig.submit(3, needs=need("api"))
    hand = rig.hand()
    claim = Claim(5, hand.tasks, hand.state, ahead={"task": 0.01}, ahead_room=5)
    with lost_answer():
        rig.store.exchange(Exchange(hand.id, claim=claim))
    got = hand.exchange(room=5)
    assert [c.job for c in got.claimed] == ids[:1]
    assert [rig.state(id) for id in ids] == ["running", "ready", "ready"]


@pytest.mark.parametrize("applied", [(True,), (False,), (True, True), (True, False), (False, True)])
@pytest.mark.parametrize("outcome", ["succeeded", "retry"])
def test_slots_handed_on_in_a_lost_answer_are_handed_on_from_there(
    rig: Rig, applied: tuple[bool, ...], outcome: str
) -> None:
    """The worker goes on handing them from one job to the next, and knows only whose they were
    when it last heard."""
    rig.declare(api=1)
    rig.submit(5, needs=need("api"))
    hand = rig.hand()
    claim = Claim(5, hand.tasks, hand.state, ahead={"task": 0.01}, ahead_room=4)
    first, *behind = rig.store.exchange(Exchange(hand.id, claim=claim)).claimed
    assert [one.reserved for one in behind] == [True] * 4
    ended = [first]

    def trip() -> Exchange:
        """All that ended so far, and who runs in their slots now."""
        ends = [Finish(one.token, outcome, delay=60.0) for one in ended]  # type: ignore[arg-type]
        starts = [Passed(one.token, None, 0.01) for one in ended[1:]]
        return Exchange(hand.id, ends, passed=[*starts, Passed(runs.token, first.token, 0.0)])

    for number, done in enumerate(applied):
        runs = behind[number]
        # Ends of jobs that come back are told before the round trip itself.
        if done or outcome == "succeeded":
            with lost_answer(applied=done and outcome == "succeeded"):
                rig.store.exchange(trip())
        ended.append(runs)
    runs = behind[len(applied)]
    assert rig.store.exchange(trip()).stale == frozenset()
    (slot,) = rig.store.group("api")[1]
    assert (slot.token, slot.holder) == (runs.token, runs.job)
    assert rig.state(runs.job) == "running"
    left = [Finish(one.token, "returned") for one in behind[len(applied) + 1 :]]
    assert not rig.store.exchange(Exchange(hand.id, [Finish(runs.token, "succeeded"), *left])).stale
    assert rig.held("api") == 0
    assert isinstance(rig.store, PostgresStore)
    assert rig.store._exchanger._books._held == {}
    assert rig.store._exchanger._books.handed._to == {}


def handed_on(rig: Rig) -> tuple[Hand, Exchange, list[Claimed]]:
    """One slot; a round trip in which the first of three ends, and the second runs in its slot."""
    rig.declare(api=1)
    rig.submit(3, needs=need("api"))
    hand = rig.hand()
    claim = Claim(5, hand.tasks, hand.state, ahead={"task": 0.01}, ahead_room=2)
    claimed = rig.store.exchange(Exchange(hand.id, claim=claim)).claimed
    first, second, _ = claimed
    ends = [Finish(first.token, "succeeded")]
    passed = [Passed(second.token, first.token, 0.0)]
    return hand, Exchange(hand.id, ends, passed=passed), list(claimed)


def nothing_is_remembered(rig: Rig) -> bool:
    assert isinstance(rig.store, PostgresStore)
    books = rig.store._exchanger._books
    return (books._held, books._follows, books.handed._to) == ({}, {}, {})


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_who_waits_for_a_slot_is_woken_whatever_was_lost_before(rig: Rig, lost: int) -> None:
    hand, trip, (_, second, third) = handed_on(rig)
    for n in range(lost):
        with lost_answer(applied=n == 0):
            rig.store.exchange(trip)
    assert not rig.store.exchange(trip).stale
    # As an attempt tells it that asks for something, beside the round trip.
    assert not rig.store.exchange(Exchange(hand.id, passed=trip.passed)).stale
    rig.store.exchange(Exchange(hand.id, [Finish(third.token, "returned")]))
    bell = rig.store.bell("room")
    while bell.wait(0.3):
        """It rings when it is opened, for what may have been missed before."""
    rig.store.exchange(Exchange(hand.id, [Finish(second.token, "succeeded")]))
    assert bell.wait(PATIENCE), "there is room"
    bell.close()
    assert nothing_is_remembered(rig)


def test_what_is_told_beside_a_round_trip_is_not_remembered_for_ever(rig: Rig) -> None:
    hand, trip, (_, second, third) = handed_on(rig)
    assert not rig.store.exchange(trip).stale
    with lost_answer():
        rig.store.exchange(Exchange(hand.id, passed=trip.passed))
    ends = [Finish(second.token, "succeeded"), Finish(third.token, "returned")]
    assert not rig.store.exchange(Exchange(hand.id, ends)).stale
    assert nothing_is_remembered(rig)


def test_a_dead_worker_is_not_remembered(rig: Rig) -> None:
    hand, trip, (_, _, third) = handed_on(rig)
    with lost_answer(applied=False):
        rig.store.exchange(trip)
    rig.store.declare_dead(hand.id, "killed")
    told = rig.store.exchange(
        Exchange(hand.id, [*trip.finishes, Finish(third.token, "returned")], passed=trip.passed)
    )
    assert told.dead
    assert nothing_is_remembered(rig)


def test_an_end_that_was_accepted_is_not_called_stale(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is declared dead in the middle of an exchange."""
    rig.submit(2)
    hand = rig.hand()
    a, b = hand.claim(room=2)
    real = RoundTrip.run

    def too_late(trip: RoundTrip) -> Any:
        rig.store.declare_dead(hand.id, "killed")
        return real(trip)

    monkeypatch.setattr(RoundTrip, "run", too_late)
    ends = [Finish(a.token, "retry", delay=60.0), Finish(b.token, "succeeded")]
    hand.running.clear()
    told = rig.store.exchange(Exchange(hand.id, ends))
    assert (told.dead, told.stale) == (True, {b.token})
    assert [rig.state(one.job) for one in (a, b)] == ["scheduled", "ready"]


def test_of_ends_that_are_told_one_by_one_those_before_the_death_count(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows from each is under a cap, so each is a transaction of its own."""
    rig.submit(3)
    hand = rig.hand()
    a, b, c = hand.claim(room=3)
    real = Exchanger._write_ends

    def killed_behind(exchanger: Exchanger, *args: Any) -> Any:
        outcome = real(exchanger, *args)
        rig.store.declare_dead(hand.id, "killed")
        return outcome

    monkeypatch.setattr(Exchanger, "_write_ends", killed_behind)
    follow = [NewJob("task", caps=(CapUse(name, max_total=1),)) for name in "xy"]
    ends = [
        Finish(a.token, "succeeded", followups=(follow[0],)),
        Finish(b.token, "succeeded", followups=(follow[1],)),
        Finish(c.token, "succeeded"),
    ]
    hand.running.clear()
    told = rig.store.exchange(Exchange(hand.id, ends))
    assert (told.dead, told.stale) == (True, {b.token, c.token})
    assert [rig.state(one.job) for one in (a, b, c)] == ["succeeded", "ready", "ready"]
    assert [rig.state(one.id) for one in follow] == ["ready", "gone"]


def test_a_follow_up_under_a_cap_finds_the_room_of_who_ended_before(rig: Rig) -> None:
    """One end is told in another way than the other; their order counts all the same."""
    cap = (CapUse("one", max_total=1, when_full="skip"),)
    first, second = rig.submit(caps=cap), rig.submit()
    hand = rig.hand()
    a, b = sorted(hand.claim(room=2), key=lambda one: one.job != first[0])
    assert [a.job, b.job] == [*first, *second]
    follow = NewJob("task", caps=cap)
    ends = [Finish(a.token, "succeeded"), Finish(b.token, "succeeded", followups=(follow,))]
    hand.running.clear()
    got = rig.store.exchange(Exchange(hand.id, ends))
    assert not got.stale
    assert got.refused == ()
    assert rig.state(follow.id) == "ready"


def marks(rig: Rig) -> list[str]:
    with database(rig).read() as tx:
        return [row["grp"] for row in tx.rows("SELECT grp FROM headgate.refused ORDER BY grp")]


def test_it_is_forgotten_who_was_in_want_of_a_group(rig: Rig, rival: Rival) -> None:
    """Every look reads all marks: of many keys that were full one day no row may be left."""
    rig.declare(api=1, gpu=1)
    rig.submit(needs=need("api"))
    rig.submit(needs=need("gpu"))
    rig.hand().claim()
    other = rig.hand("other")
    for group in ("api", "gpu"):
        rig.submit(task="wide", needs=need(group))
    for _ in range(4):
        assert other.claim() == []
        rig.clock.advance(0.15)
    assert marks(rig) == ["api", "gpu"]
    rig.clock.advance(store.OLD_MARKS)
    rival.run("SELECT 1 FROM headgate.refused WHERE grp = 'api' FOR UPDATE")
    Waiter(rig.store.sweep).result()
    assert marks(rig) == ["api"], "somebody renews it just now, and is not waited for"
    rival.rollback()
    rig.clock.advance(store.SLOTS_EVERY)
    rig.store.sweep()
    assert marks(rig) == []


def test_limits_of_others_cost_those_without_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same statements, and as many, of a worker that comes now and then and of a busy one."""
    monkeypatch.setattr(trips, "VIEW_AGE", 60.0)  # however slow this machine is
    sent = Sent(monkeypatch)

    def statements(hand: Hand) -> list[str]:
        rig.submit(50)
        hand.exchange(room=10)  # knows from here on what was said of limits
        sent.take_all()
        hand.exchange(done(hand), room=10)
        for _ in range(3):
            hand.exchange(done(hand), room=10, again=True, fresh=False)
        hand.exchange(done(hand), room=0)
        return sent.take_all()

    plain = statements(rig.hand(tasks=("task",)))
    rig.declare(api=10, tenant=2)
    other = rig.hand("other", tasks=("other",))
    rig.store.submit([NewJob("other", needs=need("api")) for _ in range(30)])
    other.claim(room=20)
    assert statements(rig.hand("later", tasks=("task",))) == plain
    look, act, ring = SQL.exchange.look, SQL.exchange.act, SQL.exchange.ring
    assert plain == [look, act, ring, look, act, look, act, look, act, look, look, act, ring]


def test_one_limited_among_ninety_nine_that_are_not(rig: Rig) -> None:
    rig.declare(one=1)
    names = [f"task{i}" for i in range(99)]
    rig.store.submit([NewJob(name) for name in names for _ in range(3)])
    rig.store.submit([NewJob("limited", needs=need("one")) for _ in range(10)])
    hands = [rig.hand(f"w{i}", tasks=(*names, "limited")) for i in range(4)]
    started = [c for hand in hands for c in hand.claim(room=100)]
    assert sum(c.task == "limited" for c in started) == 1
    assert len(started) == 3 * 99 + 1


def test_rows_of_slots_that_nobody_has_used_for_long_are_deleted(rig: Rig) -> None:
    rig.declare(api=20)
    rig.submit(10, needs=need("api"))
    hand = rig.hand()
    claimed = hand.claim(room=10)
    for one in claimed[:7]:
        hand.end(one)
    assert slot_rows(rig, "api") == (10, 3)
    rig.clock.advance(store.IDLE_SLOTS / 2)
    rig.store.sweep()
    assert slot_rows(rig, "api") == (10, 3), "they may be used again soon"
    rig.clock.advance(store.IDLE_SLOTS)
    rig.store.sweep()
    assert slot_rows(rig, "api") == (3, 3)
    rig.submit(5, needs=need("api"))
    assert len(hand.claim(room=10)) == 5
    assert slot_rows(rig, "api") == (8, 8)


def told_alone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes every start and end that is told by statements of its own."""
    alone: list[str] = []
    for name in ("pass_one", "finish_one"):
        real = getattr(finishing, name)

        def watched(*args: Any, real: Any = real, name: str = name) -> Any:
            alone.append(name)
            return real(*args)

        monkeypatch.setattr(finishing, name, watched)
    return alone


@pytest.mark.parametrize(("jobs", "copied"), [(19, False), (20, True), (1000, True)])
def test_many_jobs_are_copied(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, jobs: int, copied: bool
) -> None:
    copies: list[int] = []
    real = Transaction.copy

    def watched(tx: Transaction, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        copies.append(len(rows))
        real(tx, sql, rows)

    monkeypatch.setattr(Transaction, "copy", watched)
    ids = rig.submit(jobs)
    assert copies == ([jobs, jobs] if copied else []), "bodies, and places in line"
    assert len(rig.hand().claim(room=jobs)) == len(set(ids)) == jobs


def test_one_that_comes_back_does_not_make_the_others_slow(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not a plain end is told by statements of its own, and only that."""
    alone = told_alone(monkeypatch)
    rig.submit(60)
    hand = rig.hand()
    claim = Claim(10, hand.tasks, hand.state, ahead={"task": 0.0001}, ahead_room=50)
    claimed = rig.store.exchange(Exchange(hand.id, claim=claim)).claimed
    assert len(claimed) == 60
    ends = [Finish(one.token, "succeeded") for one in claimed]
    ends[0] = Finish(ends[0].token, "retry", delay=60.0)
    ends[-1] = Finish(ends[-1].token, "retry", delay=60.0)
    passed = [Passed(one.token, None, 0.01) for one in claimed if one.reserved]
    assert not rig.store.exchange(Exchange(hand.id, ends, passed=passed)).stale
    assert len(alone) == 3, "two ends, and that one of them had started"
    states = Counter(rig.state(one.job) for one in claimed)
    assert states == {"succeeded": 58, "scheduled": 2}


def test_what_never_started_goes_back_together(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those of which there is more to tell."""
    alone = told_alone(monkeypatch)
    rig.declare(api=2)
    rig.submit(50, needs=need("api"))
    capped = rig.submit(1, needs=need("api"), caps=(CapUse("one", max_total=1),))
    of_schedule = rig.submit(1, needs=need("api"), options='{"schedule":"nightly","tick":1.0}')
    hand = rig.hand()
    claim = Claim(2, hand.tasks, hand.state, ahead={"task": 0.0001}, ahead_room=100)
    claimed = rig.store.exchange(Exchange(hand.id, claim=claim)).claimed
    first, reserved = claimed[:2], claimed[2:]
    assert [one.reserved for one in claimed] == [False] * 2 + [True] * 50
    cancelled = reserved[7]
    rig.store.cancel(cancelled.job, reason="not wanted")
    other = rig.hand("other")
    back = [Finish(one.token, "returned") for one in claimed]
    told = rig.store.exchange(Exchange(other.id, back))
    assert told.stale == {one.token for one in claimed}, "they are another worker's"
    alone.clear()
    assert not rig.store.exchange(Exchange(hand.id, back)).stale
    assert len(alone) == 5, "two that held slots, a cancelled, a capped one and one of a schedule"
    assert rig.held("api") == 0
    states = {one.job: rig.state(one.job) for one in claimed}
    assert states.pop(cancelled.job) == "cancelled"
    assert set(states.values()) == {"ready"}
    again = rig.store.exchange(Exchange(hand.id, claim=claim)).claimed
    order = [one.job for one in claimed if one is not cancelled]
    assert [(one.job, one.attempt) for one in again] == [(job, 1) for job in order]
    assert {first[0].job, *capped, *of_schedule} <= set(order)
    assert rig.store.exchange(Exchange(hand.id, back)).stale == {one.token for one in claimed}
    rig.store.exchange(Exchange(hand.id, [Finish(one.token, "returned") for one in again]))


def test_a_task_may_have_any_name(rig: Rig) -> None:
    """Whether its jobs need something is not told by how their needs look as a text."""
    name = "a,[],[],b"
    rig.declare(api=1)
    hands = [rig.hand(str(n), [name]) for n in range(2)]
    for _ in hands:
        rig.submit(task=name, needs=need("api"))
    assert [len(hand.claim()) for hand in hands] == [1, 0]
    assert rig.held("api") == 1
    hands[0].end_all()
    # An idle worker that finds one job alone must see its needs just the same.
    (claimed,) = hands[1].claim()
    assert [group for group, _ in claimed.groups] == ["api"]


def test_nothing_is_remembered_of_what_expired(rig: Rig) -> None:
    rig.declare(api=5)
    late = rig.submit(3, needs=need("api"), expires=5.0)
    rig.clock.advance(10)
    assert rig.hand().claim() == []
    assert [rig.state(id) for id in late] == ["cancelled"] * 3
    assert isinstance(rig.store, PostgresStore)
    assert rig.store._exchanger._books._held == {}

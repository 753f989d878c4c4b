"""A job under a limit that stands alone in line is taken by the round trip that finds it, and by
none that must not take it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headgate.jobs import Finish
from headgate.limits import Need, Needs
from headgate.rates import Pace
from headgate.stores.postgres.lone import MOST, Lone
from headgate.stores.protocol import Claim, Exchange, Publication, SlotRequest
from tests.conformance.conftest import Hand, Rig, need, one_of
from tests.postgres.lost import lost_answer
from tests.postgres.rival import Rival, Waiter, until_blocked
from tests.postgres.sent import Sent

Trips = Callable[..., tuple[int, int]]


@pytest.fixture
def hand(rig: Rig) -> Hand:
    return rig.hand()


@pytest.fixture
def trips(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> Trips:
    sent = Sent(monkeypatch)

    def trips(who: Hand = hand) -> tuple[int, int]:
        """How many round trips, and how many jobs they brought, which have ended then."""
        sent.take()
        found = len(who.exchange(room=5).claimed)
        counted = len(sent.take())
        who.end_all()
        return counted, found

    return trips


def met(rig: Rig, trips: Trips, needs: Needs) -> None:
    """A job with these needs stood alone in line before."""
    rig.submit(needs=needs)
    assert trips() == (2, 1)


def known_job(rig: Rig, trips: Trips) -> str:
    """The one job in line, under a limit of 1; such a one was met before."""
    rig.declare(api=1)
    met(rig, trips, need("api"))
    (id,) = rig.submit(needs=need("api"))
    return id


@pytest.mark.parametrize("needs", [need("api"), need("api", "acme"), need("api", units=2)])
def test_it_is_taken_in_one_round_trip(rig: Rig, trips: Trips, hand: Hand, needs: Needs) -> None:
    rig.declare(api=2)
    met(rig, trips, needs)
    (id,) = rig.submit(needs=needs)
    assert trips() == (1, 1)
    assert rig.state(id) == "succeeded"
    group = needs.all[0].group
    assert rig.held(group) == 0
    rig.submit(needs=needs)
    (claimed,) = hand.exchange(room=5).claimed
    assert claimed.groups == ((group, 0),)
    assert rig.held(group) == needs.all[0].units
    got = hand.exchange([Finish(claimed.token, "succeeded", result="null")])
    assert not got.stale
    assert rig.held(group) == 0


def test_it_is_taken_as_soon_as_a_slot_held_by_hand_is_given_back(rig: Rig, trips: Trips) -> None:
    rig.declare(api=1)
    met(rig, trips, need("api"))
    slot = rig.store.take_slot(SlotRequest("api", "somebody", "test", 60.0))
    assert slot is not None
    rig.submit(needs=need("api"))
    assert trips()[1] == 0
    rig.store.drop_slot(slot.group, slot.slot, slot.token)
    assert trips() == (1, 1)


def test_where_the_group_is_full_nobody_asks_again_at_once(rig: Rig, trips: Trips) -> None:
    rig.declare(api=1)
    met(rig, trips, need("api"))
    other = rig.hand("other")
    rig.submit(needs=need("api"))
    (claimed,) = other.exchange(room=1).claimed
    (id,) = rig.submit(needs=need("api"))
    got = rig.hands[0].exchange(room=5)
    assert (got.claimed, got.more, got.wake_in) == ((), False, None)
    assert rig.state(id) == "ready"
    other.end(claimed)
    assert trips() == (1, 1)


def test_the_values_in_force_count(rig: Rig, trips: Trips) -> None:
    rig.declare(api=1)
    met(rig, trips, need("api"))
    met(rig, trips, need("api", "acme"))
    for group, needs in (("api", need("api")), ("api/acme", need("api", "acme"))):
        (id,) = rig.submit(needs=needs)
        rig.set_limit(group, 0)
        assert trips()[1] == 0
        rig.set_limit(group, 1)
        rig.pause(group)
        assert trips()[1] == 0
        rig.pause(group, False)
        assert rig.state(id) == "ready"
        assert trips()[1] == 1
        rig.submit(needs=needs)
        assert trips() == (1, 1), "it has heard of it"
    rig.pause("api")
    rig.submit(needs=need("api", "acme"))
    assert trips()[1] == 0, "a limit is paused with all its keys"


@pytest.mark.parametrize(
    "needs",
    [
        one_of("api", "db"),
        Needs((Need("api"), Need("db"))),
        need("rated"),
        need("unlimited"),
        need("vast"),
    ],
)
def test_where_there_is_more_to_it_it_is_looked_at(rig: Rig, trips: Trips, needs: Needs) -> None:
    code = {"api": 1, "db": 1, "rated": 5, "unlimited": None, "vast": 100_000}
    rig.store.publish(Publication("test", code=code, code_rates={"rated": Pace(60.0)}))
    for _ in range(2):
        met(rig, trips, needs)


def test_two_in_line_are_a_choice(rig: Rig, trips: Trips) -> None:
    rig.declare(api=5)
    met(rig, trips, need("api"))
    rig.submit(2, needs=need("api"))
    assert trips() == (2, 2)
    rig.submit(needs=need("api"))
    rig.submit()
    assert trips() == (2, 2)
    rig.submit(needs=need("api"), task="unheard-of")
    assert trips()[1] == 0


def test_units_kept_for_somebody_are_left(rig: Rig, trips: Trips, rival: Rival) -> None:
    rig.declare(api=2)
    met(rig, trips, need("api"))
    rival.run(
        "INSERT INTO headgate.reservations (grp, lane, job, units, ends)"
        " VALUES ('api', 'somebody', 0, 2, %s)",
        rig.clock.now() + 60,
    )
    rival.commit()
    (id,) = rig.submit(needs=need("api"))
    assert trips()[1] == 0
    assert rig.state(id) == "ready"


def test_who_decides_in_the_group_just_now_is_neither_waited_for_nor_overlooked(
    rig: Rig, rival: Rival, trips: Trips, hand: Hand
) -> None:
    """That nothing is held yet is not that there is room."""
    known_job(rig, trips)
    version = rival.value("SELECT value FROM headgate.counters WHERE name = 'limits'")
    rival.rollback()
    taken = "SELECT outcome FROM headgate.take_slot('api', 1, 'x', 'y', 1e9, %s, true, 1, false)"
    assert rival.value(taken, version) == "taken"
    got = hand.exchange(room=5)
    assert got.claimed == ()
    assert got.wake_in is not None
    assert got.wake_in < 1, "contended is not full: again, and soon"
    rival.commit()
    got = hand.exchange(room=5)
    assert got.claimed == ()
    assert got.wake_in is not None
    assert got.wake_in > 60, "full: when that slot ends"
    assert rig.held("api") == 1


def test_a_limit_that_somebody_changes_just_now_grants_nothing(
    rig: Rig, rival: Rival, trips: Trips, hand: Hand
) -> None:
    known_job(rig, trips)
    rival.lock("\x01limits")
    assert hand.exchange(room=5).claimed == ()
    rival.rollback()
    assert len(hand.exchange(room=5).claimed) == 1


def test_a_dead_worker_is_told_so(rig: Rig, trips: Trips, hand: Hand) -> None:
    id = known_job(rig, trips)
    hand.die()
    assert hand.exchange(room=5).dead
    assert rig.state(id) == "ready"
    assert rig.held("api") == 0


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_loses_neither_the_job_nor_its_slot(
    rig: Rig, trips: Trips, hand: Hand, applied: bool
) -> None:
    id = known_job(rig, trips)
    with lost_answer("value", applied=applied):
        rig.store.exchange(Exchange(hand.id, claim=Claim(1, hand.tasks, hand.state)))
    assert rig.held("api") == applied
    (claimed,) = hand.exchange(room=1).claimed
    assert (claimed.job, claimed.attempt, claimed.groups) == (id, 1, (("api", 0),))
    hand.end_all()
    assert rig.held("api") == 0


def test_only_the_last_lanes_are_remembered(rig: Rig, trips: Trips) -> None:
    rig.declare(tenant=1)
    for number in range(MOST + 1):
        met(rig, trips, need("tenant", f"t{number}"))
    met(rig, trips, need("tenant", "t0"))
    rig.submit(needs=need("tenant", f"t{MOST}"))
    assert trips() == (1, 1)


def test_what_is_said_of_them_is_put_together_once(
    rig: Rig, trips: Trips, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str | None] = []
    real = Lone.told
    monkeypatch.setattr(Lone, "told", lambda *args: told.append(real(*args)) or told[-1])
    rig.declare(api=1)
    met(rig, trips, need("api"))
    for _ in range(2):
        trips()
    assert told[-1] is not None
    assert told[-1] is told[-2]


# --- what a choice would have seen to -------------------------------------------------------------


def test_what_is_offered_to_others_is_left_to_them(rig: Rig, trips: Trips, hand: Hand) -> None:
    rig.declare(api=2)
    met(rig, trips, need("api"))
    assert rig.store.take_slot(SlotRequest("api", "somebody", "test", 60.0))
    rig.submit(needs=need("api"))
    assert hand.exchange(room=5, left={"api": 1}).claimed == ()
    assert len(hand.exchange(room=5).claimed) == 1


def test_the_wait_of_a_wide_job_is_over_when_it_starts(
    rig: Rig, trips: Trips, hand: Hand, rival: Rival
) -> None:
    """Tried again, it keeps its place: counted from its first wait, it would shut others out."""
    rig.declare(api=2)
    wide = need("api", units=2)
    met(rig, trips, wide)
    slot = rig.store.take_slot(SlotRequest("api", "somebody", "test", 1000.0))
    assert slot is not None
    rig.submit(needs=wide)
    assert not hand.exchange(room=5).claimed
    rig.store.drop_slot(slot.group, slot.slot, slot.token)
    (claimed,) = hand.exchange(room=5).claimed
    hand.end(claimed, "retry", delay=1.0)
    rig.clock.advance(20)
    rig.submit(needs=need("api"), task="other")
    assert rig.hand("other").exchange(room=1, tasks=("other",)).claimed
    for _ in range(2):
        assert not hand.exchange(room=5).claimed
    assert rival.run("SELECT grp FROM headgate.reservations") == []


def test_who_has_just_run_one_is_not_idle(rig: Rig, trips: Trips, hand: Hand, rival: Rival) -> None:
    rig.declare(api=2)
    met(rig, trips, need("api"))
    request = SlotRequest("api", "somebody", "test", 1000.0)
    rig.store.take_slot(request)
    second = rig.store.take_slot(request)
    assert second is not None
    rig.submit(needs=need("api"))
    rig.clock.advance(1)
    assert not hand.exchange(room=5).claimed
    rig.store.drop_slot(second.group, second.slot, second.token)
    rig.clock.advance(1)
    (claimed,) = hand.exchange(room=5).claimed
    hand.end(claimed)
    rig.store.take_slot(request)
    rig.submit(needs=need("api"))
    rig.clock.advance(0.11)
    assert not hand.exchange(room=5).claimed
    assert rival.run("SELECT grp FROM headgate.refused") == []


def test_a_turn_that_was_served_is_not_owed_any_more(rig: Rig, hand: Hand) -> None:
    rig.declare(tenant=2)
    rig.tenant("acme")
    assert hand.exchange(room=5).claimed
    hand.end_all()
    hand.state.rotation("default", 0).owed = ["acme"]
    rig.tenant("acme")
    assert hand.exchange(room=5).claimed
    assert hand.state.rotation("default", 0).owed == []


def test_nobody_waits_for_a_look_that_follows_a_try(
    rig: Rig, trips: Trips, hand: Hand, rival: Rival
) -> None:
    """The locks of a grant that came to nothing are given back first."""
    known_job(rig, trips)
    rival.run("SELECT 1 FROM headgate.ready FOR UPDATE")  # somebody is taking it
    url = rig.store.url
    with Rival(url) as blocker, Rival(url) as watch:
        blocker.run("LOCK TABLE headgate.refused IN ACCESS EXCLUSIVE MODE")  # only a look reads it
        waiter = Waiter(lambda: hand.exchange(room=5))
        until_blocked(watch)
        lock = "SELECT pg_try_advisory_xact_lock(headgate.salt(), headgate.lock_key('api'))"
        free = watch.value(lock)
        watch.rollback()
        blocker.rollback()
        assert waiter.result().claimed == ()
    assert free

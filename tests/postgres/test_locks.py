"""Lock, then look: with a competing transaction held open at the worst moment, nobody is granted
more than there is, nobody is told what is no longer true, and nobody waits for ever."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from headgate.errors import HeadgateError, StaleAttempt, StoreBusy
from headgate.jobs import Finish, JobFilter, NewJob, Retention, Routing
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.postgres import leases
from headgate.stores.postgres import store as postgres_store
from headgate.stores.protocol import (
    Claim,
    Exchange,
    LimitChange,
    NewWorker,
    SlotRecord,
    SlotRequest,
    Store,
)
from headgate.turns import ClaimState
from tests.conformance.conftest import Hand, HandClock, Rig, need
from tests.postgres.rival import PATIENCE, Rival, Waiter, until_blocked
from tests.postgres.server import Server


def take(store: Store, group: str = "gpu", lease: float = 30.0) -> SlotRecord | None:
    return store.take_slot(SlotRequest(group, "me", "here", lease=lease))


HOLD = (
    "INSERT INTO headgate.slots (grp, epoch, slot, token, holder, worker_name, units, since, ends)"
    " SELECT %s, max(epoch), 0, nextval('headgate.tokens'), 'rival', 'rival', 1, 0, 1e12"
    " FROM headgate.epochs"
)
SHARE = "SELECT pg_advisory_xact_lock_shared(headgate.salt(), headgate.lock_key(%s))"
ALONE = "SELECT pg_advisory_xact_lock(headgate.salt(), headgate.lock_key(%s))"


# --- grants ---------------------------------------------------------------------------------------


def test_what_is_held_is_summed_after_the_wait(rig: Rig, rival: Rival, watch: Rival) -> None:
    """A sum read in the statement that waited would be older than the other's commit."""
    rig.declare(gpu=1)
    rival.lock("gpu")
    rival.run(HOLD, "gpu")
    taking = Waiter(lambda: take(rig.store))
    until_blocked(watch)
    rival.commit()
    assert taking.result() is None
    assert rig.held("gpu") == 1


def test_a_grant_that_is_undone_leaves_the_room(rig: Rig, rival: Rival, watch: Rival) -> None:
    rig.declare(gpu=1)
    rival.lock("gpu")
    rival.run(HOLD, "gpu")
    taking = Waiter(lambda: take(rig.store))
    until_blocked(watch)
    rival.rollback()
    assert taking.result() is not None


def test_groups_retaken_are_summed_after_the_wait(rig: Rig, rival: Rival, watch: Rival) -> None:
    rig.declare(gpu=1, api=1)
    rig.submit(needs=need("gpu"))
    hand = rig.hand()
    (claimed,) = hand.claim()
    assert rig.store.release_groups(claimed.token)
    rival.lock("gpu")
    rival.run("UPDATE headgate.slots SET token = 1000000, holder = 'rival', ends = 1e12"
              " WHERE grp = 'gpu'")  # fmt: skip
    taking = Waiter(lambda: rig.store.retake_groups(claimed.token))
    until_blocked(watch)
    rival.commit()
    assert taking.result() is False
    assert rig.store.drop_slot("gpu", 0, None)
    assert rig.store.retake_groups(claimed.token)


def test_an_attempt_lost_while_it_waits_for_its_groups_is_told(
    rig: Rig, rival: Rival, watch: Rival
) -> None:
    rig.declare(gpu=1)
    rig.submit(needs=need("gpu"))
    hand = rig.hand()
    (claimed,) = hand.claim()
    assert rig.store.release_groups(claimed.token)
    rival.lock("gpu")
    taking = Waiter(lambda: rig.store.retake_groups(claimed.token))
    until_blocked(watch)
    rig.store.declare_dead(hand.id, "killed")
    hand.running.clear()
    rival.commit()
    with pytest.raises(StaleAttempt):
        taking.result()
    assert rig.held("gpu") == 0


def test_a_slot_counted_as_ended_is_not_extended(rig: Rig, rival: Rival, watch: Rival) -> None:
    """Both look at the last moment of its lease: who has the group decides."""
    rig.declare(gpu=1)
    slot = take(rig.store, lease=5)
    assert slot is not None
    rival.lock("gpu")
    rival.run("UPDATE headgate.slots SET token = NULL, ends = NULL WHERE grp = 'gpu'")
    extending = Waiter(lambda: rig.store.extend_slot("gpu", slot.slot, slot.token, 30))
    until_blocked(watch)
    rival.commit()
    assert extending.result() is None
    assert take(rig.store) is not None


def test_one_group_at_work_holds_up_no_other(rig: Rig, rival: Rival) -> None:
    rig.declare(gpu=1, api=1)
    rival.lock("gpu")
    assert Waiter(lambda: take(rig.store, "api")).result() is not None


def test_two_who_number_slots_of_an_unlimited_group_do_it_one_after_the_other(
    rig: Rig, rival: Rival
) -> None:
    rig.declare(api=None)
    rig.submit(2, needs=need("api"))
    hand = rig.hand()
    rival.lock("api")
    got = hand.exchange()
    assert got.claimed == (), "somebody is at it: again at once, not by the same numbers"
    assert got.wake_in is not None
    assert got.wake_in < 0.2
    rival.commit()
    assert [c.groups for c in hand.claim()] == [(("api", 0),), (("api", 1),)]


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "undone"])
def test_a_claim_neither_waits_for_a_grant_under_way_nor_counts_on_its_end(
    rig: Rig, rival: Rival, kept: bool
) -> None:
    rig.declare(gpu=1)
    rig.submit(2, needs=need("gpu"))
    hand = rig.hand()
    rival.lock("gpu")
    rival.run(HOLD, "gpu")
    got = Waiter(lambda: hand.exchange(room=2)).result()
    assert got.claimed == ()
    assert got.wake_in is not None
    assert got.wake_in < 0.2, "somebody is at work there: again soon"
    if kept:
        rival.commit()
    else:
        rival.rollback()
    assert len(hand.claim(room=2)) == (0 if kept else 1)
    assert rig.held("gpu") == 1


def test_a_job_that_somebody_takes_just_now_is_passed_over(rig: Rig, rival: Rival) -> None:
    rig.declare(gpu=2)
    first, second, third = rig.submit(3, needs=need("gpu"))
    rival.run("SELECT 1 FROM headgate.ready WHERE job = (SELECT n FROM headgate.jobs WHERE id = %s)"
              " FOR UPDATE", first)  # fmt: skip
    hand = rig.hand()
    got = Waiter(lambda: hand.exchange(room=2)).result()
    assert [c.job for c in got.claimed] == [second, third]
    assert rig.held("gpu") == 2
    rival.rollback()
    assert hand.exchange(room=1).claimed == ()
    hand.end_all()
    assert [c.job for c in hand.claim(room=2)] == [first]


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "not after all"])
def test_who_claims_beside_an_end_under_way_is_not_granted_its_slot(
    rig: Rig, rival: Rival, watch: Rival, ended: bool
) -> None:
    """Somebody has the attempt: its own worker waits to end it, and nobody else gets its place."""
    rig.declare(gpu=1)
    rig.submit(2, needs=need("gpu"))
    hand, other = rig.hand(), rig.hand("other")
    (claimed,) = hand.claim(room=1)
    rival.run("DELETE FROM headgate.running WHERE token = %s", claimed.token)
    rival.run("UPDATE headgate.slots SET token = NULL, worker = NULL, job = NULL WHERE token = %s",
              claimed.token)  # fmt: skip
    rival.run(
        "INSERT INTO headgate.finished (job, state, reason, attempt, at)"
        " SELECT n, 'succeeded', '', 1, 0 FROM headgate.jobs WHERE id = %s",
        claimed.job,
    )
    ending = Waiter(lambda: hand.end(claimed))
    until_blocked(watch)
    assert Waiter(lambda: other.exchange(room=1)).result().claimed == ()
    if ended:
        rival.commit()
    else:
        rival.rollback()
    assert ending.result() is not ended, "what it says is stale if somebody else has ended it"
    assert len(other.claim(room=1)) == 1
    assert rig.held("gpu") == 1


# --- limits ---------------------------------------------------------------------------------------


def test_after_a_change_nothing_is_granted_by_the_old_value(
    rig: Rig, rival: Rival, watch: Rival
) -> None:
    rig.declare(gpu=5)
    assert take(rig.store) is not None
    rival.run(ALONE, leases.LIMITS)
    rival.run("INSERT INTO headgate.overrides VALUES ('gpu', 'limit', 1, 'rival', '', 0)")
    rival.run("UPDATE headgate.counters SET value = value + 1 WHERE name = 'limits'")
    taking = Waiter(lambda: take(rig.store))
    until_blocked(watch)
    rival.commit()
    assert taking.result() is None


def test_a_word_that_has_ended_is_taken_back_before_the_next_grant(rig: Rig, rival: Rival) -> None:
    """Somebody is in the middle of a grant, so nobody can say yet that the word has ended: until
    then nothing is granted, neither by the word nor by what counts after it."""
    rig.declare(gpu=1)
    rig.store.change_limit(LimitChange("gpu", 3, set_value=True, lasts=60))
    rig.submit(5, needs=need("gpu"))
    hand = rig.hand()
    rig.clock.advance(60)
    rival.run(SHARE, leases.LIMITS)
    got = hand.exchange()
    assert (got.claimed, got.more) == ((), True)
    assert len(rig.store.events("limit_changed")) == 1
    rival.commit()
    assert len(hand.claim()) == 1
    assert len(rig.store.events("limit_changed")) == 2


def test_a_change_waits_for_grants_under_way_and_lets_others_go_on(
    rig: Rig, rival: Rival, watch: Rival
) -> None:
    rig.declare(gpu=5, api=100)
    rival.run(SHARE, leases.LIMITS)
    rival.lock("gpu")
    rival.run(HOLD, "gpu")
    change = Waiter(lambda: rig.set_limit("gpu", 0))
    until_blocked(watch)
    rig.submit(20, needs=need("api"))
    hand = rig.hand()
    deadline = time.monotonic() + 10
    while len(hand.running) < 20 and time.monotonic() < deadline:
        hand.exchange(room=20 - len(hand.running))
    assert len(hand.running) == 20, "a claim that does not end stops nobody"
    assert take(rig.store, "api") is not None
    assert change.waits
    rival.commit()
    change.result()
    assert rig.store.group("gpu")[0].value == 0
    rig.store.drop_slot("gpu", 0, None)


def test_a_change_that_never_gets_its_turn_says_so(
    rig: Rig, rival: Rival, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "LOCK_TIMEOUT", 0.5)
    rig.declare(gpu=5)
    rival.run(SHARE, leases.LIMITS)
    with pytest.raises(StoreBusy, match="nothing was changed"):
        rig.set_limit("gpu", 1)
    rival.rollback()
    assert rig.store.group("gpu")[0].value == 5


# --- cancel and finish ----------------------------------------------------------------------------


def test_a_job_that_ends_while_it_is_cancelled_has_ended(
    rig: Rig, rival: Rival, watch: Rival
) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    rival.run("DELETE FROM headgate.running WHERE token = %s", claimed.token)
    rival.run("INSERT INTO headgate.finished (job, state, reason, attempt, at)"
              " SELECT n, 'succeeded', '', 1, 0 FROM headgate.jobs WHERE id = %s", id)  # fmt: skip
    cancel = Waiter(lambda: rig.store.cancel(id))
    until_blocked(watch)
    rival.commit()
    hand.running.clear()
    assert cancel.result().state == "succeeded"
    assert watch.run("SELECT * FROM headgate.cancels") == []


@pytest.mark.parametrize("outcome", ["succeeded", "retry"])
def test_a_job_cancelled_while_it_ends_does_not_come_back(
    rig: Rig, rival: Rival, watch: Rival, outcome: str
) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    rival.run("SELECT 1 FROM headgate.running WHERE token = %s FOR UPDATE", claimed.token)
    rival.run("INSERT INTO headgate.cancels SELECT n, 0, 'me', 'no more' FROM headgate.jobs"
              " WHERE id = %s", id)  # fmt: skip
    ending = Waiter(lambda: hand.end(claimed, outcome))
    until_blocked(watch)
    rival.commit()
    assert ending.result()
    assert rig.state(id) == ("succeeded" if outcome == "succeeded" else "cancelled")
    assert watch.run("SELECT * FROM headgate.cancels") == [], "no word is left behind"


def test_a_job_claimed_while_it_is_cancelled_is_asked_to_stop(
    rig: Rig, rival: Rival, watch: Rival
) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    rival.run("DELETE FROM headgate.ready")
    rival.run(
        "INSERT INTO headgate.running (token, job, worker, attempt, started_at, ready_at, slots)"
        " SELECT 7, n, %s, 1, 0, 0, '[]' FROM headgate.jobs WHERE id = %s", hand.id, id,
    )  # fmt: skip
    cancel = Waiter(lambda: rig.store.cancel(id, reason="no more"))
    until_blocked(watch)
    rival.commit()
    record = cancel.result()
    assert (record.state, record.cancel_requested) == ("running", True)
    rig.store.exchange(Exchange(hand.id, [Finish(7, "cancelled", "no more")]))
    assert rig.state(id) == "cancelled"


# --- rows that are taken once ---------------------------------------------------------------------


def test_of_two_who_do_the_same_one_finds_it_done(rig: Rig) -> None:
    """Routing, retrying, pruning and promoting in four threads at once: each job once."""
    (unrouted,) = rig.submit(routed=False)
    routed = [Waiter(lambda: rig.store.route([Routing(unrouted)])) for _ in range(4)]
    assert sorted(waiter.result() for waiter in routed) == [0, 0, 0, 1]

    ids = rig.submit(10, delay=5)
    rig.clock.advance(6)
    for sweep in [Waiter(rig.store.sweep) for _ in range(4)]:
        sweep.result()
    hand = rig.hand()
    assert sorted(c.job for c in hand.claim()) == sorted([unrouted, *ids])
    hand.end_all()

    def retry() -> bool:
        try:
            rig.store.retry(ids[0])
        except HeadgateError:
            return False
        return True

    assert sorted(w.result() for w in [Waiter(retry) for _ in range(4)]) == [False] * 3 + [True]
    assert len(hand.claim()) == 1
    hand.end_all()
    assert [a.outcome for a in rig.store.attempts(ids[0])] == ["succeeded", "succeeded"]
    prunes = [Waiter(lambda: rig.store.prune(Retention(succeeded=0))) for _ in range(4)]
    assert sum(prune.result() for prune in prunes) == 11
    assert rig.store.count(JobFilter()) == 0


def test_a_submit_repeated_after_a_lost_answer_stores_nothing_twice(rig: Rig) -> None:
    one = [NewJob("task")]
    many = [NewJob("task") for _ in range(40)]
    for jobs in (one, many):
        assert not any(done.existing for done in rig.store.submit(jobs))
        assert all(done.existing for done in rig.store.submit(jobs))
    mixed = [*many[:20], *(NewJob("task") for _ in range(5))]
    assert [done.existing for done in rig.store.submit(mixed)] == [True] * 20 + [False] * 5
    assert rig.store.count(JobFilter()) == 46


# --- all at once ----------------------------------------------------------------------------------


STEPS = 10_000
"""Attempts granted, ended and lost."""
CALLS = 3 * STEPS
"""After so many calls it is over, whatever came of them; 4,000 are enough as a rule."""
LEAST = {"granted": 4_000, "ended": 3_000, "lost": 200, "late": 40, "retaken": 100}
WAITING = 100
"""Where fewer wait, more are submitted: the line never runs dry."""
THREADS = 6
KEYS = [f"k{n}" for n in range(10)]
MOST = {"gpu": 6, "both": 8, **{f"tenant/{key}": 3 for key in KEYS}}
"""Those whose value nobody changes."""
GROUPS = (*MOST, "api")
NEEDS = (
    need("gpu"),
    need("both"),
    *(need("tenant", key) for key in KEYS),
    Needs((Need("gpu"), Need("api"))),
    Needs((Need("gpu"), Need("both"))),
    Needs((Need("gpu"), Need("both"), Need("tenant", KEYS[0]))),
)


def test_no_two_operations_wait_for_each_other(postgres: Server, empty_database: str) -> None:
    """Everything that takes locks, in threads, in random order: no deadlock, never too many, and
    every attempt that was granted has one end. In a database of its own, so that all that the
    server counted there is of this test; and it counts a deadlock, too, after which somebody tried
    again."""
    clock = HandClock()
    with closing(open_store(empty_database, clock=clock)) as store:
        crowd = Crowd(Rig(store, clock))
        crowd.run()
        print(dict(crowd.done))
        assert crowd.over == []
        assert crowd.steps >= STEPS
        counts = {what: crowd.done[what] for what in LEAST}
        assert all(counts[what] >= least for what, least in LEAST.items()), counts
        ends = outcomes(empty_database)
        assert ends["lost"] == crowd.done["lost"]
        assert ends.total() - ends["lost"] == crowd.done["ended"]
        assert ends.total() == crowd.done["granted"]
        assert {group: crowd.rig.held(group) for group in GROUPS} == dict.fromkeys(GROUPS, 0)
        assert store.doctor() == []
    assert deadlocks(postgres, empty_database) == 0


def outcomes(url: str) -> Counter[str]:
    """Of all attempts, as they are on record."""
    with Rival(url) as asked:
        rows = asked.run(
            "SELECT outcome, count(*) FROM (SELECT outcome FROM headgate.attempts UNION ALL"
            " SELECT outcome FROM headgate.finished WHERE token IS NOT NULL) x GROUP BY outcome"
        )
    return Counter(dict(rows))


def deadlocks(server: Server, url: str) -> int:
    """That happened in this database. A session may tell what it met only when it ends: this
    waits for the last."""
    name = urlsplit(url).path.removeprefix("/")
    deadline = time.monotonic() + PATIENCE
    with server.admin() as admin:
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        while admin.execute(sessions, (name,)).fetchone() != (0,):
            assert time.monotonic() < deadline, "somebody is still there"
            time.sleep(0.01)
        counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = %s"
        row = admin.execute(counted, (name,)).fetchone()
    assert row is not None
    return int(str(row[0]))


class Crowd:
    """Threads, each a worker of its own, that do now this, now that."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.store = rig.store
        self.done: Counter[str] = Counter()
        self.over: list[str] = []
        self._guard = threading.Lock()
        self._numbers = itertools.count()

    @property
    def steps(self) -> int:
        return self.done["granted"] + self.done["ended"] + self.done["lost"]

    def run(self) -> None:
        self.rig.declare(gpu=6, both=8, tenant=3, api=2)
        hands = [self.rig.hand(f"w{n}") for n in range(THREADS)]
        threads = [
            Waiter(lambda n=n: self._loop(hands[n], random.Random(n)))  # type: ignore[misc]
            for n in range(THREADS)
        ]
        for thread in threads:
            thread.result(300)
        for hand in hands:
            self._count(ended=len(hand.running))
            hand.end_all()
        self.rig.clock.advance(60)
        self.store.sweep()

    def _loop(self, hand: Hand, chance: random.Random) -> None:
        often = {
            self._work: 10, self._die: 3, self._by_hand: 2,
            self._operate: 1, self._cancel: 1, self._look: 1, self._feed: 1,
        }  # fmt: skip
        while self.steps < STEPS and self.done["calls"] < CALLS:
            (do,) = chance.choices(list(often), list(often.values()))
            do(hand, chance)
            self._count(calls=1)

    def _count(self, **what: int) -> None:
        with self._guard:
            self.done.update(what)

    def _work(self, hand: Hand, chance: random.Random) -> None:
        """What ended is told, and more is claimed, in one round trip."""
        ends = [
            Finish(token, "interrupted" if chance.random() < 0.2 else "succeeded")
            for token in hand.running
            if chance.random() < 0.8
        ]
        got = hand.exchange(ends, room=5)
        assert got.stale == frozenset()
        self._count(ended=len(ends), granted=len(got.claimed))
        for claimed in got.claimed:
            again = 0.5 if len(claimed.groups) > 1 else 0.05
            if chance.random() < again and self.store.release_groups(claimed.token):
                self._count(retaken=self.store.retake_groups(claimed.token))
            if chance.random() < 0.1:
                self.store.extend(claimed.token, 1)

    def _die(self, hand: Hand, chance: random.Random) -> None:
        """A worker claims, and is never heard of again: whoever grants next takes its lease. Half
        of them come back when it has ended, and are told so if somebody took it."""
        name = f"mortal-{next(self._numbers)}"
        self.store.register(NewWorker(name, name, tasks=("task",), lease=5))
        claim = Claim(3, frozenset(["task"]), ClaimState())
        claimed = self.store.exchange(Exchange(name, claim=claim)).claimed
        self._count(granted=len(claimed))
        self.rig.clock.advance(6)
        take(self.store, chance.choice(GROUPS), lease=1)
        if claimed and chance.random() < 0.5:
            ends = [Finish(c.token, "succeeded") for c in claimed]
            if not self.store.exchange(Exchange(name, ends)).dead:
                self._count(ended=len(claimed), early=1)
                return
            self._count(late=1)
        self._count(lost=len(claimed))

    def _by_hand(self, hand: Hand, chance: random.Random) -> None:
        slot = take(self.store, chance.choice(GROUPS))
        if slot is not None:
            self.store.extend_slot(slot.group, slot.slot, slot.token, 5)
            self.store.drop_slot(slot.group, slot.slot, slot.token)

    def _operate(self, hand: Hand, chance: random.Random) -> None:
        self.store.change_limit(LimitChange("api", chance.randrange(1, 4), set_value=True))
        self.store.sweep()

    def _cancel(self, hand: Hand, chance: random.Random) -> None:
        for record in self.store.find(JobFilter(states=frozenset(["running", "ready"])), limit=2):
            self.store.cancel(record.id)

    def _look(self, hand: Hand, chance: random.Random) -> None:
        for group in ("gpu", "both", f"tenant/{chance.choice(KEYS)}"):
            held = self.store.group(group)[0].held
            if held > MOST[group]:
                self.over.append(f"{group}: {held} of {MOST[group]}")

    def _feed(self, hand: Hand, chance: random.Random) -> None:
        if self.store.count(JobFilter(states=frozenset(["ready"])), limit=WAITING) < WAITING:
            for needs in NEEDS:
                self.rig.submit(WAITING, needs=needs, max_lost=1_000_000)

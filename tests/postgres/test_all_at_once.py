"""All that takes locks at once, in random order: nobody waits in a circle, nobody is granted more
than there is, and every attempt has one end."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from contextlib import closing
from urllib.parse import urlsplit

from headgate.jobs import Finish, JobFilter
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.protocol import Claim, Exchange, LimitChange, NewWorker
from headgate.turns import ClaimState
from tests.conformance.conftest import Hand, HandClock, Rig, need
from tests.postgres.rival import Rival, Waiter
from tests.postgres.server import Server
from tests.postgres.test_locks import take
from tests.waiting import wait_until

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
    with server.admin() as admin:
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        wait_until(
            lambda: admin.execute(sessions, (name,)).fetchone() == (0,),
            why="the last session of the database ends",
        )
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

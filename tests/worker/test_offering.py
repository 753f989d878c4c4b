"""When a worker lets go of slots, and of how many."""

from __future__ import annotations

from headgate.jobs import Claimed
from headgate.worker.chains import Chains, Hold
from headgate.worker.offering import ALONE, FIRST, LONGEST, Offering
from headgate.worker.pace import ENOUGH

CHAIN = '["mail",["api",2],["tenant/acme",1]]'


class Loop:
    """A worker of concurrency 100 whose time and processor are ours to move."""

    def __init__(self, slots: int, chain: str = CHAIN) -> None:
        self.now = 1000.0
        self.used = 5.0
        self.chains = Chains(lambda claimed, reason: None, clock=lambda: self.now)
        self.holds: list[Hold] = []
        self.chain = chain
        self.take(slots)
        self.offering = Offering(self.chains, 100, lambda: self.now, lambda: self.used)

    def take(self, slots: int) -> None:
        for _ in range(slots):
            token = len(self.holds) + 1
            claimed = Claimed(f"job-{token}", token, 1, "t", "{}", "q", 0, "", "{}",
                              groups=(("api", 0),), chain=self.chain)  # fmt: skip
            self.holds.append(self.chains.granted(claimed))

    def pass_time(self, seconds: float, *, running: int = 1, used: float = 0.0) -> None:
        self.offering.answered(running)
        self.now += seconds + 1e-6  # sums of floats
        self.used += used
        self.offering.consider()

    def let_go(self) -> int:
        return sum(self.chains.lets_go.values())


def test_half_is_offered_when_all_stand_idle_between_round_trips() -> None:
    loop = Loop(slots=10)
    loop.pass_time(FIRST, running=0)
    assert loop.chains.lets_go == {CHAIN: 5}
    assert loop.offering.left() == {"api": 10, "tenant/acme": 5}
    followers = [loop.chains.ended(hold, passes=True) for hold in loop.holds[:5]]
    assert followers == [None] * 5
    assert loop.chains.lets_go == {}
    loop.now += ALONE
    assert loop.offering.left() == {}, "left alone for a moment only"


def test_half_is_offered_when_no_processor_is_left() -> None:
    loop = Loop(slots=4)
    loop.pass_time(FIRST, used=FIRST * 0.9)
    assert loop.let_go() == 2


def test_nothing_is_offered_that_is_of_use() -> None:
    for loop in (Loop(slots=10), Loop(slots=1), Loop(slots=80), Loop(slots=10, chain='["mail"]')):
        useful = loop.chain == CHAIN and len(loop.holds) == 10
        loop.pass_time(FIRST, running=10 if useful else 0, used=FIRST * 0.5)
        assert loop.let_go() == 0
        assert loop.offering.left() == {}


def test_half_of_what_another_stands_idle_for_is_offered() -> None:
    """However much use there is for it, and however full the worker is."""
    other = '["mail",["web",1]]'
    loop = Loop(slots=60)
    loop.chain = other
    loop.take(20)
    loop.offering.wanted = frozenset(["web"])
    loop.pass_time(FIRST, running=80)
    assert loop.chains.lets_go == {other: 10}
    assert loop.offering.left() == {"web": 10}
    loop.chains.lets_go.clear()
    loop.pass_time(FIRST, running=80)
    assert loop.let_go() == 0, "offers become rare here, too"
    loop.offering.wanted = frozenset()
    loop.pass_time(LONGEST, running=80)
    assert loop.let_go() == 0, "it has found something to run"


def test_of_one_slot_nothing_is_offered() -> None:
    loop = Loop(slots=1)
    loop.offering.wanted = frozenset(["api"])
    loop.pass_time(FIRST)
    assert loop.let_go() == 0


def test_slots_are_left_alone_after_what_runs_in_them_has_ended() -> None:
    loop = Loop(slots=10)
    for _ in range(ENOUGH):
        loop.chains.pace.note("t", 0.03)
    loop.offering.wanted = frozenset(["api"])
    loop.pass_time(FIRST)
    loop.now += 0.03 + ALONE / 2
    assert loop.offering.left() == {"api": 10, "tenant/acme": 5}
    loop.now += ALONE / 2
    assert loop.offering.left() == {}


def test_offers_become_rare_until_there_was_no_work() -> None:
    loop = Loop(slots=10)
    offers = 0
    for _ in range(round(60 / FIRST)):
        loop.chains.lets_go.clear()
        loop.pass_time(FIRST, running=0)
        offers += bool(loop.chains.lets_go)
    assert 8 < offers < 20
    for hold in loop.holds:
        loop.chains.ended(hold, passes=False)
    for _ in range(2):
        loop.pass_time(LONGEST, running=0)
    loop.take(10)
    loop.chains.lets_go.clear()
    loop.pass_time(FIRST, running=0)
    assert loop.let_go() == 5

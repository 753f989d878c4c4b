"""Who runs in whose slots: the worker's books against a ledger that takes every word literally.

A machine plays all that can happen between a worker and a store, in any order: ends, round
trips that are confirmed late or refused, coroutines that settle in between, jobs given back.
Whatever happened, in the ledger every running attempt has slots, and in the end none is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate.jobs import Claimed
from headgate.stores.protocol import Passed
from headgate.stores.protocol.claims import AHEAD
from headgate.worker.chains import LONGEST_WAIT, Chains, Hold, Sent
from headgate.worker.pace import ENOUGH, Pace

LIMIT = 3


def claimed(
    token: int, *, reserved: bool = False, chain: str = "c", groups: bool = True
) -> Claimed:
    return Claimed(
        f"job-{token}", token, 1, "t", "{}", "q", 0, "", "{}",
        groups=(("g", -1 if reserved else 0),) if groups else (), chain=chain, reserved=reserved,
    )  # fmt: skip


@dataclass
class Ledger:
    """What a store does with tokens: rows of attempts, and slots under a token."""

    rows: dict[int, bool] = field(default_factory=dict)
    """token → is it reserved?"""
    slots: list[int] = field(default_factory=list)
    """The token of each slot that is held."""

    def exchange(self, passed: tuple[Passed, ...], finishes: list[int]) -> None:
        for one in passed:
            assert one.token in self.rows, "nothing of ours is ever stale here"
            if not self.rows[one.token]:
                continue  # told before
            self.rows[one.token] = False
            if one.owner is not None:
                assert one.owner in self.rows
                self.slots = [one.token if t == one.owner else t for t in self.slots]
        for token in finishes:
            del self.rows[token]
            self.slots = [t for t in self.slots if t != token]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.ledger = Ledger()
        self.chains = Chains(self.give_back, self.noted, lambda: self.now)
        self.running: dict[int, Hold] = {}
        self.finishes: list[int] = []
        self.notes: list[int] = []
        self.returned: list[int] = []
        self.ran: list[int] = []
        self.tokens = 0
        self.flight: tuple[Sent, list[int]] | None = None
        self.arrived = False
        """Has the round trip under way reached the ledger?"""
        self.granted: list[Claimed] = []
        self.sent = 0.0

    def give_back(self, what: Claimed, reason: str) -> None:
        assert reason
        assert what.token not in self.ran
        self.returned.append(what.token)
        self.finishes.append(what.token)

    def noted(self, token: int) -> None:
        self.notes.append(token)

    def begin(self, hold: Hold, what: Claimed) -> None:
        if what.reserved:
            assert self.notes[-1] == what.token, "noted before it starts"
        assert what.token not in self.ran
        self.ran.append(what.token)
        self.running[what.token] = hold

    # --- the worker -------------------------------------------------------------------------

    @rule()
    def give_way(self) -> None:
        self.chains.gives_way = "c"

    @rule(count=st.integers(1, LIMIT))
    def let_go(self, count: int) -> None:
        self.chains.lets_go = {"c": count}

    @precondition(lambda self: self.running)
    @rule(data=st.data(), passes=st.sampled_from([True] * 7 + [False]))
    def end(self, data: st.DataObject, passes: bool) -> None:
        token = data.draw(st.sampled_from(sorted(self.running)))
        hold = self.running.pop(token)
        assert hold.user == token
        self.finishes.append(token)
        follower = self.chains.ended(hold, passes=passes)
        assert follower is None or passes
        if follower is not None:
            self.begin(hold, follower)

    @precondition(lambda self: self.flight is None)
    @rule()
    def send(self) -> None:
        self.flight = self.chains.send(), list(self.finishes)
        self.arrived, self.granted, self.sent = False, [], self.now

    @precondition(lambda self: self.flight is not None and not self.arrived)
    @rule(fresh=st.integers(1, LIMIT), ahead=st.integers(1, 6))
    def arrive(self, fresh: int, ahead: int) -> None:
        """It is committed, and the answer on its way."""
        assert self.flight is not None
        sent, finishes = self.flight
        self.ledger.exchange(sent.passed, finishes)
        self.arrived = True
        for _ in range(min(fresh, LIMIT - len(self.ledger.slots))):
            self.grant(reserved=False)
        for _ in range(ahead if self.ledger.slots else 0):
            self.grant(reserved=True)

    def grant(self, *, reserved: bool) -> None:
        self.tokens += 1
        self.ledger.rows[self.tokens] = reserved
        if not reserved:
            self.ledger.slots.append(self.tokens)
        self.granted.append(claimed(self.tokens, reserved=reserved))

    @precondition(lambda self: self.arrived)
    @rule()
    def confirm(self) -> None:
        assert self.flight is not None
        sent, finishes = self.flight
        self.flight, self.arrived = None, False
        assert self.chains.confirmed(sent) == []
        self.finishes = [t for t in self.finishes if t not in finishes]
        for what in self.granted:
            if what.reserved:
                self.chains.reserve(what, self.sent)
            else:
                self.begin(self.chains.granted(what), what)
        for hold, what in self.chains.fill():
            self.begin(hold, what)

    @precondition(lambda self: self.flight is not None and not self.arrived)
    @rule()
    def refuse(self) -> None:
        """The store changed nothing."""
        self.flight = None

    @precondition(lambda self: set(self.running) & set(self.chains.untold))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """A coroutine calls what blocks: its word goes beside a round trip under way."""
        choice = sorted(set(self.running) & set(self.chains.untold))
        token = data.draw(st.sampled_from(choice))
        sent = self.chains.send_one(token)
        self.ledger.exchange(sent.passed, [])
        assert self.chains.confirmed(sent) == []
        assert token in self.ledger.slots, "the store knows the slots under its name now"

    @precondition(lambda self: self.chains.waiting)
    @rule(how=st.sampled_from(["late", "soon", "soon", "soon", "recall"]))
    def wait(self, how: str) -> None:
        self.now += 2 * LONGEST_WAIT * AHEAD if how == "late" else 0.01
        if how == "recall":
            self.chains.give_all_back("recalled")
        else:
            self.chains.give_late_back()
        assert how == "soon" or self.chains.waiting == 0

    @precondition(lambda self: self.chains.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        waiting = [c.token for pool in self.chains._pools.values() for c, _ in pool.waiting]
        token = data.draw(st.sampled_from(waiting))
        assert self.chains.remove(token)
        assert not self.chains.remove(token)
        self.returned.append(token)
        self.finishes.append(token)

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def enough_slots_are_held(self) -> None:
        held, on_their_way = len(self.ledger.slots), sum(not c.reserved for c in self.granted)
        fresh = on_their_way if self.arrived else 0
        assert len(self.running) + fresh <= held <= LIMIT

    @invariant()
    def nothing_waits_for_nobody(self) -> None:
        if not self.running:
            assert self.chains.waiting == 0

    def teardown(self) -> None:
        """Let all come to its end."""
        if self.flight is not None and not self.arrived:
            self.refuse()
        if self.arrived:
            self.confirm()
        while self.running:
            token, hold = self.running.popitem()
            self.finishes.append(token)
            if (follower := self.chains.ended(hold, passes=True)) is not None:
                self.begin(hold, follower)
        self.ledger.exchange(self.chains.send().passed, self.finishes)
        assert (self.ledger.rows, self.ledger.slots, self.chains.waiting) == ({}, [], 0)
        assert sorted(self.ran + self.returned) == list(range(1, self.tokens + 1))


TestBooks = Machine.TestCase
TestBooks.settings = settings(max_examples=500, stateful_step_count=50, deadline=None)


# --- by example --------------------------------------------------------------------------------


def books() -> Chains:
    return Chains(lambda what, reason: None, clock=lambda: 0.0)


def test_what_is_told_names_the_owner_that_the_store_knows() -> None:
    chains = books()
    hold = chains.granted(claimed(1))
    for token in (2, 3, 4):
        chains.reserve(claimed(token, reserved=True), 0.0)
    assert list(chains.fill()) == []
    assert (chains.ended(hold, passes=True), chains.ended(hold, passes=True)) == (
        claimed(2, reserved=True),
        claimed(3, reserved=True),
    )
    sent = chains.send()
    assert sent.passed == (Passed(2, None, 0.0), Passed(3, 1, 0.0))
    assert chains.ended(hold, passes=True) == claimed(4, reserved=True)
    chains.confirmed(sent)
    assert chains.send().passed == (Passed(4, 3, 0.0),)


def test_what_comes_too_late_for_its_chain_goes_on_in_slots_not_yet_given_back() -> None:
    chains = books()
    hold = chains.granted(claimed(1))
    sent = chains.send()
    assert chains.ended(hold, passes=True) is None
    chains.confirmed(sent)
    chains.reserve(claimed(2, reserved=True), 0.0)
    assert [what.token for _, what in chains.fill()] == [2]
    assert chains.send().passed == (Passed(2, 1, 0.0),)


def test_slots_that_are_being_given_back_are_used_by_nobody() -> None:
    returned: list[tuple[int, str]] = []
    chains = Chains(lambda what, reason: returned.append((what.token, reason)))
    hold = chains.granted(claimed(1))
    assert chains.ended(hold, passes=True) is None
    chains.send()  # with the finish of the first
    chains.reserve(claimed(2, reserved=True), 1e9)
    assert list(chains.fill()) == []
    assert returned == [(2, "nothing to follow")]


def test_without_limits_nothing_has_to_be_moved() -> None:
    chains = books()
    hold = chains.granted(claimed(1, groups=False))
    chains.reserve(claimed(2, reserved=True, groups=False), 0.0)
    assert list(chains.fill()) == []
    assert chains.ended(hold, passes=True) is not None
    assert chains.send().passed == (Passed(2, None, 0.0),)


def test_a_stale_owner_takes_its_followers_along() -> None:
    chains = books()
    hold = chains.granted(claimed(1))
    for token in (2, 3):
        chains.reserve(claimed(token, reserved=True), 0.0)
    assert list(chains.fill()) == []
    chains.ended(hold, passes=True)
    sent = chains.send()
    chains.ended(hold, passes=True)
    assert chains.confirmed(sent, frozenset({2})) == [3], "it runs in slots that are gone"
    assert chains.ended(hold, passes=True) is None


def test_time_to_ask_when_little_is_left() -> None:
    chains = books()
    hold = chains.granted(claimed(1))
    for token in range(2, 8):
        chains.reserve(claimed(token, reserved=True), 0.0)
    assert list(chains.fill()) == []
    low = []
    for _ in range(7):
        chains.ended(hold, passes=True)
        low.append(bool(chains.low))
    assert low == [False, True, True, True, True, True, True]


def test_who_ran_dry_while_more_was_on_its_way_asks_again_at_once() -> None:
    chains = books()
    hold = chains.granted(claimed(1))
    chains.reserve(claimed(2, reserved=True), 0.0)
    assert list(chains.fill()) == []
    sent = chains.send()
    assert chains.ended(hold, passes=True) is not None
    assert chains.ended(hold, passes=True) is None, "dry"
    chains.confirmed(sent)
    for token in range(3, 103):
        chains.reserve(claimed(token, reserved=True), 0.0)
    assert len(list(chains.fill())) == 1
    assert chains.low == {"c"}, "a hundred, and nobody knows how many it would have taken"
    chains.confirmed(chains.send())
    assert list(chains.fill()) == []
    assert not chains.low, "nothing has ended while that was under way"


def test_as_many_as_ended_during_one_round_trip_are_few_for_the_next() -> None:
    chains = books()
    hold = chains.granted(claimed(1))
    for token in range(2, 102):
        chains.reserve(claimed(token, reserved=True), 0.0)
    assert list(chains.fill()) == []
    sent = chains.send()
    for _ in range(50):
        assert chains.ended(hold, passes=True) is not None
    chains.confirmed(sent)
    assert list(chains.fill()) == []
    assert chains.low == {"c"}, "the fifty that are left are over before the next has ended"
    sent = chains.send()
    for _ in range(5):
        assert chains.ended(hold, passes=True) is not None
    chains.confirmed(sent)
    assert list(chains.fill()) == []
    assert not chains.low


def test_the_few_of_one_chain_do_not_press_while_the_many_of_another_go_on() -> None:
    chains = books()
    many = [chains.granted(claimed(n, chain="many")) for n in range(1, 91)]
    few = [chains.granted(claimed(n, chain="few")) for n in range(91, 101)]
    for token in range(101, 501):
        chains.reserve(claimed(token, chain="many", reserved=True), 0.0)
    assert list(chains.fill()) == []
    assert not chains.pressing(100), "nothing has ended"
    for hold in few:
        chains.ended(hold, passes=True)
    assert chains.low == {"few"}
    assert not chains.pressing(90)
    for hold in many:
        chains.ended(hold, passes=True)
    assert not chains.pressing(90), "most of what was reserved still waits"
    for hold in many[:20]:
        chains.ended(hold, passes=True)
    assert chains.low == {"few", "many"}
    assert chains.pressing(90)


def test_a_chain_that_is_alone_presses_as_soon_as_little_is_left() -> None:
    chains = books()
    holds = [chains.granted(claimed(n)) for n in (1, 2)]
    chains.reserve(claimed(3, reserved=True), 0.0)
    assert list(chains.fill()) == []
    assert chains.ended(holds[0], passes=True) is not None
    assert chains.pressing(2)
    chains.send()
    assert not chains.pressing(2), "more is on its way"


def test_only_what_is_known_to_be_short_is_short() -> None:
    pace = Pace()
    for _ in range(ENOUGH - 1):
        pace.note("quick", 0.001)
    assert pace.short == {}
    pace.note("quick", 0.002)
    assert pace.short == {"quick": 0.002}
    for _ in range(200):
        pace.note("slow", AHEAD * 1.1)
    assert set(pace.short) == {"quick"}
    for n in range(160):
        pace.note("quick", 0.5 if n % 10 == 0 else 0.001)
    assert pace.short == {}, "one in ten takes long: too many to wait behind"

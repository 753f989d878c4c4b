"""Any order of operations keeps the invariants: a model that knows nothing of SQL."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headgate.jobs import Claimed
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.protocol import SlotRecord, SlotRequest

from .conftest import STORES, HandClock, Rig

FULL = os.environ.get("HEADGATE_PROOF") == "full"
NAMES = ("api", "tenant", "host-a", "host-b")

units = st.integers(1, 3)
keys = st.sampled_from(["a", "b", "c"])
all_of = st.one_of(
    st.just(()),
    st.builds(lambda u: (Need("api", None, u),), units),
    st.builds(lambda k, u: (Need("tenant", k, u),), keys, units),
    st.builds(lambda k, u: (Need("api"), Need("tenant", k, u)), keys, units),
    st.builds(lambda g, u: (Need.named(g, u),), st.sampled_from(["api", "tenant/a"]), units),
    st.builds(lambda u: (Need("tenant", None, u),), units),
)
one_of = st.sampled_from(
    [
        (),
        ((Need("host-a"), Need("host-b")),),
        ((Need("host-a", None, 2), Need("host-b")),),
        ((Need("host-a", "a"), Need("host-a", "b"), Need("host-b")),),
    ]
)
all_needs = st.builds(Needs, all_of, one_of)


class Store(RuleBasedStateMachine):
    """Submit, claim, finish, lose, cancel, change limits, in any order.

    The model keeps who runs and what each holds; after every grant it sums by itself.
    """

    url = ""

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = HandClock()
        store = open_store(STORES[self.url](Path(self.folder.name)), clock=self.clock)
        self.rig = Rig(store, self.clock)
        self.limits: dict[str, int | None] = {"api": 4, "tenant": 3, "host-a": 2, "host-b": 1}
        self.paused: set[str] = set()
        self.by_hand: list[SlotRecord] = []
        self.released: set[int] = set()
        self.rig.declare(api=4, tenant=3, host_a=2, host_b=1)
        self.hands = [self.rig.hand("x"), self.rig.hand("y")]
        self.needs: dict[str, Needs] = {}
        self.over: dict[str, str] = {}
        self.tokens: dict[str, int] = {}

    def running(self) -> list[Claimed]:
        return [claimed for hand in self.hands for claimed in hand.running.values()]

    def held(self) -> Counter[str]:
        """Sums from what the workers were told they hold."""
        held: Counter[str] = Counter()
        for claimed in self.running():
            wanted = {need.group: need.units for need in self.needs[claimed.job]}
            for group, _ in claimed.groups if claimed.token not in self.released else ():
                held[group] += wanted[group]
        for slot in self.by_hand:
            held[slot.group] += slot.units
        return held

    def limit_of(self, group: str) -> int | None:
        return self.limits.get(group, self.limits[group.partition("/")[0]])

    @rule(needs=all_needs, turn=keys, count=st.integers(1, 4), priority=st.sampled_from([0, 5]))
    def submit(self, needs: Needs, turn: str, count: int, priority: int) -> None:
        for id in self.rig.submit(count, needs=needs, turn=turn, priority=priority):
            self.needs[id] = needs

    @rule(which=st.integers(0, 1), room=st.integers(1, 6))
    def claim(self, which: int, room: int) -> None:
        before = self.held()
        claimed = self.hands[which].claim(room=room)
        after = self.held()
        for group in after:
            limit = self.limit_of(group)
            if after[group] > before[group] and limit is not None:
                assert after[group] <= limit, f"I1: {group} holds {after[group]} of {limit}"
            if after[group] > before[group]:
                assert group.partition("/")[0] not in self.paused
        for attempt in claimed:
            needs = self.needs[attempt.job]
            got = {group for group, _ in attempt.groups}
            assert {need.group for need in needs.all} <= got, "I2: not whole"
            for members in needs.one_of:
                assert len({m.group for m in members} & got) == 1, "I2: not one of each"
            assert attempt.job not in self.over, "I6: it was over"
            assert attempt.token > self.tokens.get(attempt.job, 0), "tokens grow"
            self.tokens[attempt.job] = attempt.token
        for group in {need.group for needs in self.needs.values() for need in needs}:
            assert self.rig.held(group) == after[group], "I3: the store counts what is held"
        if len(claimed) < room:
            self.nothing_claimable_is_left(which)

    def nothing_claimable_is_left(self, which: int) -> None:
        """I5: a worker with room that got less than it could take left nothing that fits."""
        held = self.held()
        groups = {n.group for needs in self.needs.values() for n in needs}
        records = self.rig.store.values(groups).values()
        reserved = {record.group for record in records if record.reserved_by is not None}
        busy = {claimed.job for claimed in self.running()}

        def fits(need: Need) -> bool:
            limit = self.limit_of(need.group)
            free = need.limit not in self.paused and not reserved & {need.group, need.limit}
            return free and (limit is None or held[need.group] + need.units <= limit)

        for id, needs in self.needs.items():
            if id in busy or id in self.over or self.rig.state(id) != "ready":
                continue
            open_now = all(fits(n) for n in needs.all) and all(
                any(fits(m) for m in members) for members in needs.one_of
            )
            assert not open_now, f"I5: {needs} could have started"

    @precondition(lambda self: self.running())
    @rule(data=st.data(), outcome=st.sampled_from(["succeeded", "failed", "retry", "returned"]))
    def finish(self, data: st.DataObject, outcome: str) -> None:
        hand = data.draw(st.sampled_from([h for h in self.hands if h.running]))
        attempt = data.draw(st.sampled_from(sorted(hand.running.values(), key=lambda c: c.token)))
        assert hand.end(attempt, outcome, delay=1.0)
        assert not hand.end(attempt, outcome), "I4: the second word is stale"
        if outcome in ("succeeded", "failed"):
            self.over[attempt.job] = outcome

    @rule(which=st.integers(0, 1))
    def lose_worker(self, which: int) -> None:
        hand = self.hands[which]
        lost = list(hand.running.values())
        hand.die()
        self.hands[which] = self.rig.hand(hand.name)
        self.hands[which].exchange(room=0)
        hand.running.clear()
        for attempt in lost:
            assert not hand.end(attempt), "I4: a lost attempt has no word"
            if self.rig.state(attempt.job) == "failed":
                self.over[attempt.job] = "lost"

    @precondition(lambda self: self.needs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(list(self.needs)))
        record = self.rig.store.cancel(id)
        if id not in self.over and record.state == "cancelled":
            self.over[id] = "cancelled"

    @rule(
        name=st.sampled_from([*NAMES, "tenant/a", "host-a/b"]),
        value=st.one_of(st.none(), st.integers(0, 5)),
    )
    def set_limit(self, name: str, value: int | None) -> None:
        self.rig.set_limit(name, value)
        self.limits[name] = value

    @rule(
        group=st.sampled_from(["api", "tenant", "tenant/a", "host-b"]),
        units=units,
        waited=st.sampled_from([0.0, 9.0]),
    )
    def take_by_hand(self, group: str, units: int, waited: float) -> None:
        limit = self.limit_of(group)
        if limit is not None and 0 < limit < units:
            return
        held = self.held()[group]
        request = SlotRequest(group, "me", "here", lease=1e6, units=units, waited=waited)
        slot = self.rig.store.take_slot(request)
        if slot is not None:
            assert limit is None or held + units <= limit, "I1: by hand"
            assert group.partition("/")[0] not in self.paused
            self.by_hand.append(slot)

    @precondition(lambda self: self.by_hand)
    @rule()
    def give_back_by_hand(self) -> None:
        slot = self.by_hand.pop()
        assert self.rig.store.drop_slot(slot.group, slot.slot, slot.token)
        assert not self.rig.store.drop_slot(slot.group, slot.slot, slot.token), "I4"

    @precondition(lambda self: self.running())
    @rule(data=st.data(), waited=st.sampled_from([0.0, 9.0]))
    def release_or_retake(self, data: st.DataObject, waited: float) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.running(), key=lambda c: c.token)))
        if attempt.token not in self.released:
            assert self.rig.store.release_groups(attempt.token)
            self.released.add(attempt.token)
        elif self.rig.store.retake_groups(attempt.token, waited):
            self.released.discard(attempt.token)
            after = self.held()
            for group, _ in attempt.groups:
                limit = self.limit_of(group)
                assert limit is None or after[group] <= limit, "I1: taken again"
                assert group.partition("/")[0] not in self.paused

    @rule(name=st.sampled_from(NAMES))
    def pause(self, name: str) -> None:
        self.rig.pause(name, name not in self.paused)
        self.paused ^= {name}

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        # I6: open every limit; all that was submitted ends, and nothing is held.
        while self.by_hand:
            self.give_back_by_hand()
        for name in (*NAMES, "tenant/a", "host-a/b"):
            self.rig.pause(name, False)
            self.rig.set_limit(name, 5)
        for _ in range(500):
            self.clock.advance(20)
            if not [c for hand in self.hands for c in hand.claim()] and not self.running():
                break
            for hand in self.hands:
                hand.end_all()
        states = {id: self.rig.state(id) for id in self.needs}
        assert set(states.values()) <= {"succeeded", "failed", "cancelled"}, states
        for id, state in self.over.items():
            assert states[id] == {"lost": "failed"}.get(state, state) or state == "cancelled"
        assert not any(self.rig.held(group) for group in self.rig.store.groups())
        assert self.rig.store.doctor() == []
        for hand in self.rig.hands:
            hand.leave()
        self.rig.store.close()
        self.folder.cleanup()


@pytest.mark.parametrize("url", sorted(STORES))
def test_any_order_of_operations_keeps_the_invariants(url: str) -> None:
    machine = type(f"Store_{url}", (Store,), {"url": url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            # Each step is a round trip or more where the store is a server.
            max_examples=(10 if url in ("bucket", "postgres") else 25) * (10 if FULL else 1),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

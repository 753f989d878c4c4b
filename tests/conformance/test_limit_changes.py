"""Limits as data: words that end by themselves, weights, single keys."""

from __future__ import annotations

from collections import Counter

import pytest

from headgate.concurrency import Concurrency
from headgate.errors import ConfigError, DeclarationError
from headgate.stores.protocol import SlotRequest

from .conftest import Rig, need


def desk(rig: Rig) -> Concurrency:
    return Concurrency(lambda: rig.store, lambda: "ann")


def value(rig: Rig, group: str) -> tuple[int | None, str]:
    record = rig.store.values([group])[group]
    return record.value, record.source


# --- words that end ------------------------------------------------------------------------------


def test_a_word_ends_at_the_moment_of_decision(rig: Rig) -> None:
    rig.declare(api=2)
    rig.submit(20, needs=need("api"))
    hand = rig.hand()
    desk(rig).set("api", 5, reason="a burst", lasts=60)
    assert value(rig, "api") == (5, "override")
    claimed = hand.claim()
    assert len(claimed) == 5
    rig.clock.advance(60)
    # Nobody swept and nobody claimed: it is over all the same.
    assert value(rig, "api") == (2, "code")
    for attempt in claimed[:3]:
        hand.end(attempt)
        assert hand.claim() == [], "what was granted before drains first"
    hand.end(claimed[3])
    assert len(hand.claim()) == 1
    assert rig.held("api") == 2


def test_the_end_of_a_word_wakes_who_waits(rig: Rig) -> None:
    rig.declare(api=5)
    rig.submit(10, needs=need("api"))
    hand = rig.hand()
    desk(rig).set("api", 1, reason="careful", lasts=60)
    rig.clock.advance(10)
    got = hand.exchange()
    assert len(got.claimed) == 1
    assert hand.exchange().wake_in == pytest.approx(50, abs=0.5)
    rig.clock.advance(50)
    assert len(hand.claim()) == 4


def test_what_was_chosen_before_the_end_is_not_granted_after_it(rig: Rig) -> None:
    """A worker that is busy chooses by what it saw at the end of its last round trip."""
    rig.declare(api=1)
    rig.submit(5, needs=need("api"))
    hand = rig.hand()
    desk(rig).set("api", 4, reason="a burst", lasts=60)
    (first,) = hand.exchange(room=1, again=True).claimed
    rig.clock.advance(60)
    got = hand.exchange([], room=10, again=True, fresh=False)
    assert got.claimed == ()
    assert rig.held("api") == 1
    hand.end(first)


def test_an_end_is_recorded_once_when_it_is_noticed(rig: Rig) -> None:
    rig.declare(api=2)
    desk(rig).set("api", 5, reason="a burst", lasts=60)
    rig.clock.advance(61)
    assert [e.data["new"] for e in desk(rig).history("api")] == [5], "reading notices nothing"
    a, b = rig.hand("a"), rig.hand("b")
    for hand in (a, b, a):
        hand.claim()
    ended, said = desk(rig).history("api")
    assert (ended.data["old"], ended.data["new"], ended.data["ended"]) == (5, 2, "limit")
    assert ended.data["reason"] == "its time was over (said by ann: a burst)"
    assert (said.who, said.data["until"]) == ("ann", pytest.approx(ended.at - 1, abs=0.1))
    assert rig.store.words() == []


def test_the_sweeper_notices_an_end_where_nobody_works(rig: Rig) -> None:
    desk(rig).pause("api", reason="for a while", lasts=5)
    rig.clock.advance(20)
    rig.store.sweep()
    assert desk(rig).history("api")[0].data["ended"] == "pause"


def test_a_slot_by_hand_goes_by_the_same_end(rig: Rig) -> None:
    desk(rig).set("gpu", 2, reason="two cards", lasts=60)

    def take(holder: str) -> bool:
        return rig.store.take_slot(SlotRequest("gpu", holder, "here", 3600, 1, True)) is not None

    assert [take(holder) for holder in "abc"] == [True, True, False]
    rig.clock.advance(60)
    assert not take("d"), "one is carried, two are held"
    for slot in rig.store.group("gpu")[1]:
        rig.store.drop_slot("gpu", slot.slot, slot.token)
    assert [take(holder) for holder in "ef"] == [True, False]


def test_a_pause_and_a_limit_end_each_for_itself(rig: Rig) -> None:
    rig.declare(api=2)
    rig.submit(9, needs=need("api"))
    hand = rig.hand()
    desk(rig).set("api", 5, reason="more", lasts=100)
    desk(rig).pause("api", reason="not now", lasts=50)
    assert hand.claim() == []
    (group,) = rig.store.why(rig.submit(needs=need("api"))[0]).groups
    assert group.pause is not None
    assert (group.pause.by, group.pause.reason) == ("ann", "not now")
    rig.clock.advance(50)
    assert len(hand.claim()) == 5
    rig.clock.advance(50)
    assert value(rig, "api") == (2, "code")


def test_a_later_word_takes_the_end_back(rig: Rig) -> None:
    rig.declare(api=2)
    desk(rig).set("api", 5, reason="for now", lasts=60)
    desk(rig).set("api", 6, reason="for good")
    rig.clock.advance(1000)
    assert value(rig, "api") == (6, "override")
    assert rig.hand().exchange().wake_in is None


def test_who_says_it_and_nonsense(rig: Rig) -> None:
    with pytest.raises(DeclarationError, match="reason is empty"):
        desk(rig).set("api", 1, reason=" ")
    with pytest.raises(DeclarationError):
        desk(rig).set("api", 1, reason="x", lasts=0)
    with pytest.raises(ConfigError, match="weight"):
        desk(rig).weight("tenant/a", 0, reason="x")
    assert rig.store.events("limit_changed") == []


# --- one key, weights ---------------------------------------------------------------------------


def test_one_key_has_its_own_value_and_nobody_else_a_row(rig: Rig) -> None:
    rig.declare(tenant=2)
    keys = [f"t{n:03d}" for n in range(100)]
    for key in (*keys, "acme"):
        rig.tenant(key, 6)
    desk(rig).set("tenant/acme", 5, reason="they pay")
    hand = rig.hand()
    started = Counter(claimed.turn for claimed in hand.claim(room=500))
    assert started == {"acme": 5, **dict.fromkeys(keys, 2)}
    assert [words.group for words in rig.store.words()] == ["tenant/acme"]
    hand.end_all()
    while hand.claim(room=500):
        hand.end_all()
    assert set(rig.store.groups()) == {"tenant", "tenant/acme"}, "a key leaves nothing behind"


def test_an_operator_weighs_a_key_over_file_and_code(rig: Rig) -> None:
    rig.declare(tenant=100)
    for key in "abc":
        rig.tenant(key, 60)
    desk(rig).weight("tenant/a", 3, reason="they pay")

    def shares() -> list[int]:
        hand = rig.hand("w")
        counts = Counter[str]()
        for _ in range(10):
            for claimed in hand.exchange(room=5, weights={"a": 1}).claimed:
                counts[claimed.turn] += 1
                hand.end(claimed)
        return [counts[key] for key in "abc"]

    a, b, c = shares()
    assert a >= 2.5 * max(b, c)
    desk(rig).weight("tenant/a", None, reason="they left")
    a, b, c = shares()
    assert max(a, b, c) - min(a, b, c) <= 2
    weights = [(e.data["old_weight"], e.data["weight"]) for e in desk(rig).history("tenant/a")]
    assert weights == [(3, None), (None, 3)]


def test_a_weight_ends_and_may_be_said_of_a_fairness_key_alone(rig: Rig) -> None:
    for key in "ab":
        rig.submit(60, turn=key)
    desk(rig).weight("a", 4, reason="catching up", lasts=60)
    hand = rig.hand()

    def share(rounds: int) -> int:
        counts = Counter[str]()
        for _ in range(rounds):
            for claimed in hand.exchange(room=5).claimed:
                counts[claimed.turn] += 1
                hand.end(claimed)
        return counts["a"]

    assert share(4) == 16
    rig.clock.advance(60)
    assert 9 <= share(4) <= 11


# --- up and down --------------------------------------------------------------------------------


def test_from_a_value_to_none_and_down_while_held_and_up_again(rig: Rig) -> None:
    rig.declare(api=500)
    rig.submit(900, needs=need("api"))
    hand = rig.hand()
    assert len(hand.claim(room=900)) == 500
    rig.declare(api=None)
    assert len(hand.claim(room=100)) == 100
    rig.declare(api=10)
    assert rig.held("api") == 600, "lowering kills nobody"
    assert hand.claim() == []
    running = list(hand.running.values())
    for attempt in running[:590]:
        hand.end(attempt)
    assert hand.claim() == []
    hand.end(running[590])
    assert len(hand.claim()) == 1
    assert rig.held("api") == 10
    rig.declare(api=500)
    assert len(hand.claim(room=900)) == 299
    assert rig.held("api") == 309

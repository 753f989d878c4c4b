"""Code that ran on after its attempt was lost is recorded, once, and shown by doctor."""

from __future__ import annotations

from headgate.stores.protocol import Store

from .conftest import Rig, need


def over_runs(store: Store) -> list[str]:
    return [trouble.detail for trouble in store.doctor() if trouble.what == "over-runs"]


def test_an_over_run_is_recorded_once_and_shown(rig: Rig) -> None:
    rig.declare(api=1)
    (id,) = rig.submit(needs=need("api"))
    old, new = rig.hand("old"), rig.hand("new")
    (first,) = old.claim()
    assert not rig.store.over_ran(id, first.token, "old"), "it is not lost"
    rig.store.declare_dead(old.id, "its lease ended")
    old.running.clear()
    (again,) = new.claim()
    assert over_runs(rig.store) == []
    assert rig.store.over_ran(id, first.token, "old")
    assert not rig.store.over_ran(id, first.token, "old"), "the answer was lost, told again"
    assert not rig.store.over_ran(id, again.token, "new"), "that one runs as it should"
    (event,) = rig.store.events("attempt_overran")
    assert (event.subject, event.who) == (id, "old")
    assert (event.data["token"], event.data["groups"]) == (first.token, ["api"])
    assert over_runs(rig.store)[0].endswith(": 1")
    assert rig.store.attempts(id)[0].reason == "its lease ended; its code ran on"
    assert new.end(again)
    assert rig.state(id) == "succeeded"


def test_code_that_had_ended_before_the_loss_did_not_over_run(rig: Rig) -> None:
    early, late = rig.submit(2)
    hand = rig.hand()
    tokens = {claimed.job: claimed.token for claimed in hand.claim()}
    hand.running.clear()
    rig.clock.advance(10)
    rig.store.declare_dead(hand.id, "its lease ended")
    rig.clock.advance(10)
    assert not rig.store.over_ran(early, tokens[early], "w", ago=15)
    assert rig.store.over_ran(late, tokens[late], "w", ago=5)
    assert [event.subject for event in rig.store.events("attempt_overran")] == [late]


def test_an_end_whose_answer_was_lost_is_no_over_run(rig: Rig) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    assert hand.end(claimed)
    rig.store.declare_dead(hand.id, "its lease ended")
    rig.clock.advance(10)
    assert not rig.store.over_ran(id, claimed.token, "w", ago=5)
    assert rig.store.events("attempt_overran") == []


def test_doctor_names_an_over_run_for_a_day(rig: Rig) -> None:
    (id,) = rig.submit()
    hand = rig.hand()
    (claimed,) = hand.claim()
    hand.running.clear()
    rig.store.declare_dead(hand.id, "its lease ended")
    assert rig.store.over_ran(id, claimed.token, "w")
    rig.clock.advance(86_000)
    assert len(over_runs(rig.store)) == 1
    rig.clock.advance(1_000)
    assert over_runs(rig.store) == []
    assert len(rig.store.events("attempt_overran")) == 1

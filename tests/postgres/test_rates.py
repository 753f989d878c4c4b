"""Rates among competing transactions: a start that somebody else is just noting is never missed."""

from __future__ import annotations

import pytest

from headgate.jobs import Finish
from headgate.rates import Pace
from headgate.stores.protocol import Publication
from tests.conformance.conftest import Rig, need
from tests.postgres.rival import Rival


def declare(rig: Rig, value: int, per: float, burst: int | None = None) -> None:
    rates = {"api": Pace(per, burst)}
    rig.store.publish(Publication("test", code={"api": value}, code_rates=rates))


@pytest.mark.parametrize("burst", [None, 2])
def test_nothing_starts_while_somebody_else_decides(
    rig: Rig, rival: Rival, burst: int | None
) -> None:
    """Not even of what may start at once: that nothing is known of a group is not that it is
    free."""
    declare(rig, 3, 60, burst)
    rig.submit(9, needs=need("api"))
    hand = rig.hand()
    rival.lock("api")
    got = hand.exchange()
    assert got.claimed == ()
    assert got.wake_in is not None
    assert got.wake_in < 1, "contended is not full: again, and soon"
    rival.rollback()
    assert len(hand.claim()) == (burst or 3)


@pytest.mark.parametrize("burst", [None, 2])
def test_what_was_noted_meanwhile_counts(rig: Rig, rival: Rival, burst: int | None) -> None:
    declare(rig, 3, 60, burst)
    rig.submit(9, needs=need("api"))
    hand = rig.hand()
    rival.lock("api")
    now = rig.store.now()
    rival.run("SELECT headgate.note_starts(%s, %s, %s, %s)", "api", 60, 2, now)
    assert hand.exchange().claimed == ()
    rival.commit()
    assert len(hand.claim()) == (1 if burst is None else 0)


def test_a_choice_from_an_old_look_grants_no_more_than_there_is(rig: Rig) -> None:
    declare(rig, 4, 60)
    rig.submit(20, needs=need("api"))
    slow, quick = rig.hand("slow"), rig.hand("quick")
    (first,) = slow.exchange(room=1, again=True).claimed
    assert len(quick.claim()) == 3
    # Its view is from before that, and shows three as free.
    got = slow.exchange([Finish(first.token, "succeeded")], room=9, fresh=False, again=True)
    assert got.claimed == ()
    rig.clock.advance(60)
    assert len(quick.claim() + slow.claim()) == 4


def test_nor_more_than_may_start_at_once(rig: Rig) -> None:
    declare(rig, 4, 60, burst=2)
    rig.submit(20, needs=need("api"))
    slow, quick = rig.hand("slow"), rig.hand("quick")
    (first,) = slow.exchange(room=1, again=True).claimed
    assert len(quick.claim()) == 1
    got = slow.exchange([Finish(first.token, "succeeded")], room=9, fresh=False, again=True)
    assert got.claimed == ()


def test_rows_are_used_again(rig: Rig, watch: Rival) -> None:
    declare(rig, 5, 10)
    rig.submit(60, needs=need("api"))
    hand = rig.hand()
    for _ in range(50):
        rig.clock.advance(2)
        assert len(hand.claim(1)) == 1
        hand.end_all()
    assert watch.value("SELECT count(*) FROM headgate.slots WHERE grp = 'api'") <= 6


def test_a_sweep_at_the_same_moment_loses_no_start(rig: Rig, rival: Rival) -> None:
    """It frees rows without a lock of their group; what is noted again is not freed with them."""
    declare(rig, 1, 10)
    rig.submit(5, needs=need("api"))
    hand = rig.hand()
    assert len(hand.claim()) == 1
    rig.clock.advance(10)
    rival.run("UPDATE headgate.slots SET token = NULL, ends = NULL WHERE grp = 'api'")
    rival.commit()
    assert len(hand.claim()) == 1
    rig.store.sweep()
    assert rig.held("api") == 1
    assert hand.claim() == []

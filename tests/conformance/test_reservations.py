"""Wide jobs among narrow ones start in bounded time."""

from __future__ import annotations

from headgate.limits import Need, Needs

from .conftest import Hand, Rig, need, one_of


def churn(rig: Rig, hand: Hand, seconds: float, step: float = 0.5) -> list[str]:
    """Narrow jobs come and go, one ending at a time, never two at once."""
    started: list[str] = []
    passed = 0.0
    while passed < seconds:
        rig.clock.advance(step)
        passed += step
        narrow = [c for c in hand.running.values() if c.task == "task"]
        if narrow:
            hand.end(narrow[0])
        started += [c.task for c in hand.claim()]
        if "wide" in started:
            break
    return started


def test_a_wide_job_among_narrow_ones_starts(rig: Rig) -> None:
    rig.declare(gpu=4)
    rig.submit(500, needs=need("gpu"))
    hand = rig.hand()
    hand.claim()
    rig.submit(task="wide", needs=need("gpu", units=3))
    assert "wide" in churn(rig, hand, 20)


def test_without_a_reservation_it_would_starve(rig: Rig) -> None:
    """The same churn for less than the time after which a lane reserves: it does not start."""
    rig.declare(gpu=4)
    rig.submit(500, needs=need("gpu"))
    hand = rig.hand()
    hand.claim()
    rig.submit(task="wide", needs=need("gpu", units=3))
    assert "wide" not in churn(rig, hand, 4)


def test_a_job_of_two_groups_never_free_together_starts(rig: Rig) -> None:
    rig.declare(a=1, b=1)
    rig.submit(200, needs=need("a"))
    rig.submit(200, needs=need("b"))
    hand = rig.hand()
    hand.claim()
    rig.submit(task="wide", needs=Needs((Need("a"), Need("b"))))
    assert "wide" in churn(rig, hand, 20)


def test_a_wide_one_of_starts(rig: Rig) -> None:
    rig.declare(host_a=3, host_b=3)
    rig.submit(500, needs=one_of("host-a", "host-b"))
    hand = rig.hand()
    hand.claim()
    rig.submit(task="wide", needs=one_of("host-a", "host-b", units=3))
    assert "wide" in churn(rig, hand, 25)


def test_a_reservation_ends_when_nobody_can_run_the_lane(rig: Rig) -> None:
    rig.declare(gpu=4)
    rig.submit(500, needs=need("gpu"))
    both, narrow = rig.hand("both"), rig.hand("narrow", tasks=["task"])
    both.claim()
    (id,) = rig.submit(task="wide", needs=need("gpu", units=3))
    churn(rig, both, 5.5)
    assert rig.store.values(["gpu"])["gpu"].reserved_by is not None
    waiting = rig.submit(needs=need("gpu"))[0]
    assert rig.store.why(waiting).code in ("reserved", "limit-full")
    # The only worker that knows the wide task is gone: the others do not wait for ever.
    both.end_all()
    rig.clock.advance(11)
    assert len(narrow.claim()) == 4
    assert rig.state(id) == "ready"


def test_cancelling_the_wide_job_frees_what_it_reserved(rig: Rig) -> None:
    rig.declare(gpu=4)
    rig.submit(500, needs=need("gpu"))
    hand = rig.hand()
    hand.claim()
    (id,) = rig.submit(task="wide", needs=need("gpu", units=3))
    churn(rig, hand, 5.5)
    rig.store.cancel(id)
    hand.claim()
    assert rig.held("gpu") == 4


def test_a_lane_that_merely_waits_for_itself_reserves_nothing(rig: Rig) -> None:
    rig.declare(api=5, tenant=1)
    rig.tenant("acme", 50, Need("api"))
    hand = rig.hand()
    for _ in range(30):
        rig.clock.advance(1)
        hand.claim()
    assert rig.store.values(["api"])["api"].reserved_by is None

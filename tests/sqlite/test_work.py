"""I7: the work of an operation does not grow with what it does not touch.

Counted in steps of SQLite's machine, not in time: a scan where a look at an index was meant
shows at once, on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate.jobs import NewJob, Retention
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.protocol import SlotRequest
from tests.conformance.conftest import Hand, HandClock, Rig, need

SMALL, LARGE = 200, 4000


@pytest.fixture(scope="module")
def crowds() -> Iterator[tuple[Rig, Rig]]:
    small, large = crowd(SMALL), crowd(LARGE)
    yield small, large
    small.store.close()
    large.store.close()


def crowd(size: int) -> Rig:
    """A store with `size` jobs of every kind that must not matter: blocked in one lane, blocked
    in a lane each, of an unknown task, not due, held in other groups, finished long ago; and as
    many things that happened."""
    clock = HandClock()
    rig = Rig(open_store("sqlite:///:memory:", clock=clock), clock)
    rig.declare(api=5, shut=0, tenant=1, many=None, gpu=4)

    def submit(make: Callable[[int], NewJob]) -> None:
        for begin in range(0, size, 1000):
            end = min(begin + 1000, size)
            rig.store.submit([make(i) for i in range(begin, end)])

    other = rig.hand("other", tasks=["busy"])
    submit(lambda i: NewJob("busy", needs=need("many")))
    other.claim(room=size)
    submit(lambda i: NewJob("busy", idempotency_key=f"k{i}", expires=10_000.0))
    for claimed in other.claim(room=size):
        other.end(claimed)
    submit(lambda i: NewJob("task", needs=need("shut")))
    submit(lambda i: NewJob("task", needs=Needs((Need("shut"), Need("tenant", f"{i}")))))
    submit(lambda i: NewJob("nobody", turn=f"{i}"))
    submit(lambda i: NewJob("task", delay=50_000 + i))
    submit(lambda i: NewJob("nobody", routed=False))
    submit(lambda i: NewJob("task", needs=Needs((Need.named(f"g{i}"),)), carried=((f"g{i}", 0),),
                            priority=5))  # fmt: skip
    for i in range(size):
        rig.store.pause_queue("elsewhere", bool(i % 2))
    return rig


def claim_and_finish(rig: Rig, hand: Hand) -> None:
    rig.submit(20, needs=need("api"))
    for _ in range(5):
        for claimed in hand.exchange(room=5, hops=100).claimed:
            hand.end(claimed)


def submit_and_cancel(rig: Rig, hand: Hand) -> None:
    (id,) = rig.submit(needs=need("api"), idempotency_key="new", delay=5)
    rig.store.cancel(id)
    rig.store.job(id)


def retry_and_promote(rig: Rig, hand: Hand) -> None:
    rig.submit(needs=need("api"))
    (claimed,) = hand.exchange(room=1, hops=100).claimed
    hand.end(claimed, "retry", delay=1.0)
    rig.clock.advance(2)
    (again,) = hand.exchange(room=1, hops=100).claimed
    hand.end(again)


def slot_by_hand(rig: Rig, hand: Hand) -> None:
    slot = rig.store.take_slot(SlotRequest("gpu", "me", "here", lease=30))
    assert slot is not None
    rig.store.extend_slot("gpu", slot.slot, slot.token, 10)
    rig.store.drop_slot("gpu", slot.slot, slot.token)


def release_and_retake(rig: Rig, hand: Hand) -> None:
    rig.submit(needs=need("api"))
    (claimed,) = hand.exchange(room=1, hops=100).claimed
    rig.store.extend(claimed.token, 30)
    rig.store.release_groups(claimed.token)
    assert rig.store.retake_groups(claimed.token)
    hand.end(claimed)


def prune_nothing(rig: Rig, hand: Hand) -> None:
    rig.store.prune(Retention())


def values(rig: Rig, hand: Hand) -> None:
    rig.store.values(["api", "tenant/7", "g7"])


@pytest.mark.parametrize(
    "work",
    [
        claim_and_finish,
        submit_and_cancel,
        retry_and_promote,
        slot_by_hand,
        release_and_retake,
        prune_nothing,
        values,
    ],
)
def test_work_does_not_grow_with_what_waits_elsewhere(
    crowds: tuple[Rig, Rig], work: Callable[[Rig, Hand], None]
) -> None:
    small, large = (steps(rig, work) for rig in crowds)
    assert large <= 1.3 * small + 500, f"{small} steps before {SMALL}, {large} before {LARGE}"


def steps(rig: Rig, work: Callable[[Rig, Hand], None]) -> int:
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    hand = rig.hand()
    hand.state.rotation("default", 0).cursor = ""  # no chance in where the turns begin
    store: Any = rig.store
    connection = store._db.connection()
    connection.set_progress_handler(tick, 10)
    work(rig, hand)
    connection.set_progress_handler(None, 0)
    hand.leave()
    return count * 10

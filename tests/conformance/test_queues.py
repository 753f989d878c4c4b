"""Which queues a claim takes from."""

from __future__ import annotations

from headgate.stores.protocol import QueueShare
from tests.conformance.conftest import Rig


def test_a_queue_nobody_named_is_served_at_once(rig: Rig) -> None:
    rig.submit(5, queue="mail")
    rig.submit(5, queue="new today")
    hand = rig.hand()
    narrow = (QueueShare("mail", 2), QueueShare("not there", 5))
    taken = hand.claim(20, queues=narrow, other_queues=True)
    assert sorted(claimed.queue for claimed in taken) == ["mail"] * 2 + ["new today"] * 5


def test_a_queue_nobody_named_is_left_alone(rig: Rig) -> None:
    rig.submit(queue="mail")
    rig.submit(queue="other")
    assert [c.queue for c in rig.hand().claim(20, queues=(QueueShare("mail", 9),))] == ["mail"]


def test_other_queues_take_their_part_by_weight(rig: Rig) -> None:
    rig.submit(40, queue="mail")
    rig.submit(40, queue="new today")
    taken = rig.hand().claim(20, queues=(QueueShare("mail", 20, weight=3),), other_queues=True)
    assert [sum(c.queue == queue for c in taken) for queue in ("mail", "new today")] == [15, 5]


def test_a_closed_queue_is_not_waited_for(rig: Rig) -> None:
    rig.submit(queue="off")
    tasks = frozenset(["task"])
    assert rig.store.remaining(tasks, None) == 1
    assert rig.store.remaining(tasks, None, frozenset(["off"])) == 0

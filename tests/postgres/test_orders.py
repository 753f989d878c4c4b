"""Orders for the thread that hears a bell: no ring falls between it and who gives them,
and nobody waits for an order that nobody carries out."""

from __future__ import annotations

import math
import select
import threading
import time

import psycopg
import pytest

from headgate.stores.postgres import bell as bell_module
from headgate.stores.postgres.bell import Bells
from headgate.stores.protocol import Order
from tests.postgres.test_bells import bells, database, listen, listeners, other
from tests.waiting import PATIENCE, wait_until

__all__ = ["bells", "database", "other"]  # fixtures

SOON = 0.05
LATE = 3600.0


class Orders:
    """Orders of one kind, and what became of them."""

    def __init__(self, *, again: int = 0) -> None:
        self.acts: list[str] = []
        """By which thread."""
        self.done = self.dropped = 0
        self.under_way = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self._again = again

    @property
    def order(self) -> Order:
        return Order(self._act, self._done, self._drop)

    def _act(self) -> float | None:
        self.acts.append(threading.current_thread().name)
        self.under_way.set()
        assert self.go.wait(PATIENCE)
        return time.monotonic() + LATE if len(self.acts) <= self._again else None

    def _done(self) -> None:
        self.done += 1

    def _drop(self) -> None:
        self.dropped += 1


def until(seconds: float) -> float:
    return time.monotonic() + seconds


def test_an_order_is_carried_out_by_who_hears_the_ring(bells: Bells, other: Bells) -> None:
    bell, orders = listen(bells), Orders()
    assert bell.attends
    assert bell.attend(orders.order, until(LATE))
    other.ring("work")
    wait_until(lambda: bool(orders.acts))
    assert orders.acts == ["headgate-listener"]
    assert not bell.wait(0.1), "nobody else hears it"
    other.ring("work")
    assert bell.wait(PATIENCE), "it was carried out: what rings now is for who listens"
    assert (len(orders.acts), orders.dropped) == (1, 0)


def test_an_order_is_carried_out_when_its_time_has_come(bells: Bells) -> None:
    bell, orders = listen(bells), Orders()
    wait_until(lambda: time.monotonic() + SOON < bells._wakes_at < math.inf)  # the listener sleeps
    began = time.monotonic()
    assert bell.attend(orders.order, until(SOON))
    wait_until(lambda: bool(orders.acts))
    assert time.monotonic() - began >= SOON
    assert bell.attend(orders.order, until(0.0))
    wait_until(lambda: len(orders.acts) == 2)


def test_an_order_stands_until_it_is_done(bells: Bells, other: Bells) -> None:
    bell, orders = listen(bells), Orders(again=2)
    assert bell.attend(orders.order, until(LATE))
    for rings in (1, 2, 3):
        other.ring("work")
        wait_until(lambda n=rings: len(orders.acts) == n)
    other.ring("work")
    assert bell.wait(PATIENCE)
    assert (len(orders.acts), orders.dropped) == (3, 0)


def test_what_rang_before_is_for_who_gives_the_order(bells: Bells, other: Bells) -> None:
    bell, orders = listen(bells), Orders()
    other.ring("work")
    wait_until(lambda: select.select([bell.fileno()], [], [], 0)[0] != [])
    assert not bell.attend(orders.order, until(LATE))
    assert bell.wait(0)
    assert bell.attend(orders.order, until(LATE))
    assert (orders.acts, orders.dropped) == ([], 0)


def test_a_dismissed_order_is_dropped_and_its_ring_is_heard(bells: Bells, other: Bells) -> None:
    bell, orders = listen(bells), Orders()
    assert bell.attend(orders.order, until(LATE))
    bell.dismiss()
    assert (orders.acts, orders.dropped) == ([], 1)
    bell.dismiss()
    assert orders.dropped == 1
    other.ring("work")
    assert bell.wait(PATIENCE)


@pytest.mark.parametrize("again", [0, 1])
def test_an_order_dismissed_while_it_is_carried_out_ends_once(
    bells: Bells, other: Bells, again: int
) -> None:
    """It is done, or dropped; and what rang meanwhile is heard."""
    bell, orders = listen(bells), Orders(again=again)
    orders.go.clear()
    assert bell.attend(orders.order, until(LATE))
    other.ring("work")
    assert orders.under_way.wait(PATIENCE)
    bell.dismiss()
    bell.ring()  # the listener is at work, so by hand
    orders.go.set()
    assert bell.wait(PATIENCE)
    wait_until(lambda: orders.dropped == again)
    assert len(orders.acts) == 1


def test_no_ring_falls_between_an_order_and_its_giver(bells: Bells) -> None:
    """Rung and given at the same moment, a thousand times: either the order is carried out, or the
    giver is told that it has rung."""
    bell = listen(bells)
    for _ in range(1000):
        orders = Orders()
        ringer = threading.Thread(target=bell.ring)
        ringer.start()
        given = bell.attend(orders.order, until(LATE))
        ringer.join()
        if given:
            bells._poker.ring()  # as a notification would, it wakes the listener
            wait_until(lambda orders=orders: bool(orders.acts))
        else:
            assert bell.wait(0)


def test_an_order_is_dropped_when_nobody_hears_any_more(bells: Bells, other: Bells) -> None:
    bell, orders = listen(bells), Orders()
    assert bell.attend(orders.order, until(LATE))
    (pid,) = listeners(bells._database)
    with psycopg.connect(bells._database.address.conninfo, autocommit=True) as killer:
        killer.execute("SELECT pg_terminate_backend(%s)", (pid,))
    wait_until(lambda: orders.dropped == 1)
    assert orders.acts == []
    wait_until(lambda: bell.attends)
    bell.drain()  # a new line: everybody looks once
    wait_until(lambda: bell.attend(orders.order, until(LATE)) or not bell.wait(0))
    other.ring("work")
    wait_until(lambda: len(orders.acts) == 1)


def test_what_rings_while_an_order_is_carried_out_is_heard_after_it(
    bells: Bells, other: Bells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes in on the connection that the order speaks through, beside its answer; not when the
    listener looks around next."""
    monkeypatch.setattr(bell_module, "RENEW", LATE)
    monkeypatch.setattr(bell_module, "EAR", 2 * LATE)
    bell, acts = listen(bells), list[float]()

    def act() -> float | None:
        if not acts:
            ringing = threading.Timer(0.1, other.ring, ("work",))
            ringing.start()
            bells._database.value("SELECT pg_sleep(0.4)::text")
            ringing.join()
        acts.append(time.monotonic())
        return until(LATE)

    assert bell.attend(Order(act, lambda: None, lambda: None), until(0.0))
    wait_until(lambda: len(acts) >= 2)
    assert len(acts) == 2


def test_an_order_is_dropped_or_carried_out_and_never_both(bells: Bells) -> None:
    """Dismissed as it falls due, some hundred times."""
    bell, both = listen(bells), 0
    for _ in range(300):
        orders = Orders()
        if not bell.attend(orders.order, until(0.0)):
            bell.drain()
            continue
        bell.dismiss()
        wait_until(lambda orders=orders: orders.done + orders.dropped > 0)
        both += orders.done and orders.dropped
        assert len(orders.acts) == orders.done
    assert not both


def test_when_an_order_is_told_to_be_done_another_may_be_given(bells: Bells) -> None:
    bell, second, given = listen(bells), Orders(), list[bool]()

    def done() -> None:
        given.append(bell.attend(second.order, until(LATE)))
        bell.dismiss()

    assert bell.attend(Order(lambda: None, done, lambda: None), until(0.0))
    wait_until(lambda: second.dropped == 1)
    assert given == [True]
    assert second.acts == []


def test_an_order_that_fails_keeps_nobody_from_being_heard(bells: Bells, other: Bells) -> None:
    def fail() -> float | None:
        raise RuntimeError("on purpose")

    bell, done, orders = listen(bells), listen(bells, "done"), Orders()
    assert bell.attend(Order(fail, orders.order.done, orders.order.drop), until(0.0))
    wait_until(lambda: orders.dropped == 1)
    assert not orders.done
    other.ring("done")
    assert done.wait(PATIENCE)
    other.ring("work")
    assert bell.wait(PATIENCE)


def test_a_bell_that_closes_drops_its_order(bells: Bells) -> None:
    bell, orders = listen(bells), Orders()
    assert bell.attend(orders.order, until(LATE))
    bell.close()
    assert orders.dropped == 1

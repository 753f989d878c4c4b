"""An idle worker's claim is made by the thread that hears the bell: no ring falls between the two,
and nobody waits for an order that nobody carries out."""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import psycopg
import pytest

from headgate import App, Worker
from headgate.stores.postgres.bell import Bells
from headgate.stores.protocol import Exchange, Exchanged, Order
from tests.postgres.test_bells import bells, database, listen, listeners, other, wait_until

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
        assert self.go.wait(10)
        return time.monotonic() + LATE if len(self.acts) <= self._again else None

    def _done(self) -> None:
        self.done += 1

    def _drop(self) -> None:
        self.dropped += 1


def until(seconds: float) -> float:
    return time.monotonic() + seconds


# --- one bell -----------------------------------------------------------------------------------


def test_an_order_is_carried_out_by_who_hears_the_ring(bells: Bells, other: Bells) -> None:
    bell, orders = listen(bells), Orders()
    assert bell.attends
    assert bell.attend(orders.order, until(LATE))
    other.ring("work")
    wait_until(lambda: bool(orders.acts))
    assert orders.acts == ["headgate-listener"]
    assert not bell.wait(0.1), "nobody else hears it"
    other.ring("work")
    assert bell.wait(5), "it was carried out: what rings now is for who listens"
    assert (len(orders.acts), orders.dropped) == (1, 0)


def test_an_order_is_carried_out_when_its_time_has_come(bells: Bells) -> None:
    bell, orders = listen(bells), Orders()
    time.sleep(0.1)  # the listener sleeps, for longer than the order may wait
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
    assert bell.wait(5)
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
    assert bell.wait(5)


@pytest.mark.parametrize("again", [0, 1])
def test_an_order_dismissed_while_it_is_carried_out_ends_once(
    bells: Bells, other: Bells, again: int
) -> None:
    """It is done, or dropped; and what rang meanwhile is heard."""
    bell, orders = listen(bells), Orders(again=again)
    orders.go.clear()
    assert bell.attend(orders.order, until(LATE))
    other.ring("work")
    assert orders.under_way.wait(5)
    bell.dismiss()
    bell.ring()  # the listener is at work, so by hand
    orders.go.set()
    assert bell.wait(5)
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
    bells: Bells, other: Bells
) -> None:
    """It comes in on the connection that the order speaks through, beside its answer."""
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
    assert acts[1] - acts[0] < 0.5, "not when the listener looks around next"


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
    assert done.wait(5)
    other.ring("work")
    assert bell.wait(5)


def test_a_bell_that_closes_drops_its_order(bells: Bells) -> None:
    bell, orders = listen(bells), Orders()
    assert bell.attend(orders.order, until(LATE))
    bell.close()
    assert orders.dropped == 1


# --- a worker -----------------------------------------------------------------------------------


class Watched:
    """The store of a worker; who makes its round trips is noted."""

    def __init__(self, app: App) -> None:
        self._store = app.store
        self.trips: list[tuple[str, Exchange, Exchanged]] = []
        app._store = self  # type: ignore[assignment]

    def exchange(self, exchange: Exchange) -> Exchanged:
        answer = self._store.exchange(exchange)
        self.trips.append((threading.current_thread().name, exchange, answer))
        return answer

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def taken(self) -> list[str]:
        """The threads that brought jobs."""
        return [name for name, _, answer in self.trips if answer.claimed]


@contextmanager
def at_work(app: App) -> Iterator[Worker]:
    worker = Worker(app, "w", concurrency=5)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(30)
        assert not thread.is_alive(), "a worker that keeps watch ends when it is told to"


@pytest.fixture
def ran() -> list[int]:
    return []


@pytest.fixture
def app(postgres_url: str, ran: list[int]) -> Iterator[App]:
    app = App(postgres_url)

    @app.task(name="note")
    async def note(n: int) -> None:
        ran.append(n)

    yield app
    app.close()


def run_one(app: App, ran: list[int], n: int) -> None:
    app.tasks["note"].submit(n)
    wait_until(lambda: n in ran)


def settled(watched: Watched, seconds: float = 0.3) -> None:
    """The worker has told all, and sleeps."""
    wait_until(lambda: _quiet(watched, seconds))


def _quiet(watched: Watched, seconds: float) -> bool:
    count = len(watched.trips)
    time.sleep(seconds)
    return len(watched.trips) == count


def test_an_idle_worker_claims_in_the_thread_that_hears(app: App, ran: list[int]) -> None:
    watched = Watched(app)
    with at_work(app):
        run_one(app, ran, 0)
        for n in range(1, 6):
            settled(watched)
            seen = len(watched.taken())
            run_one(app, ran, n)
            assert watched.taken()[seen:] == ["headgate-listener"]
    assert ran == list(range(6))


def test_the_end_of_the_one_job_in_line_is_told_without_asking_for_more(
    app: App, ran: list[int]
) -> None:
    watched = Watched(app)
    with at_work(app):
        run_one(app, ran, 0)
        settled(watched)
        del watched.trips[:]
        run_one(app, ran, 1)
        settled(watched, 0.2)
        ends = [exchange for _, exchange, _ in watched.trips if exchange.finishes]
        assert [exchange.claim for exchange in ends] == [None]
        run_one(app, ran, 3)


def test_two_jobs_in_close_succession_both_start_at_once(app: App, ran: list[int]) -> None:
    """The second comes in while the first is being claimed, or while its end is told."""
    task, late = app.tasks["note"], list[float]()
    with at_work(app):
        run_one(app, ran, -1)
        for n in range(0, 80, 2):
            time.sleep(0.03)
            second = threading.Timer(0.0005 * (n % 14), task.submit, (n + 1,))
            second.start()
            task.submit(n)
            second.join()
            began = time.monotonic()
            wait_until(lambda n=n: n in ran and n + 1 in ran)
            late.append(time.monotonic() - began)
    # A wake-up that is lost is one of a second, and comes in every fifth pair where there are any.
    assert sorted(late)[len(late) * 9 // 10] < 0.5, late


def test_a_retry_that_is_due_soon_starts_then(postgres_url: str) -> None:
    app, at = App(postgres_url), list[float]()

    @app.task(retries=3, retry_delay=0.1)
    async def flaky() -> None:
        at.append(time.monotonic())
        if len(at) % 4:
            raise ValueError(len(at))

    with at_work(app):
        for n in range(1, 4):
            flaky.submit()
            wait_until(lambda n=n: len(at) == 4 * n)
            time.sleep(0.1)
    app.close()
    gaps = sorted(after - before for i, (before, after) in enumerate(pairwise(at), 1) if i % 4)
    assert gaps[0] >= 0.1
    assert gaps[len(gaps) // 2] < 0.4, gaps


def test_a_loop_that_was_left_behind_leaves_the_listener_alone(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, under_way, go = app.store, threading.Event(), threading.Event()
    real = store.exchange

    def slow(exchange: Exchange) -> Exchanged:
        if threading.current_thread().name == "headgate-listener":
            under_way.set()
            assert go.wait(10)
        return real(exchange)

    async def main() -> None:
        work = asyncio.create_task(Worker(app, "w", concurrency=2).arun())
        await asyncio.to_thread(under_way.wait, 10)
        work.cancel()
        await asyncio.wait([work], timeout=0.2)

    keep = store.bell("done")
    monkeypatch.setattr(store, "exchange", slow)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    go.set()
    work = store.bell("work")
    work.drain()
    app.tasks["note"].submit(1)
    assert work.wait(10)
    work.close()
    keep.close()


def test_what_is_due_while_a_worker_keeps_watch_starts_in_time(app: App, ran: list[int]) -> None:
    watched = Watched(app)
    with at_work(app):
        run_one(app, ran, 0)
        settled(watched)
        began = time.monotonic()
        app.tasks["note"].using(delay=0.3).submit(1)
        wait_until(lambda: 1 in ran)
        assert 0.25 < time.monotonic() - began < 0.9, "not by the next safety poll"


def test_a_worker_whose_line_is_lost_goes_on(app: App, ran: list[int], postgres_url: str) -> None:
    watched = Watched(app)
    store = app.store._store  # type: ignore[attr-defined]
    with at_work(app), psycopg.connect(store._db.address.conninfo, autocommit=True) as killer:
        run_one(app, ran, 0)
        for n in range(1, 6):
            settled(watched, 0.05)
            for pid in listeners(store._db):
                killer.execute("SELECT pg_terminate_backend(%s)", (pid,))
            run_one(app, ran, n)
    assert sorted(set(ran)) == list(range(6))
    assert store.workers() == []


def test_many_idle_workers_run_each_job_once(
    postgres_url: str, app: App, ran: list[int], stack: Callable[[int], None]
) -> None:
    watched = Watched(app)
    stack(2)
    with at_work(app):
        for n in range(60):
            app.tasks["note"].submit(n)
            time.sleep(0.003 * (n % 4))
        wait_until(lambda: len(ran) >= 60)
        settled(watched)
    assert sorted(ran) == list(range(60))


@pytest.fixture
def stack(postgres_url: str, ran: list[int]) -> Iterator[Callable[[int], None]]:
    """More workers on the same store, each with connections of its own."""
    workers: list[Worker] = []
    threads: list[threading.Thread] = []
    apps: list[App] = []

    def start(count: int) -> None:
        for number in range(count):
            other = App(postgres_url)

            @other.task(name="note")
            async def note(n: int) -> None:
                ran.append(n)

            apps.append(other)
            workers.append(Worker(other, f"other-{number}", concurrency=5))
            threads.append(threading.Thread(target=workers[-1].run))
            threads[-1].start()

    yield start
    for worker, thread in zip(workers, threads, strict=True):
        worker.stop()
        thread.join(30)
        assert not thread.is_alive()
    for each in apps:
        each.close()

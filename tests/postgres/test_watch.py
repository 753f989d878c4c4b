"""An idle worker keeps watch: the thread that hears the bell makes its claim, and nothing waits
that could start."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import psycopg
import pytest

from headgate import App, Worker
from headgate.stores.postgres.hearing import ServerBell
from headgate.stores.protocol import Exchange, Exchanged
from headgate.worker import claimer
from tests.postgres.test_bells import listeners
from tests.waiting import PATIENCE, wait_until


class Watched:
    """The store of a worker; who makes its round trips is noted."""

    def __init__(self, app: App) -> None:
        self._store = app.store
        self.trips: list[tuple[str, Exchange, Exchanged]] = []
        self._bells: list[ServerBell] = []
        app._store = self  # type: ignore[assignment]

    def bell(self, what: str) -> ServerBell:
        bell = self._store.bell(what)
        assert isinstance(bell, ServerBell)
        if what == "work":
            self._bells.append(bell)
        return bell

    def exchange(self, exchange: Exchange) -> Exchanged:
        answer = self._store.exchange(exchange)
        self.trips.append((threading.current_thread().name, exchange, answer))
        return answer

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def taken(self) -> list[str]:
        """The threads that brought jobs."""
        return [name for name, _, answer in self.trips if answer.claimed]

    def watches(self) -> bool:
        """The worker has told all, and its claim waits at the bell."""
        return any(bell._order is not None and not bell._at_work for bell in self._bells)


@contextmanager
def at_work(app: App) -> Iterator[Worker]:
    worker = Worker(app, "w", concurrency=5)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a worker that keeps watch ends when it is told to"


@pytest.fixture(autouse=True)
def no_safety_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """What wakes an idle worker is a ring, or what is due: nothing else within a test."""
    monkeypatch.setattr(claimer, "SAFETY_POLL", 3600.0)


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


def settled(watched: Watched) -> None:
    wait_until(watched.watches, why="the worker keeps watch")


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
        settled(watched)
        ends = [exchange for _, exchange, _ in watched.trips if exchange.finishes]
        assert [exchange.claim for exchange in ends] == [None]
        run_one(app, ran, 3)


def test_two_jobs_in_close_succession_both_start_at_once(app: App, ran: list[int]) -> None:
    """The second comes in while the first is being claimed, or while its end is told."""
    task, watched = app.tasks["note"], Watched(app)
    with at_work(app):
        run_one(app, ran, -1)
        for n in range(0, 80, 2):
            settled(watched)
            second = threading.Timer(0.0005 * (n % 14), task.submit, (n + 1,))
            second.start()
            task.submit(n)
            second.join()
            wait_until(lambda n=n: n in ran and n + 1 in ran)
    assert sorted(ran) == list(range(-1, 80))


def test_a_retry_that_is_due_soon_starts_then(postgres_url: str) -> None:
    app, at = App(postgres_url), list[float]()

    @app.task(retries=3, retry_delay=0.1)
    async def flaky() -> None:
        at.append(time.monotonic())
        if len(at) % 4:
            raise ValueError(len(at))

    with at_work(app):
        for _ in range(3):
            flaky.submit().result(timeout=PATIENCE)
    app.close()
    assert len(at) == 12
    gaps = sorted(after - before for i, (before, after) in enumerate(pairwise(at), 1) if i % 4)
    assert gaps[0] >= 0.1


def test_a_loop_that_was_left_behind_leaves_the_listener_alone(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, under_way, go = app.store, threading.Event(), threading.Event()
    real = store.exchange

    def slow(exchange: Exchange) -> Exchanged:
        if threading.current_thread().name == "headgate-listener":
            under_way.set()
            assert go.wait(PATIENCE)
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
    assert work.wait(PATIENCE)
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
        assert time.monotonic() - began > 0.25


def test_a_worker_whose_line_is_lost_goes_on(app: App, ran: list[int], postgres_url: str) -> None:
    watched = Watched(app)
    store = app.store._store  # type: ignore[attr-defined]
    with at_work(app), psycopg.connect(store._db.address.conninfo, autocommit=True) as killer:
        run_one(app, ran, 0)
        for n in range(1, 6):
            settled(watched)
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
            if n % 4 == 0:
                wait_until(lambda n=n: n in ran)
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
        thread.join(PATIENCE)
        assert not thread.is_alive()
    for each in apps:
        each.close()


class Trips:
    """A meter that only knows round trips."""

    def __init__(self) -> None:
        self.claimed: list[int | None] = []

    def round_trip(self, seconds: float, claimed: int | None) -> None:
        assert seconds >= 0
        self.claimed.append(claimed)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def test_the_looks_of_a_watch_that_is_dismissed_are_counted_too(app: App, ran: list[int]) -> None:
    watched, meter = Watched(app), Trips()
    app.meter = meter  # type: ignore[assignment]
    with at_work(app):
        run_one(app, ran, 0)
        settled(watched)
        before = len(watched.trips)
        for n in range(3):
            app.store.ring("work")
            wait_until(lambda n=n: len(watched.trips) > before + n)
        looks = watched.trips[before:]
        assert {name for name, _, _ in looks} == {"headgate-listener"}
        assert len(looks) >= 3
    assert sum(claimed or 0 for claimed in meter.claimed) == 1
    assert len(meter.claimed) == len(watched.trips)

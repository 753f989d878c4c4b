"""A store that refuses round trips: the worker keeps what it has to tell until it is heard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate import App, Context, StoreUnavailable, Worker
from headgate.errors import StoreInDoubt
from headgate.stores.protocol import Exchange, Exchanged
from headgate.worker import sweeper
from tests.waiting import PATIENCE


class Moody:
    """The real store, which sometimes refuses an exchange. What it refuses it has not done."""

    def __init__(self, store: Any, mood: Callable[[Exchange], Exception | None]) -> None:
        self._store = store
        self._mood = mood
        self.refused = 0

    def exchange(self, exchange: Exchange) -> Exchanged:
        error = self._mood(exchange)
        if error is not None:
            self.refused += 1
            raise error
        return self._store.exchange(exchange)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
def app(tmp_path: Path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    yield app
    assert app.store.workers() == []
    app.close()


def test_no_end_is_lost_while_the_store_is_away(app: App) -> None:
    ran: list[int] = []

    @app.task(max_concurrent=3)
    def work(n: int) -> int:
        ran.append(n)
        return n

    handles = app.submit_many([work.call(n) for n in range(30)])
    turns = iter(range(10_000))
    mood = lambda _: StoreUnavailable("away") if next(turns) % 3 else None  # noqa: E731
    app._store = moody = Moody(app.store, mood)  # type: ignore[assignment]
    Worker(app, concurrency=5, burst=True).run()
    assert moody.refused > 5
    assert sorted(ran) == list(range(30)), "each ran exactly once"
    assert [handle.result(timeout=0) for handle in handles] == list(range(30))


def test_an_end_that_cannot_be_stored_fails_its_own_job_only(app: App) -> None:
    @app.task
    def work(n: int) -> str:
        return "poison" if n == 7 else "fine"

    handles = app.submit_many([work.call(n) for n in range(20)])

    def mood(exchange: Exchange) -> Exception | None:
        bad = any(f.result == '"poison"' for f in exchange.finishes)
        return TypeError("cannot be written") if bad else None

    app._store = Moody(app.store, mood)  # type: ignore[assignment]
    Worker(app, concurrency=20, burst=True).run()
    states = [handle.status() for handle in handles]
    assert states == ["succeeded"] * 7 + ["failed"] + ["succeeded"] * 12
    assert "cannot be stored" in str(app.get_job(handles[7].id).error)


def test_a_worker_that_was_declared_dead_stops(app: App) -> None:
    """Its slots may be others' by now: nothing it says counts, and it ends."""

    @app.task
    async def work() -> None:
        for worker in app.store.workers():
            app.store.declare_dead(worker.id, "by an operator")
        await __import__("asyncio").sleep(30)

    job = work.using(max_lost=0).submit()
    Worker(app, burst=True).run()
    assert (app.get_job(job.id).state, app.get_job(job.id).reason) == ("failed", "lost")


def test_who_waits_for_its_groups_waits_for_the_store_too(app: App) -> None:
    """It cannot go on without them, and a store that is away for a moment says nothing of them."""
    away = iter((True, True))
    real = app.store.retake_groups

    def retake(token: int, waited: float = 0.0) -> bool:
        if next(away, False):
            raise StoreUnavailable("away")
        return real(token, waited)

    @app.task(max_concurrent=1)
    def work(ctx: Context) -> int:
        with ctx.released():
            pass
        return app.slots.get_status(work.name).active

    job = work.submit()
    app.store.retake_groups = retake  # type: ignore[method-assign]
    Worker(app, burst=True).run()
    assert job.result(timeout=0) == 1


def test_groups_given_back_by_a_lost_answer_are_taken_again(app: App) -> None:
    """The code goes on as if it held them: so it must know whether it does."""
    lost = iter((True,))
    real = app.store.release_groups

    def release(token: int) -> bool:
        done = real(token)
        if next(lost, False):
            raise StoreInDoubt("the wire was cut")
        return done

    @app.task(max_concurrent=1)
    def work(ctx: Context) -> tuple[int, int]:
        with ctx.released():
            inside = app.slots.get_status(work.name).active
        return inside, app.slots.get_status(work.name).active

    job = work.submit()
    app.store.release_groups = release  # type: ignore[method-assign]
    Worker(app, burst=True).run()
    assert job.result(timeout=0) == (0, 1)


def test_a_chore_that_fails_is_told_of_and_tried_again(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []
    twice = threading.Event()

    def sweep() -> None:
        tries.append(1)
        if len(tries) > 1:
            twice.set()
        raise ValueError("nobody thought of this")

    @app.task
    def work() -> bool:
        return twice.wait(PATIENCE)

    job = work.submit()
    monkeypatch.setattr(sweeper, "EVERY", 0.05)
    app.store.sweep = sweep  # type: ignore[method-assign, assignment]
    Worker(app, burst=True).run()
    assert job.result(timeout=0), "it was tried once"
    assert "sweeping failed" in caplog.text


def test_an_outage_may_last_for_thousands_of_tries(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waits that double for ever end in a number that is none, and with it the worker."""
    monkeypatch.setattr("headgate.worker.claimer._LONGEST_BACKOFF", 0.0001)

    @app.task
    async def work() -> int:
        return 1

    handle = work.submit()
    turns = iter(range(10_000))
    mood = lambda _: StoreUnavailable("away") if next(turns) < 1100 else None  # noqa: E731
    app._store = moody = Moody(app.store, mood)  # type: ignore[assignment]
    Worker(app, burst=True).run()
    assert moody.refused == 1100
    assert handle.result(timeout=0) == 1

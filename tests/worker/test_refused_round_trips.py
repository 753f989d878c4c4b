"""A store that refuses round trips: the worker keeps what it has to tell until it is heard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate import App, StoreUnavailable, Worker
from headgate.stores.protocol import Exchange, Exchanged


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

"""A worker without room for anything more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headgate import App, Context, Worker
from tests.stores import store_url
from tests.waiting import PATIENCE, wait_until


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    return App(store_url(request.param, tmp_path, quick=True))


@contextmanager
def working(app: App, *, concurrency: int) -> Generator[Worker]:
    worker = Worker(app, concurrency=concurrency)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)


@pytest.mark.parametrize("leaving", [False, True])
def test_it_hears_that_a_job_is_cancelled(app: App, leaving: bool) -> None:
    """Also one that takes nothing any more, and waits for what it runs."""
    told: list[str] = []

    @app.task
    async def waits(ctx: Context) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.append(ctx.job_id)
            raise

    with working(app, concurrency=1) as worker:
        job, second = waits.submit(), waits.submit()
        wait_until(lambda: app.get_job(job.id).state == "running")
        if leaving:
            worker.stop()
        job.cancel("not wanted")
        wait_until(lambda: app.get_job(job.id).done)
        assert (app.get_job(job.id).state, told) == ("cancelled", [job.id])
        if leaving:
            assert app.get_job(second.id).state == "ready"
        second.cancel()

"""Real workers of which every tenth answer is lost, done or not done: no limit is passed, and
nothing is lost, doubled or left behind."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate import App, Context, OneOf, Retry, Snooze, Worker
from headgate.errors import HeadgateError, StoreInDoubt
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.store import PostgresStore
from tests.stores import store_url
from tests.waiting import PATIENCE, wait_until

FULL = os.environ.get("HEADGATE_PROOF") == "full"
JOBS = 500 if FULL else 150
LOST = 0.1
LIMITS = {"host-a": 2, "host-b": 1, "gpu": 4, "key/0": 1, "key/1": 1, "key/2": 1}


class Wire:
    """Between the workers of this process and the server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bad = True
        self.lost: Counter[str] = Counter()
        for name in ("_values", "_commit"):
            self._cut(monkeypatch, name)

    def _cut(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(Database, name)

        def lossy(database: Database, *args: Any) -> Any:
            # Of workers alone: what this test asks for by itself is answered.
            worker = threading.current_thread().name.startswith("headgate-store")
            if not (self.bad and worker and random.random() < LOST):
                return real(database, *args)
            done = random.random() < 0.5
            if done:
                real(database, *args)
            self.lost["done" if done else "not done"] += 1
            raise StoreInDoubt("the wire was cut")

        monkeypatch.setattr(Database, name, lossy)


class Floor:
    """Who is inside, as the jobs themselves say it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: Counter[str] = Counter()
        self.over: list[tuple[str, int]] = []
        self.ended: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def inside(self, task: str, n: int, **units: int) -> Generator[None]:
        groups = {name.replace("_", "-", 1): count for name, count in units.items()}
        with self._lock:
            self._inside.update(groups)
            self.over += [(g, self._inside[g]) for g in groups if self._inside[g] > LIMITS[g]]
        try:
            yield
        finally:
            with self._lock:
                self._inside.subtract(groups)
        with self._lock:
            self.ended[task, n] += 1


async def work(ctx: Context) -> None:
    await asyncio.sleep(random.uniform(0, 0.004))
    chance = random.random()
    if chance < 0.05:
        raise Snooze(0.05)
    if chance < 0.1:
        raise Retry(0.05)
    if chance > 0.9:
        try:
            # Tells at once in whose slots it runs.
            ctx.extend_lease(5)
        except HeadgateError:
            return
        await asyncio.sleep(0.003)


def shop(url: str, floor: Floor) -> App:
    app = App(url)
    app.limit("host-a", 2)
    app.limit("host-b", 1)
    gpu = app.limit("gpu", 4)
    key = app.limit("key", 1, key="k")

    @app.task(limits=[OneOf("host-a", "host-b")], retries=500)
    async def one(ctx: Context, n: int) -> None:
        with floor.inside("one", n, **{str(ctx.group): 1}):
            await work(ctx)

    @app.task(limits=[gpu.units(3)], retries=500)
    async def wide(ctx: Context, n: int) -> None:
        with floor.inside("wide", n, gpu=3):
            await work(ctx)

    @app.task(limits=[key, gpu], retries=500)
    async def keyed(ctx: Context, n: int, k: int) -> None:
        with floor.inside("keyed", n, **{f"key/{k}": 1, "gpu": 1}):
            await work(ctx)

    return app


def test_workers_that_do_not_hear_every_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = store_url("postgres", tmp_path, quick=True)
    floor, wire = Floor(), Wire(monkeypatch)
    apps = [shop(url, floor), shop(url, floor)]
    app = apps[0]
    tasks = app.tasks
    jobs = app.submit_many(
        [
            call
            for n in range(JOBS)
            for call in (
                tasks["one"].call(n), tasks["wide"].call(n), tasks["keyed"].call(n, n % 3)
            )
        ]
    )  # fmt: skip
    # Two of them share a store, and what is remembered of lost answers.
    workers = [Worker(apps[0], concurrency=8), Worker(apps[0], concurrency=4)]
    workers.append(Worker(apps[1], concurrency=8))
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: floor.ended.total() > len(jobs) * 9 // 10, 300)
        wire.bad = False
        wait_until(lambda: all(app.get_job(job.id).done for job in jobs))
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join(PATIENCE)
    assert min(wire.lost["done"], wire.lost["not done"]) >= 3, "it was put to the test"
    assert floor.over == []
    assert {app.get_job(job.id).state for job in jobs} == {"succeeded"}
    assert set(floor.ended.values()) == {1}
    assert len(floor.ended) == len(jobs)
    assert {group: app.store.group(group)[0].held for group in LIMITS} == dict.fromkeys(LIMITS, 0)
    for one in apps:
        assert isinstance(one.store, PostgresStore)
        books = one.store._exchanger._books
        assert (books._held, books._follows, books.handed._to) == ({}, {}, {})

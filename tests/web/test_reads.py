"""What a dashboard reads of the store, while people have its pages open: the same whether there are
ten thousand jobs or a million, and whether one looks or many.

Pages are fetched anew every two seconds at most, so what one round of that reads is the bound of
what is read in two seconds. With `HEADGATE_PROOF=full` there are 1,000,000 jobs and 100,000 keys,
on each store, and it is counted by the clock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from headgate.stores.postgres import database as postgres
from headgate.stores.postgres.url import parse
from headgate.web import create_app
from tests.stores import store_url
from tests.web import scene as scenes
from tests.web.browser import serving
from tests.web.load import fill, fill_postgres
from tests.web.scene import Scene
from tests.web.visit import visiting

FULL = bool(os.environ.get("HEADGATE_PROOF"))
EVERY = 2.0
"""Seconds between two looks of a stream."""
SECONDS = 40.0
ROUNDS = 3
# Where there is less than what is counted at most, fewer rows are read: so little is not compared.
FEW = {"ended": 21_000, "hot": 11_000, "keys": 1000}
MANY = {"ended": 300_000, "hot": 600_000, "keys": 100_000} if FULL else dict(FEW, hot=60_000)
PAGES = (
    "/", "/groups", "/groups/show?group=tenant", "/groups/show?group=tenant/hot", "/jobs",
    "/jobs?state=ready", "/queues", "/workers", "/events", "/fairness",
)  # fmt: skip
STEPS, STEPS_A_ROW = 1000, 50
"""Of SQLite's machine, between two calls of the counter; and at most for a row."""
LIVE = {"x-headgate-live": "1"}
MORE = 1.3
"""Rates are measured beside other things that the machine does."""
STATEMENTS, ROWS = 150, 100_000
"""A second, at most, with all these pages open."""


@dataclass
class Rate:
    """What is read in a second, where all pages are fetched anew as often as they ever are."""

    statements: float
    rows: float
    refreshes: float


class Meter:
    """Counts what a store's readers ask of it, and what that costs. `rows`: of PostgreSQL, what
    its scans went through; SQLite tells no such number, there it is steps of its machine."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements = 0
        self._steps = 0
        self._scene = scene
        store: Any = scene.store
        if scene.app.url.startswith("sqlite"):
            self._count_sqlite(store._db, monkeypatch)
        else:
            self._count_postgres(monkeypatch)

    def _count_sqlite(self, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        read = db.read

        def step() -> int:
            self._steps += STEPS
            return 0

        def asked(_: str) -> None:
            self.statements += 1

        @contextmanager
        def counted() -> Generator[Any]:
            with read() as tx:
                tx.connection.set_progress_handler(step, STEPS)
                tx.connection.set_trace_callback(asked)
                try:
                    yield tx
                finally:
                    tx.connection.set_progress_handler(None, 0)
                    tx.connection.set_trace_callback(None)

        monkeypatch.setattr(db, "read", counted)

    def _count_postgres(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = postgres.Transaction.run

        def counted(tx: Any, *args: Any) -> Any:
            self.statements += not tx.writes
            return run(tx, *args)

        monkeypatch.setattr(postgres.Transaction, "run", counted)

    def rows(self) -> int:
        url = self._scene.app.url
        if url.startswith("sqlite"):
            return self._steps
        address = parse(url)
        time.sleep(1.2)  # sessions tell what they read once a second at most
        with psycopg.connect(address.conninfo, autocommit=True) as db:
            found = db.execute(
                "SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname = s)"
                " + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = s)"
                " FROM (SELECT %s::text) AS asked (s)",
                (address.schema,),
            ).fetchone()
        assert found is not None
        return int(found[0])


class Visitor(threading.Thread):
    """Somebody with one page open: listens, and fetches it anew when told, as our script does."""

    def __init__(self, url: str, path: str) -> None:
        super().__init__()
        self._url, self._path = url, path
        self.over = threading.Event()
        self.refreshes = 0

    def run(self) -> None:
        with (
            httpx.Client(base_url=self._url, timeout=30) as client,
            client.stream("GET", "/stream") as stream,
        ):
            for line in stream.iter_lines():
                if self.over.is_set():
                    return
                if line == "event: change":
                    assert client.get(self._path, headers=LIVE).status_code == 200
                    self.refreshes += 1


def by_the_clock(scene: Scene, meter: Meter, each: int) -> Rate:
    """With so many visitors on each of the pages, while something changes all the time."""
    with serving(create_app(scene.app)) as url:
        visitors = [Visitor(url, path) for path in PAGES for _ in range(each)]
        for visitor in visitors:
            visitor.start()
        _change(scene, EVERY * 3)  # what is looked at only once, at the beginning, is not counted
        statements, rows, seen = meter.statements, meter.rows(), sum(v.refreshes for v in visitors)
        began = time.monotonic()
        _change(scene, SECONDS)
        took = time.monotonic() - began
        statements = meter.statements - statements
        seen = sum(v.refreshes for v in visitors) - seen
        rows = meter.rows() - rows
        assert min(visitor.refreshes for visitor in visitors) >= 3, "the pages are alive"
        for visitor in visitors:
            visitor.over.set()
        _change(scene, EVERY * 2.5)
        for visitor in visitors:
            visitor.join()
    return Rate(statements / took, rows / took, seen / took)


def _change(scene: Scene, seconds: float) -> None:
    """A queue is paused and resumed."""
    until, paused = time.monotonic() + seconds, False
    while time.monotonic() < until:
        paused = not paused
        scene.store.pause_queue("other", paused)
        time.sleep(EVERY / 4)


def by_rounds(scene: Scene, meter: Meter, each: int) -> Rate:
    """The same without waiting: all visitors fetch their pages, again and again."""
    site = create_app(scene.app)
    with visiting(site) as visit, ThreadPoolExecutor(len(PAGES) * each) as visitors:

        def fetch(path: str) -> int:
            return visit.get(path, headers=LIVE).status_code

        def round() -> None:
            site.state.site.forget()
            assert set(visitors.map(fetch, PAGES * each)) == {200}

        round()
        statements, rows = meter.statements, meter.rows()
        for _ in range(ROUNDS):
            round()
        took = ROUNDS * EVERY
        statements, rows = meter.statements - statements, meter.rows() - rows
    return Rate(statements / took, rows / took, len(PAGES) * each / EVERY)


def fill_up(scene: Scene, **counts: int) -> None:
    if scene.app.url.startswith("sqlite"):
        fill(Path(scene.app.url.removeprefix("sqlite:///")), **counts)
    else:
        fill_postgres(scene.app.url, **counts)


@pytest.mark.parametrize(
    "store",
    ["sqlite", pytest.param("postgres", marks=pytest.mark.skipif(not FULL, reason="the proof"))],
)
@pytest.mark.timeout(1200 if FULL else 180)
def test_what_is_read_does_not_grow(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not FULL:
        # However slow this machine is, what is looked at in one round is one look.
        for module in ("looks", "sampler"):
            monkeypatch.setattr(f"headgate.web.{module}.FRESH", 1e9)
        # What looks stuck is looked for every ten seconds: in so short a time once, or not at all.
        monkeypatch.setattr("headgate.web.site.TROUBLES_EVERY", 1e9)
        monkeypatch.setattr("headgate.web.sampler.EVERY", 1e9)
    measure = by_the_clock if FULL else by_rounds
    scene = scenes.make(store_url(store, tmp_path, quick=True))
    try:
        fill_up(scene, **FEW)
        meter = Meter(scene, monkeypatch)
        few = measure(scene, meter, 1)
        fill_up(scene, **{name: count - FEW[name] for name, count in MANY.items()})
        many = measure(scene, meter, 1)
        crowd = measure(scene, meter, 4)
    finally:
        scene.close()
    print(store, f"few jobs: {few}", f"many jobs: {many}", f"four of each: {crowd}", sep="\n  ")
    for rate in (few, many, crowd):
        assert rate.statements < STATEMENTS
        assert rate.rows < ROWS * (STEPS_A_ROW if store == "sqlite" else 1)
    for more, less in ((many, few), (crowd, many)):
        assert more.statements < less.statements * MORE
        assert more.rows < less.rows * MORE

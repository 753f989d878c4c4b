"""Behind PgBouncer in transaction mode: another session may stand behind every transaction."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headgate import App
from headgate.errors import StoreBusy
from headgate.jobs import JobFilter
from headgate.stores.postgres import schema
from headgate.stores.postgres.bell import Bells, PollingBell
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.url import parse
from tests.postgres.pgbouncer import PgBouncer, installed
from tests.postgres.server import OwnServer, Server
from tests.worker import sample
from tests.worker.site import Site, opened


@pytest.fixture(params=["found", "told"])
def database(bounced_url: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    url = bounced_url if request.param == "found" else f"{bounced_url}&pgbouncer=true"
    database = Database(url)
    schema.settle(database)
    yield database
    database.close()


def test_it_is_noticed(database: Database) -> None:
    with database.session() as connection:
        assert connection.pooled
        assert connection.prepare_threshold is None
    assert isinstance(Bells(database).listen("work"), PollingBell)


def test_a_direct_connection_is_not_taken_for_it(postgres_url: str) -> None:
    database = Database(postgres_url)
    with database.session() as connection:
        assert not connection.pooled
    database.close()


def test_every_transaction_has_its_settings_and_leaves_none(
    database: Database, postgres: Server
) -> None:
    with database.write() as tx:
        assert tx.value("SHOW jit") == "off"
        assert tx.value("SHOW statement_timeout") == "30s"
        assert tx.value("SHOW lock_timeout") == "10s"
    with database.session() as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)


def test_many_threads_through_a_few_sessions(database: Database) -> None:
    troubles: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                with database.write() as tx:
                    tx.lock(["a"])
                    tx.many("UPDATE headgate.counters SET value = value + ?", [(1,), (2,)])
                    tx.ring("work")
                database.call("SELECT headgate.clock()")
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert troubles == []
    with database.read() as tx:
        assert tx.value("SELECT value FROM headgate.counters") == 8 * 20 * 3


def test_a_lock_ends_with_its_transaction(database: Database) -> None:
    def wait_for_it() -> None:
        with database.write(timeout=0.2) as tx:
            tx.lock(["a"])

    with database.write() as tx:
        tx.lock(["a"])
        with pytest.raises(StoreBusy):
            wait_for_it()
    for _ in range(6):
        wait_for_it()


def test_a_callers_transaction(bounced_url: str) -> None:
    """Each may have another session than the one before it: nothing may be left in one, and
    nothing may be expected in one."""
    app = App(bounced_url)

    @app.task("note")
    def note(text: str = "") -> None: ...

    async def in_a_loop(address: str) -> None:
        connecting = psycopg.AsyncConnection.connect(address, prepare_threshold=None)
        async with await connecting as conn:
            await note.using(conn=conn).asubmit(text="undone")
            await conn.rollback()
            await app.asubmit_many([note.call(text="loop") for _ in range(3)], conn=conn)
            await conn.commit()

    with app:
        address = parse(app.url).conninfo
        with (
            psycopg.connect(address, prepare_threshold=None) as first,
            psycopg.connect(address, prepare_threshold=None) as second,
            psycopg.connect(address, prepare_threshold=None) as other,
        ):
            for n in range(8):
                if n % 2:
                    other.execute("SELECT 1")  # in the session that the first had before
                note.using(conn=first).submit(text=f"one {n}")
                app.submit_many([note.call(text="many") for _ in range(5)], conn=second)
                assert app.store.count(JobFilter()) == 6 * n, "nobody sees them before the commit"
                second.commit()
                first.commit()
                other.commit()
            note.using(conn=first).submit(text="undone")
            app.submit_many([note.call(text="undone") for _ in range(5)], conn=second)
            first.rollback()
            second.rollback()
        asyncio.run(in_a_loop(address))
        told = [note.arguments(one.args)["text"] for one in app.store.find(JobFilter(), limit=100)]
    assert sorted(told) == sorted(
        [*(f"one {n}" for n in range(8)), *["many"] * 40, *["loop"] * 3]
    )  # fmt: skip


def most_inside(site: Site) -> int:
    """How many were inside the gate at once."""
    steps = {"gate-in": 1, "gate-out": -1}
    return max(itertools.accumulate(steps.get(event["event"], 0) for event in site.events()))


def test_workers_keep_a_limit(
    bounced_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(Site(tmp_path, bounced_url), monkeypatch) as site:
        jobs = site.app.submit_many([sample.touch_gate.call(n) for n in range(60)])
        trees = [site.start("--concurrency", "5") for _ in range(2)]
        for job in jobs:
            assert site.until_done(job.id).state == "succeeded"
        assert most_inside(site) == 1
        assert [tree.stop() for tree in trees] == [0, 0]


def test_a_worker_shares_one_session_with_itself(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its processes and threads: none may hold it while it waits for another."""
    if not isinstance(postgres, OwnServer):
        pytest.fail("PgBouncer is put in front of a server of our own: unset HEADGATE_TEST_PG")
    bouncer = PgBouncer(postgres, installed())
    text = bouncer.config.read_text()
    assert "default_pool_size = 4" in text
    bouncer.config.write_text(text.replace("default_pool_size = 4", "default_pool_size = 1"))
    url = postgres.fresh()
    through = bouncer.url(schema=parse(url).schema)
    try:
        bouncer.start()
        with opened(Site(tmp_path, url), monkeypatch) as site:
            gated = site.app.submit_many([sample.touch_gate.call(n) for n in range(60)])
            free = site.app.submit_many([sample.add.call(n, 1) for n in range(200)])
            tree = site.start("--processes", "2", "--concurrency", "5", HEADGATE_URL=through)
            for job in (*gated, *free):
                record = site.until_done(job.id)
                assert (record.state, record.attempt) == ("succeeded", 1)
            assert most_inside(site) == 1
            assert len(site.events("gate-in")) == len(gated)
            assert "refused a round trip" not in tree.output()
            assert tree.stop() == 0
    finally:
        bouncer.close()

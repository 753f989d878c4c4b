"""The caller's transaction is sacred: a job submitted in it appears when it commits, vanishes
when it rolls back, and holds up nobody meanwhile; through whatever driver the caller uses."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any

import asyncpg
import django
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from headgate import App, IdempotencyConflict, JobNotFound, WrongConnection
from headgate.jobs import JobFilter
from headgate.stores.postgres.url import parse
from tests.conformance.conftest import Hand, Rig
from tests.waiting import PATIENCE

Leave = Callable[[], Any]


@pytest.fixture
def app(postgres_url: str) -> Iterator[App]:
    made = App(postgres_url)

    @made.task("note")
    def note(text: str = "") -> None: ...

    with made:
        yield made


def address(app: App) -> str:
    """What a driver other than ours connects with."""
    return parse(app.url).conninfo


def parts(app: App) -> dict[str, Any]:
    told = psycopg.conninfo.conninfo_to_dict(address(app))
    return {"host": told["host"], "port": int(told["port"]), "user": told["user"],
            "database": told["dbname"]}  # fmt: skip


def sqlalchemy_url(app: App, driver: str) -> sqlalchemy.URL:
    told = parts(app)
    return sqlalchemy.URL.create(
        f"postgresql+{driver}", username=told["user"], database=told["database"],
        query={"host": told["host"], "port": str(told["port"])},
    )  # fmt: skip


def stored(app: App) -> int:
    return app.store.count(JobFilter())


# --- the drivers: each opens a transaction, and says how it ends --------------------------------

Opened = tuple[Any, Leave, Leave]
"""What is passed as conn=, commit, rollback."""


@contextmanager
def psycopg_connection(app: App) -> Iterator[Opened]:
    with psycopg.connect(address(app)) as connection:
        yield connection, connection.commit, connection.rollback


@contextmanager
def psycopg_cursor_of_mappings(app: App) -> Iterator[Opened]:
    connect = psycopg.connect(address(app), row_factory=dict_row)
    with connect as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 AS one")
        yield cursor, connection.commit, connection.rollback


@contextmanager
def sqlalchemy_connection(app: App) -> Iterator[Opened]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(app, "psycopg"))
    with engine.connect() as connection:
        yield connection, connection.commit, connection.rollback
    engine.dispose()


@contextmanager
def sqlalchemy_session(app: App) -> Iterator[Opened]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(app, "psycopg"))
    with Session(engine) as session:
        yield session, session.commit, session.rollback
    engine.dispose()


@contextmanager
def sqlalchemy_scoped_session(app: App) -> Iterator[Opened]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(app, "psycopg"))
    session = scoped_session(sessionmaker(engine))
    yield session, session.commit, session.rollback
    session.remove()
    engine.dispose()


@contextmanager
def django_connection(app: App) -> Iterator[Opened]:
    from django.db import connection, transaction

    configure_django(app)
    transaction.set_autocommit(False)
    try:
        yield connection, transaction.commit, transaction.rollback
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
        connection.close()


@contextmanager
def django_cursor(app: App) -> Iterator[Opened]:
    with django_connection(app) as (connection, commit, rollback), connection.cursor() as cursor:
        yield cursor, commit, rollback


def configure_django(app: App) -> None:
    from django.conf import settings
    from django.db import connections

    told = parts(app)
    database = {
        "ENGINE": "django.db.backends.postgresql", "NAME": told["database"],
        "HOST": told["host"], "PORT": told["port"], "USER": told["user"],
    }  # fmt: skip
    if not settings.configured:
        settings.configure(DATABASES={"default": database})
        django.setup()
    assert connections["default"].settings_dict["HOST"] == told["host"]


SYNC: list[Callable[[App], AbstractContextManager[Opened]]] = [
    psycopg_connection, psycopg_cursor_of_mappings, sqlalchemy_connection, sqlalchemy_session,
    sqlalchemy_scoped_session, django_connection, django_cursor,
]  # fmt: skip


@asynccontextmanager
async def async_psycopg(app: App) -> AsyncIterator[Opened]:
    async with await psycopg.AsyncConnection.connect(address(app)) as connection:
        yield connection, connection.commit, connection.rollback


@asynccontextmanager
async def async_psycopg_cursor(app: App) -> AsyncIterator[Opened]:
    opened = async_psycopg(app)
    async with opened as (connection, commit, rollback), connection.cursor() as cursor:
        yield cursor, commit, rollback


@asynccontextmanager
async def asyncpg_connection(app: App) -> AsyncIterator[Opened]:
    connection = await asyncpg.connect(**parts(app))
    transaction = connection.transaction()
    await transaction.start()
    yield connection, transaction.commit, transaction.rollback
    await connection.close()


@asynccontextmanager
async def asyncpg_pool(app: App) -> AsyncIterator[Opened]:
    async with asyncpg.create_pool(**parts(app), min_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield connection, transaction.commit, transaction.rollback


@asynccontextmanager
async def async_sqlalchemy_connection(app: App) -> AsyncIterator[Opened]:
    engine = create_async_engine(sqlalchemy_url(app, "psycopg"))
    async with engine.connect() as connection:
        yield connection, connection.commit, connection.rollback
    await engine.dispose()


@asynccontextmanager
async def async_sqlalchemy_session(app: App) -> AsyncIterator[Opened]:
    engine = create_async_engine(sqlalchemy_url(app, "asyncpg"))
    async with AsyncSession(engine) as session:
        yield session, session.commit, session.rollback
    await engine.dispose()


ASYNC: list[Callable[[App], AbstractAsyncContextManager[Opened]]] = [
    async_psycopg, async_psycopg_cursor, asyncpg_connection, asyncpg_pool,
    async_sqlalchemy_connection, async_sqlalchemy_session,
]  # fmt: skip


# --- it commits with the caller, and never without ------------------------------------------------


@pytest.mark.parametrize("driver", SYNC)
def test_it_appears_on_commit_and_vanishes_on_rollback(
    app: App, driver: Callable[[App], AbstractContextManager[Opened]]
) -> None:
    note = app.tasks["note"]
    with driver(app) as (conn, commit, rollback):
        lost = note.using(conn=conn).submit(text="lost")
        assert stored(app) == 0, "nobody sees it before the commit"
        rollback()
        assert stored(app) == 0
        kept = note.using(conn=conn, priority=-5).submit(text='kept: "\0", \\, é, %s, :x')
        by_name = app.submit("elsewhere", {"n": 1}, conn=conn)
        many = app.submit_many([note.call(text=str(n)) for n in range(3)], conn=conn)
        assert stored(app) == 0
        commit()
    assert stored(app) == 5
    with pytest.raises(JobNotFound):
        app.get_job(lost.id)
    record = app.get_job(kept.id)
    assert (record.state, record.priority) == ("ready", -5)
    assert note.arguments(record.args) == {"text": 'kept: "\0", \\, é, %s, :x'}
    assert app.get_job(by_name.id).reason == "unrouted"
    assert [note.arguments(app.get_job(h.id).args)["text"] for h in many] == ["0", "1", "2"]


@pytest.mark.parametrize("driver", ASYNC)
def test_the_same_in_an_event_loop(
    app: App, driver: Callable[[App], AbstractAsyncContextManager[Opened]]
) -> None:
    note = app.tasks["note"]

    async def run() -> None:
        async with driver(app) as (conn, _, rollback):
            await note.using(conn=conn).asubmit(text="lost")
            await rollback()
        async with driver(app) as (conn, commit, _):
            await note.using(conn=conn).asubmit(text="kept\0")
            await app.asubmit("elsewhere", {"n": 1}, conn=conn)
            await app.asubmit_many([note.call(text=str(n)) for n in range(3)], conn=conn)
            assert stored(app) == 0
            await commit()

    asyncio.run(run())
    assert stored(app) == 5
    assert {r.task for r in app.store.find(JobFilter())} == {"note", "elsewhere"}


def test_a_connection_in_autocommit_submits_at_once(app: App) -> None:
    with psycopg.connect(address(app), autocommit=True) as conn:
        app.tasks["note"].using(conn=conn).submit(text="now")
        assert stored(app) == 1


def test_it_shares_the_fate_of_a_savepoint(app: App) -> None:
    note = app.tasks["note"]
    with psycopg.connect(address(app)) as conn:
        with conn.transaction() as inner:
            note.using(conn=conn).submit(text="undone")
            raise psycopg.Rollback(inner)
        note.using(conn=conn).submit(text="kept")
    (record,) = app.store.find(JobFilter())
    assert note.arguments(record.args) == {"text": "kept"}


# --- it holds up nobody ---------------------------------------------------------------------------


def test_an_open_transaction_delays_neither_producers_nor_workers(app: App) -> None:
    """All name the same group and carry a value for it: nothing that one of them writes may be
    waited for by another."""
    note = app.tasks["note"].using(concurrency_group="shared", concurrency_limit=2)
    rig = Rig(app.store, None)  # type: ignore[arg-type]
    with psycopg.connect(address(app)) as first, psycopg.connect(address(app)) as second:
        second.execute("SET lock_timeout = '2s'")
        note.using(conn=first).submit(text="held open")
        note.using(conn=second).submit(text="another's")
        second.commit()
        note.submit(text="our own")
        app.submit_many([note.call(text=str(n)) for n in range(30)])
        hand = Hand(rig, "w", ["note"])
        claimed = hand.claim(room=10)
        assert len(claimed) == 2
        for one in claimed:
            assert hand.end(one)
        assert len(hand.claim(room=10)) == 2, "what is held open does not count"
        first.rollback()
    hand.end_all()
    hand.leave()


def test_an_idempotency_key_meets_the_job_of_a_transaction_that_commits(app: App) -> None:
    note = app.tasks["note"].using(idempotency_key="once")
    results: list[Any] = []
    with psycopg.connect(address(app)) as first:
        kept = note.using(conn=first).submit(text="one")
        other = threading.Thread(target=lambda: results.append(note.submit(text="one").id))
        other.start()
        wait_for_lock(app)
        first.commit()
        other.join(PATIENCE)
    assert results == [kept.id]
    assert stored(app) == 1


def test_and_is_free_when_that_transaction_rolls_back(app: App) -> None:
    note = app.tasks["note"].using(idempotency_key="once")
    results: list[Any] = []
    with psycopg.connect(address(app)) as first:
        gone = note.using(conn=first).submit(text="one")
        other = threading.Thread(target=lambda: results.append(note.submit(text="two").id))
        other.start()
        wait_for_lock(app)
        first.rollback()
        other.join(PATIENCE)
    (id,) = results
    assert id != gone.id
    assert app.get_job(id).state == "ready"


def wait_for_lock(app: App) -> None:
    """Until some transaction waits for another."""
    with psycopg.connect(address(app), autocommit=True) as look:
        for _ in range(2000):
            waiting = look.execute("SELECT 1 FROM pg_locks WHERE NOT granted LIMIT 1").fetchone()
            if waiting:
                return
    raise AssertionError("nobody waits")


def test_a_conflict_leaves_the_transaction_usable_and_stores_nothing(app: App) -> None:
    note = app.tasks["note"]
    note.using(idempotency_key="b").submit(text="one")
    with psycopg.connect(address(app)) as conn:
        calls = [
            note.using(idempotency_key=key).call(text="other") for key in ("a", "b", "c")
        ]  # fmt: skip
        with pytest.raises(IdempotencyConflict, match="'b' belongs to job"):
            app.submit_many(calls, conn=conn)
        assert stored(app) == 1
        fresh = app.submit_many([calls[0], calls[2], calls[0]], conn=conn)
        assert fresh[0].id == fresh[2].id, "the same key twice in one submit is one job"
        conn.commit()
    assert stored(app) == 3


# --- what is refused ------------------------------------------------------------------------------


def test_the_wrong_kind_is_refused_before_anything_is_done(app: App) -> None:
    note = app.tasks["note"]
    with pytest.raises(WrongConnection, match=r"sqlite3\.Connection, which cannot be used"):
        note.using(conn=sqlite3.connect(":memory:")).submit()
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as conn, pytest.raises(WrongConnection, match="connected to sqlite"):
        note.using(conn=conn).submit()
    with pytest.raises(WrongConnection, match="Engine, which cannot be used"):
        note.using(conn=engine).submit()
    with psycopg.connect(address(app)) as conn:
        with pytest.raises(WrongConnection, match="is synchronous"):
            asyncio.run(note.using(conn=conn).asubmit())
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    async def run() -> None:
        async with async_psycopg(app) as (conn, _, _):
            with pytest.raises(WrongConnection, match="is asynchronous"):
                note.using(conn=conn).submit()

    asyncio.run(run())
    assert stored(app) == 0


def test_another_database_is_named_as_such(app: App, empty_database: str) -> None:
    told = "pass a connection to the database of the store"
    with (
        psycopg.connect(parse(empty_database).conninfo) as conn,
        pytest.raises(WrongConnection, match=told),
    ):
        app.tasks["note"].using(conn=conn).submit()


def test_a_store_that_is_no_database_of_yours_says_so(postgres_url: str) -> None:
    with App("sqlite:///:memory:") as app:
        app.task("note")(lambda: None)
        conn = psycopg.connect(parse(postgres_url).conninfo)
        with conn, pytest.raises(WrongConnection, match="Submit without conn="):
            app.tasks["note"].using(conn=conn).submit()


def test_errors_of_the_connection_are_the_callers(app: App) -> None:
    with psycopg.connect(address(app)) as conn:
        with pytest.raises(psycopg.errors.DivisionByZero):
            conn.execute("SELECT 1 / 0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            app.tasks["note"].using(conn=conn).submit()

"""Whatever happens on the way to the server: a typed error in bounded time, then work again."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import TypeVar

import psycopg
import pytest

from headgate.errors import ConfigError, StoreBusy, StoreError, StoreInDoubt, StoreUnavailable
from headgate.stores import open_store, shown
from headgate.stores.postgres import database as databases
from headgate.stores.postgres import pool, schema
from headgate.stores.postgres.connection import Connection
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.url import parse
from tests.postgres.proxy import Proxy
from tests.postgres.rival import Waiter
from tests.postgres.server import OwnServer, binaries
from tests.waiting import wait_until

T = TypeVar("T")


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    """One of our own: it is stopped and filled up."""
    server = OwnServer(binaries(), {"max_connections": "12", "superuser_reserved_connections": "3"})
    server.start()
    server.run("CREATE ROLE worker LOGIN", "CREATE DATABASE work OWNER worker")
    with closing(Database(server.url("work", user="worker"))) as database:
        schema.settle(database)
    yield server
    server.close()


@pytest.fixture
def database(server: OwnServer) -> Iterator[Database]:
    if server.process is None:
        server.start()
    database = Database(server.url("work", user="worker"))
    yield database
    database.close()


@pytest.fixture
def proxy(server: OwnServer) -> Iterator[Proxy]:
    proxy = Proxy(server.tcp)
    yield proxy
    proxy.close()


def works(database: Database) -> bool:
    with database.write() as tx:
        tx.run("UPDATE headgate.counters SET value = value + 1 WHERE name = 'limits'")
    return True


def count(database: Database) -> int:
    with database.read() as tx:
        return tx.value("SELECT value FROM headgate.counters WHERE name = 'limits'")


def bounded(call: Callable[[], T]) -> T:
    """It returns or raises: it does not wait for ever."""
    return Waiter(call).result()


def kill_backends(server: OwnServer) -> None:
    with server.admin() as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'worker'"
        )


# --- the server goes and comes back ---------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_restart(server: OwnServer, database: Database, how: signal.Signals) -> None:
    assert works(database)
    server.stop(how)
    with pytest.raises(StoreUnavailable):
        bounded(lambda: works(database))
    server.start()
    assert works(database)


def test_killed_backends_between_transactions_are_not_even_noticed(
    server: OwnServer, database: Database
) -> None:
    for _ in range(3):
        with ExitStack() as stack:  # several connections in the pool
            for _ in range(3):
                stack.enter_context(database.read())
        kill_backends(server)
        assert works(database)


def test_a_backend_killed_in_the_middle(server: OwnServer, database: Database) -> None:
    before = count(database)

    def interrupted() -> None:
        with database.write() as tx:
            tx.run("UPDATE headgate.counters SET value = value + 1 WHERE name = 'limits'")
            kill_backends(server)
            tx.value("SELECT 1")

    with pytest.raises(StoreUnavailable) as told:
        interrupted()
    assert not isinstance(told.value, StoreInDoubt), "nothing was committed, and that is certain"
    assert count(database) == before
    assert works(database)


def test_a_commit_without_an_answer_is_in_doubt(
    server: OwnServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PATIENCE", 1.0)
    monkeypatch.setattr(Connection, "patience", 1.0)
    url = server.tcp_url("work", proxy.port, "worker")
    with closing(Database(url)) as database:
        before = count(database)
        proxy.after = b"COMMIT\0"
        with pytest.raises(StoreInDoubt, match="may have happened or not"):
            bounded(lambda: works(database))
        proxy.after, proxy.dead = None, False
        assert count(database) == before + 1, "here it had"


def test_a_statement_of_its_own_without_an_answer_is_in_doubt(
    server: OwnServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PATIENCE", 1.0)
    monkeypatch.setattr(Connection, "patience", 1.0)
    with closing(Database(server.tcp_url("work", proxy.port, "worker"))) as database:
        assert database.call("SELECT headgate.clock()")
        proxy.after = b"clock"
        with pytest.raises(StoreInDoubt):
            database.call("SELECT headgate.clock()")


# --- the network ----------------------------------------------------------------------------------


def test_a_dead_wire(server: OwnServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither side closes anything, nothing arrives: only our own patience ends the wait."""
    monkeypatch.setattr(databases, "BEGIN_PATIENCE", 1.0)
    url = server.tcp_url("work", proxy.port, "worker") + "?connect_timeout=2"
    with closing(Database(url)) as database:
        assert works(database)
        proxy.dead = True
        with pytest.raises(StoreUnavailable):
            bounded(lambda: works(database))
        proxy.dead = False
        assert works(database)


def test_a_wire_that_died_while_nobody_used_it(
    server: OwnServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that has rested is asked first: else it would be in doubt whether the
    statement was done."""
    monkeypatch.setattr(pool, "BEGIN_PATIENCE", 1.0)
    monkeypatch.setattr(pool, "RESTED", 0.0)
    with closing(Database(server.tcp_url("work", proxy.port, "worker"))) as database:
        assert database.call("SELECT headgate.clock()")
        proxy.dead = True
        asking = Waiter(lambda: database.call("SELECT headgate.clock()"))
        wait_until(lambda: proxy.swallowed > 0)
        proxy.dead = False
        assert asking.result()


def test_a_cut_wire(server: OwnServer, proxy: Proxy) -> None:
    with closing(Database(server.tcp_url("work", proxy.port, "worker"))) as database:
        assert works(database)
        proxy.cut()
        assert works(database), "nothing had been sent yet, so it simply connects again"


def test_nobody_is_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"postgresql://ann:secret@127.0.0.1:{probe.getsockname()[1]}/work"
        with closing(Database(url)) as database, pytest.raises(StoreUnavailable) as told:
            bounded(lambda: works(database))
    assert "secret" not in str(told.value)
    assert "ann:***@" in str(told.value)


# --- no connection left ---------------------------------------------------------------------------


def test_a_full_server(server: OwnServer, database: Database) -> None:
    with ExitStack() as stack:
        url = server.url("work", user="worker")
        for _ in range(9):
            stack.enter_context(closing(psycopg.connect(url)))
        with pytest.raises(StoreUnavailable, match="max_connections"):
            works(database)
    assert works(database)


def test_a_full_pool(server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "POOL_TIMEOUT", 0.2)
    with closing(Database(server.url("work", user="worker", pool="2"))) as database:
        with database.read(), database.read(), pytest.raises(StoreBusy, match="pool=N"):
            works(database)
        assert works(database)


def test_many_threads_share_a_few_connections(server: OwnServer) -> None:
    with closing(Database(server.url("work", user="worker", pool="3"))) as database:
        before = count(database)
        threads = [
            threading.Thread(target=lambda: [works(database) for _ in range(10)]) for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert count(database) == before + 100
        assert len(database.pool._idle) <= 3


# --- locks and timeouts ---------------------------------------------------------------------------


def test_a_lock_held_for_too_long(database: Database) -> None:
    def wait_for_it() -> None:
        with database.write(timeout=0.2) as tx:
            tx.lock(["a"])

    with database.write() as tx:
        tx.lock(["b", "a"])
        with pytest.raises(StoreBusy, match="pg_stat_activity"):
            bounded(wait_for_it)
    wait_for_it()


def test_locks_in_any_order_never_deadlock(database: Database) -> None:
    troubles: list[BaseException] = []

    def lock(names: list[str]) -> None:
        try:
            for _ in range(30):
                with database.write() as tx:
                    tx.lock(names)
        except BaseException as error:
            troubles.append(error)

    names = [f"g{n}" for n in range(20)]
    threads = [
        threading.Thread(target=lock, args=(order,)) for order in (names, names[::-1], names[10:])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert troubles == []


def test_a_deadlock_is_busy_not_broken(database: Database) -> None:
    sql = "SELECT pg_advisory_xact_lock(?)"
    both = threading.Barrier(2)
    told: list[BaseException] = []

    def cross(first: int, second: int) -> None:
        try:
            with database.write() as tx:
                tx.run(sql, (first,))
                both.wait()
                tx.run(sql, (second,))
        except StoreError as error:
            told.append(error)

    threads = [threading.Thread(target=cross, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in told] == [StoreBusy]


# --- transactions ---------------------------------------------------------------------------------


def test_settings_of_our_own_sessions(database: Database) -> None:
    with database.write() as tx:
        assert tx.value("SHOW transaction_isolation") == "read committed"
        assert tx.value("SHOW jit") == "off"
        assert tx.value("SHOW statement_timeout") == "30s"
        assert tx.value("SHOW lock_timeout") == "10s"
        assert tx.value("SHOW idle_in_transaction_session_timeout") == "1min"
    with database.write(timeout=2) as tx:
        assert tx.value("SHOW lock_timeout") == "2s"


def test_a_peer_that_is_gone_is_found_out_by_the_socket_too(server: OwnServer) -> None:
    with (
        closing(Database(server.tcp_url("work"))) as database,
        database.session() as connection,
        socket.socket(fileno=os.dup(connection.fileno())) as wire,
    ):
        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [wire.getsockopt(socket.IPPROTO_TCP, name) for name in names] == [10, 5, 3]
        assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000


def test_no_preference_of_a_role_changes_how_we_look(server: OwnServer) -> None:
    """With one snapshot for a whole transaction, what is counted after a lock would be older
    than the lock."""
    options = "-c default_transaction_isolation=serializable"
    url = server.url("work", user="worker", options=options)
    with closing(Database(url)) as database, database.session() as connection:
        (level,) = connection.execute(b"SHOW transaction_isolation").fetchone() or ("",)
        assert level == "read committed"


def test_a_read_sees_one_moment_and_writes_nothing(database: Database) -> None:
    with database.read() as tx:
        before = tx.value("SELECT value FROM headgate.counters WHERE name = 'limits'")
        works(database)
        assert tx.value("SELECT value FROM headgate.counters WHERE name = 'limits'") == before
    with pytest.raises(StoreUnavailable, match="only reads"), database.read() as tx:
        tx.run("DELETE FROM headgate.counters")


def test_a_failed_statement_is_never_committed_in_silence(database: Database) -> None:
    before = count(database)

    def careless() -> None:
        with database.write() as tx:
            tx.run("UPDATE headgate.counters SET value = value + 1 WHERE name = 'limits'")
            try:
                tx.run("SELECT 1 / 0")
            except psycopg.Error:
                pass

    with pytest.raises(StoreError, match="all of it was undone"):
        careless()
    assert count(database) == before


def test_an_interrupted_statement_does_not_return_to_the_pool(database: Database) -> None:
    def alarm(*_: object) -> None:
        raise KeyboardInterrupt

    def sleep() -> None:
        with database.write() as tx:
            tx.run("SELECT pg_sleep(600)")

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            sleep()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert database.pool._idle == []
    assert works(database)


def test_texts_and_marks_travel_unharmed(database: Database) -> None:
    hostile = "a'b\"c%s%%:x?$1::int \\ 🐘\n--"
    with database.read() as tx:
        assert tx.value("SELECT ':a ? %s' || :a::text", {"a": hostile}) == f":a ? %s{hostile}"
        assert tx.value("SELECT ?::text -- what? :not", (hostile,)) == hostile
        row = tx.row("SELECT :n + 1 AS more, :n AS same, :n::text AS n", {"n": 2**40})
        assert row is not None
        assert dict(row) == {"more": 2**40 + 1, "same": 2**40, "n": str(2**40)}
        with pytest.raises(StoreError, match="takes 1 values, 2"):
            tx.value("SELECT ?::text", (1, 2))
    with pytest.raises(StoreError, match="NUL"), database.read() as tx:
        tx.value("SELECT ?::text", ("a\0b",))


def test_a_forked_child_has_connections_of_its_own(database: Database) -> None:
    assert works(database)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if works(database) else 1)
        except BaseException:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with database.session() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert works(database)


def test_a_closed_one_says_so(server: OwnServer) -> None:
    database = Database(server.url("work", user="worker"))
    assert works(database)
    database.close()
    with pytest.raises(StoreError, match="is closed"):
        works(database)


# --- urls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("postgresql://h/d?schema=Jobs", "schema 'Jobs' cannot be used"),
        ("postgresql://h/d?schema=pg_jobs", "cannot be used"),
        ("postgresql://h/d?schema=a;drop", "cannot be used"),
        ("postgresql://h/d?pgbouncer=maybe", "pgbouncer must be true or false"),
        ("postgresql://h/d?pool=0", "pool must be a number"),
        ("postgresql:h", "write postgresql://"),
        ("postgresql+psycopg://ann:secret@h/d", "no store for url"),
        ("postgresql://ann:secret@h/d?wrong=1", "wrong"),
    ],
)
def test_a_url_that_cannot_be_used(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as told:
        open_store(url)
    assert "secret" not in str(told.value)


def test_what_is_shown_holds_no_password() -> None:
    for url in (
        "postgresql://ann:se:c@ret@db:5432/app",
        "postgresql://db/app?user=ann&password=secret&sslmode=require",
        "postgres://ann:s%40cret@/app?host=/run/postgresql&sslpassword=secret",
    ):
        assert not any(part in shown(url) for part in ("secret", "ret@", "cret"))


def test_ours_are_taken_out_and_the_rest_is_passed_on() -> None:
    address = parse("postgres://h/d?schema=jobs&options=-c%20a%3Db&pool=4&pgbouncer=true")
    assert address.conninfo == "postgresql://h/d?options=-c%20a%3Db"
    assert (address.schema, address.pool, address.pooled, address.listen) == (
        "jobs",
        4,
        True,
        False,
    )

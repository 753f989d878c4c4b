"""Connections and transactions on one PostgreSQL database."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult

from headgate.clock import Clock
from headgate.errors import StoreBusy, StoreError, StoreInDoubt, StoreUnavailable
from headgate.jobs import NewJob
from headgate.stores.postgres.connection import (
    LOCK_TIMEOUT,
    PATIENCE,
    SETTINGS,
    Connection,
    Question,
    Row,
)
from headgate.stores.postgres.parameters import Params, Statement, named, prepare
from headgate.stores.postgres.trouble import is_lost, translate, unreachable
from headgate.stores.postgres.url import parse
from headgate.stores.relational.queries import Sql

SQL = Sql(Path(__file__).parent / "sql")
POOL_TIMEOUT = 30.0
"""Seconds for which a call waits for one of our own connections to be given back."""
BEGIN_PATIENCE = 5.0
"""Seconds for the answer to the first message of a transaction, which takes the server no time:
a connection that has become a dead end shows here, before anything was done."""
RESTED = 5.0
"""Seconds without use after which a connection may have become such a dead end."""
KEEP = 60.0
"""Seconds for which a connection that nobody uses is kept."""

_LOCK = "SELECT headgate.lock(?)"
_NUMBERS = {
    "place": "SELECT nextval('headgate.places') FROM generate_series(1, ?)",
    "token": "SELECT nextval('headgate.tokens') FROM generate_series(1, ?)",
}


class Transaction:
    """One transaction: the connection, and the time at which it happens."""

    __slots__ = ("_prepare", "boot", "boot_id", "connection", "freed", "now", "rings", "writes")

    sql = SQL

    def __init__(
        self, database: Database, connection: Connection, now: float, *, writes: bool
    ) -> None:
        self._prepare = database.statement
        self.connection = connection
        self.writes = writes
        self.now = now
        self.boot = now
        """Slots end by the server's clock: there is no other that all machines share."""
        self.boot_id = ""
        self.rings: set[str] = set()
        self.freed: Counter[str] = Counter()
        """Units that groups have more than before: somebody may be waiting for them."""

    def run(self, sql: str, params: Params = ()) -> psycopg.Cursor[Row]:
        statement = self._prepare(sql)
        cursor = self.connection.cursor()
        return cursor.execute(statement.text, statement.bind(params))

    def many(self, sql: str, rows: Iterable[Params]) -> psycopg.Cursor[Row]:
        statement = self._prepare(sql)
        cursor = self.connection.cursor()
        cursor.executemany(statement.text, [statement.bind(params) or () for params in rows])
        return cursor

    def copy(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """COPY … FROM STDIN of these rows."""
        with self.connection.cursor().copy(self._prepare(sql).text) as copy:
            for row in rows:
                copy.write_row(row)

    def row(self, sql: str, params: Params = ()) -> Row | None:
        return self.run(sql, params).fetchone()

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        return self.run(sql, params).fetchall()

    def value(self, sql: str, params: Params = ()) -> Any:
        row = self.run(sql, params).fetchone()
        return None if row is None else row[0]

    def numbers(self, sequence: str, count: int) -> list[int]:
        """`count` new numbers of `place` or `token`; they only ever grow."""
        return [row[0] for row in self.rows(_NUMBERS[sequence], (count,))]

    def lock(self, groups: Iterable[str]) -> None:
        """Exclude all others that grant or count units of these groups, until the commit.

        In one order everywhere, that of the locks' own numbers, so that two transactions never
        wait for each other. What is read to decide comes in a later statement: one that takes
        a lock has its snapshot from before the wait.
        """
        wanted = list(groups)
        if wanted:
            self.run(_LOCK, (wanted,))

    def undo(self, savepoint: str) -> None:
        """Undo what was done since that savepoint, which stays."""
        # Past the driver: seeing a rollback, it would deallocate all prepared statements of the
        # session, and with its own also those by which round trips are made.
        (result,) = self.connection.say(f"ROLLBACK TO SAVEPOINT {savepoint}".encode())
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise StoreError(f"what was refused could not be undone: {result.get_error_message()}")

    def submit(self, jobs: Sequence[NewJob]) -> None:
        """Store jobs that follow from what this transaction does."""
        from headgate.stores.postgres import submitting  # which is written in terms of this

        submitting.submit_all(self, jobs)

    def whole(self, text: str) -> str:
        """What this cell says: it is all there."""
        return text

    def ring(self, *what: str) -> None:
        """Ring these bells once the transaction is committed."""
        self.rings.update(what)


_abandoned: list[Connection] = []
"""A parent's connections in a forked child: kept, so that nothing ever closes them."""


class Database:
    """A PostgreSQL database. Any thread may use it; each transaction has a connection of a
    small pool to itself."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.address = parse(url)
        self.url = self.address.shown
        self.schema = self.address.schema
        # A clock under control (of a test) is told to the server in every transaction. It is
        # the server's then: that the wall clock of this machine jumps changes nothing.
        self.clock = None if clock is None or type(clock) is Clock else clock
        self._since = 0.0 if self.clock is None else self.clock.now() - self.clock.boot()
        self.pooled = bool(self.address.pooled)
        self._clock = prepare("SELECT headgate.clock()", self.schema).text
        self.statement = functools.lru_cache(5000)(self._statement)
        self._idle: list[Connection] = []
        self._lock = threading.Condition()
        self._users = 0
        self._pid = os.getpid()
        self._closed = False

    def _statement(self, sql: str) -> Statement:
        return prepare(sql, self.schema)

    # --- connections ------------------------------------------------------------------

    def connect(self) -> Connection:
        """A connection that does not belong to the pool."""
        try:
            connection = Connection.open(self.address)
        except psycopg.Error as error:
            raise unreachable(error, self.url) from error
        self.pooled = connection.pooled
        return connection

    def _after_fork(self) -> None:
        """The child must not speak in the parent's sessions, nor end them by closing them, nor
        wait for a lock that a thread of the parent held: it opens its own."""
        _abandoned.extend(self._idle)
        self._pid, self._idle, self._users = os.getpid(), [], 0
        self._lock = threading.Condition()

    @contextmanager
    def session(self) -> Generator[Connection]:
        """A connection of the pool, with no transaction, for the time of the block."""
        connection = self._take_proven()
        try:
            yield connection
        except psycopg.Error as error:
            raise translate(error, self.url) from error
        finally:
            self._give_back(connection)

    def _take_proven(self) -> Connection:
        """One that leads somewhere: of a statement that is a transaction of its own and gets no
        answer, nobody could say whether it was done. So one that has rested is asked first."""
        connection = self._take()
        if not connection.used or time.monotonic() - connection.used < RESTED:
            return connection
        try:
            answer = connection.say(b"", BEGIN_PATIENCE)
        except BaseException as error:
            connection.close()
            self._give_back(connection)
            if not isinstance(error, psycopg.Error):
                raise
        else:
            if answer and answer[0].status == pq.ExecStatus.EMPTY_QUERY:
                return connection
            connection.close()
            self._give_back(connection)
        return self._take(fresh=True)

    def _take(self, *, fresh: bool = False) -> Connection:
        if self._pid != os.getpid():
            self._after_fork()
        stale: list[Connection] = []
        with self._lock:
            if not self._lock.wait_for(self._may_take, POOL_TIMEOUT):
                raise StoreBusy(
                    f"{self.url}: all {self.address.pool} connections of this process were in use"
                    f" for {POOL_TIMEOUT:g} s; add ?pool=N to the url for more"
                )
            if self._closed:
                raise StoreError(f"the store {self.url} is closed")
            self._users += 1
            connection = None
            while self._idle and connection is None:
                found = self._idle.pop()
                if found.silent and not fresh:
                    connection = found
                else:
                    stale.append(found)
        for found in stale:
            found.close()
        try:
            return connection or self.connect()
        except BaseException:
            with self._lock:
                self._users -= 1
                self._lock.notify_all()
            raise

    def _may_take(self) -> bool:
        return self._closed or self._users < self.address.pool

    def _give_back(self, connection: Connection) -> None:
        """Only if it is whole and has no transaction open: whatever went wrong, the next user
        finds nothing of it."""
        connection.patience = PATIENCE
        now = time.monotonic()
        keep = connection.idle
        connection.used = now
        old: list[Connection] = [] if keep else [connection]
        with self._lock:
            self._users -= 1
            if keep and not self._closed:
                self._idle.append(connection)
            elif keep:
                old.append(connection)
            # The one given back last is used next, so those at the front have rested longest.
            while self._idle and now - self._idle[0].used > KEEP:
                old.append(self._idle.pop(0))
            self._lock.notify_all()
        for found in old:
            found.close()

    def close(self) -> None:
        """Refuse new transactions, let those under way end, then close every connection."""
        if self._pid != os.getpid():
            self._after_fork()
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            self._lock.wait_for(lambda: self._users == 0)
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # --- transactions -------------------------------------------------------------------

    @contextmanager
    def write(self, timeout: float = LOCK_TIMEOUT) -> Generator[Transaction]:
        """A transaction that may write; a wait for a lock in it ends after `timeout`.

        READ COMMITTED: each statement sees what was committed before it began. So what is
        read after a lock was taken is what the former holder of the lock left, and every
        check-then-act in this package locks first and looks in a later statement.
        """
        mode = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
        with self._begun(mode, timeout) as (connection, now):
            transaction = Transaction(self, connection, now, writes=True)
            yield transaction
            self._commit(connection, transaction.rings)

    @contextmanager
    def read(self) -> Generator[Transaction]:
        """A transaction that sees one moment and blocks nobody. It never decides anything, so
        it needs no later snapshot than its first."""
        mode = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        with self._begun(mode, LOCK_TIMEOUT) as (connection, now):
            yield Transaction(self, connection, now, writes=False)

    def call(self, sql: str, params: Params = ()) -> list[Row]:
        """One statement that is a transaction of its own: one round trip."""
        if self.pooled or self.clock is not None:
            # What must be set for it can only be set in a transaction.
            with self.write() as tx:
                return tx.rows(sql, params)
        statement = self.statement(sql)
        values = statement.bind(params)
        with self.session() as connection:
            try:
                return connection.cursor().execute(statement.text, values).fetchall()
            except psycopg.Error as error:
                if is_lost(error):
                    raise self._in_doubt(error) from error
                raise

    def value(self, sql: str, params: Params = ()) -> Any:
        """The value of one statement that is a transaction of its own, as a text."""
        return self._values((sql, params))[0]

    def call_two(
        self, sql: str, params: Params, behind: tuple[str, Params] | None
    ) -> tuple[Any, Any]:
        """The same, and of another that is sent with it and begins after the first is committed:
        one round trip, two transactions."""
        if behind is None:
            return self._values((sql, params))[0], None
        first, after = self._values((sql, params), behind)
        return first, after

    def _values(self, *statements: tuple[str, Params]) -> list[Any]:
        if self.pooled or self.clock is not None:
            values: list[Any] = []
            for sql, params in statements:
                try:
                    with self.write() as tx:
                        value = tx.value(sql, params)
                except StoreError:
                    if not values:
                        raise
                    # The first is committed, and its answer counts: as below.
                    value = None
                values.append(value)
            return values
        questions = [self._question(sql, params) for sql, params in statements]
        with self.session() as connection:
            try:
                # The first may have been done when the connection is lost, and then its answer
                # counts: what failed is only what came behind it.
                first, *after = connection.ask(questions)
                if first.status != pq.ExecStatus.TUPLES_OK:
                    raise failure(first, connection)
            except psycopg.Error as error:
                if is_lost(error):
                    raise self._in_doubt(error) from error
                raise
            missing = len(questions) - 1 - len(after)
            return [_value(first), *map(_value, after), *[None] * missing]

    def _question(self, sql: str, params: Params) -> Question:
        statement = self.statement(sql)
        return statement.text, statement.bind(params) or ()

    def now(self) -> float:
        """The store's time."""
        if self.clock is not None:
            return self._since + self.clock.boot()
        with self.session() as connection:
            (now,) = connection.execute(self._clock).fetchone() or (0.0,)
            return now

    @contextmanager
    def _begun(self, mode: str, timeout: float) -> Generator[tuple[Connection, float]]:
        """A connection in a transaction, and the time; what is not committed is undone."""
        connection, now = self._start(mode, timeout)
        try:
            yield connection, now
        except psycopg.Error as error:
            raise translate(error, self.url) from error
        finally:
            rollback(connection)
            self._give_back(connection)

    def _start(self, mode: str, timeout: float) -> tuple[Connection, float]:
        """A connection that turns out to be dead is replaced by a new one: nothing was done in
        it yet, so the caller need not know."""
        connection = self._take()
        again = connection.used > 0
        while True:
            try:
                return connection, self._begin(connection, mode, timeout)
            except BaseException as error:
                rollback(connection)
                self._give_back(connection)
                if not isinstance(error, psycopg.Error):
                    raise
                if not (again and is_lost(error)):
                    raise translate(error, self.url) from error
            connection, again = self._take(fresh=True), False

    def _begin(self, connection: Connection, mode: str, timeout: float) -> float:
        """Begin and read the time, in one message."""
        settings: dict[str, str] = dict(SETTINGS) if connection.pooled else {}
        if timeout != LOCK_TIMEOUT:
            settings["lock_timeout"] = f"{timeout * 1000:.0f}"
            connection.patience = min(PATIENCE, timeout + BEGIN_PATIENCE)
        if self.clock is not None:
            settings[f"{self.schema}.now"] = repr(self._since + self.clock.boot())
        script = mode
        for name, value in settings.items():
            script += f"; SET LOCAL {name} = '{value}'"
        results = connection.say(script.encode() + b"; " + self._clock, BEGIN_PATIENCE)
        last = results[-1] if results else None
        if last is None or last.status != pq.ExecStatus.TUPLES_OK:
            raise failure(last, connection)
        return float(last.get_value(0, 0) or 0)

    def _commit(self, connection: Connection, rings: Iterable[str]) -> None:
        """Commit, then ring, in one message.

        The bell is rung by a transaction of its own that begins after the commit. Rung inside,
        it would look for listeners too early: one that opens its ear after that look, and
        looks for work itself before the commit, would have been missed by both.
        """
        script = "COMMIT"
        for what in sorted(rings):
            script += named(f"; SELECT headgate.ring('{what}')", self.schema)
        try:
            results = connection.say(script.encode())
        except psycopg.Error as error:
            raise self._in_doubt(error) from error
        first = results[0] if results else None
        if first is None or first.status != pq.ExecStatus.COMMAND_OK:
            error = failure(first, connection)
            if is_lost(error):
                raise self._in_doubt(error) from error
            raise error
        if first.command_status != b"COMMIT":
            raise StoreError(
                f"{self.url}: a statement of the transaction had failed, so all of it was undone"
            )
        # A ring that failed is no failure of what is committed: who does not hear it finds the
        # work by its next safety poll.

    def _in_doubt(self, error: Exception) -> StoreUnavailable:
        text = " ".join(str(error).split())
        return StoreInDoubt(
            f"{self.url}: the connection was lost while a commit was under way ({text}): it may"
            " have happened or not; repeat the call with the same token or key to find out"
        )


def _value(result: PGresult) -> bytes | None:
    """The first cell of an answer, as the server wrote it."""
    if result.status != pq.ExecStatus.TUPLES_OK or not result.ntuples:
        return None
    return result.get_value(0, 0)


def rollback(connection: Connection) -> None:
    """Leave nothing open. Whatever cannot be rolled back is closed by `_give_back`."""
    status = connection.pgconn.transaction_status
    if status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
        try:
            connection.say(b"ROLLBACK")
        except psycopg.Error:
            connection.close()  # the server rolls back what it hears no more of


def failure(result: PGresult | None, connection: Connection) -> psycopg.Error:
    """The error that a result tells."""
    if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
        return psycopg.OperationalError("the connection was lost")
    return psycopg.errors.error_from_result(result, encoding=connection.info.encoding)

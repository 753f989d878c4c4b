"""Transactions on one PostgreSQL database, step by step or in one round trip."""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult

from headgate.clock import Clock
from headgate.errors import StoreError, StoreInDoubt, StoreUnavailable
from headgate.stores.postgres.connection import (
    BEGIN_PATIENCE,
    LOCK_TIMEOUT,
    PATIENCE,
    SETTINGS,
    Connection,
    Question,
    Row,
)
from headgate.stores.postgres.parameters import Params, Statement, named, prepare
from headgate.stores.postgres.pool import Pool
from headgate.stores.postgres.transaction import Transaction
from headgate.stores.postgres.trouble import is_lost, translate
from headgate.stores.postgres.url import parse

_PLANS = ("seqscan", "bitmapscan", "hashjoin", "mergejoin")
BY_KEYS = "".join(f"; SET LOCAL enable_{plan} = off" for plan in _PLANS)


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
        self.pool = Pool(self.address)
        self.connect = self.pool.connect
        self.session = self.pool.session
        self.close = self.pool.close
        self._clock = prepare("SELECT headgate.clock()", self.schema).text
        self.statement = functools.lru_cache(5000)(self._statement)

    def _statement(self, sql: str) -> Statement:
        return prepare(sql, self.schema)

    @contextmanager
    def write(self, timeout: float = LOCK_TIMEOUT) -> Generator[Transaction]:
        """A transaction that may write; a wait for a lock in it ends after `timeout`.

        READ COMMITTED: each statement sees what was committed before it began. So what is
        read after a lock was taken is what the former holder of the lock left, and every
        check-then-act in this package locks first and looks in a later statement.
        """
        mode = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
        with self._begun(mode, timeout) as (connection, now):
            transaction = Transaction(self.statement, connection, now, writes=True)
            yield transaction
            self._commit(connection, transaction.rings)

    @contextmanager
    def read(self, *, by_keys: bool = False) -> Generator[Transaction]:
        """A transaction that sees one moment and blocks nobody. It never decides anything, so
        it needs no later snapshot than its first. `by_keys`: no plan in it goes through a whole
        table where there is a key, whatever the statistics say."""
        mode = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        if by_keys:
            mode += BY_KEYS
        with self._begun(mode, LOCK_TIMEOUT) as (connection, now):
            yield Transaction(self.statement, connection, now, writes=False)

    def call(self, sql: str, params: Params = ()) -> list[Row]:
        """One statement that is a transaction of its own: one round trip."""
        if self.pool.pooled or self.clock is not None:
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
        if self.pool.pooled or self.clock is not None:
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
            self.pool.give_back(connection)

    def _start(self, mode: str, timeout: float) -> tuple[Connection, float]:
        """A connection that turns out to be dead is replaced by a new one: nothing was done in
        it yet, so the caller need not know."""
        connection = self.pool.take()
        again = connection.used > 0
        while True:
            try:
                return connection, self._begin(connection, mode, timeout)
            except BaseException as error:
                rollback(connection)
                self.pool.give_back(connection)
                if not isinstance(error, psycopg.Error):
                    raise
                if not (again and is_lost(error)):
                    raise translate(error, self.url) from error
            connection, again = self.pool.take(fresh=True), False

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
    """Leave nothing open. Whatever cannot be rolled back is closed by the pool."""
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

"""One transaction on PostgreSQL, as the operations of a store see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import pq

from headgate.errors import StoreError
from headgate.jobs import NewJob
from headgate.stores.postgres.connection import Connection, Row
from headgate.stores.postgres.parameters import Params, Statement
from headgate.stores.relational.queries import Sql

SQL = Sql(Path(__file__).parent / "sql")

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
        self,
        prepare: Callable[[str], Statement],
        connection: Connection,
        now: float,
        *,
        writes: bool,
    ) -> None:
        self._prepare = prepare
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

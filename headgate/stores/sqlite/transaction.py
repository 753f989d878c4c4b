"""A transaction on a SQLite file."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headgate.clock import Clock
from headgate.jobs import NewJob
from headgate.stores.sqlite.queries import SQL

Row = sqlite3.Row


class Transaction:
    """One transaction: the connection, and the time at which it happens."""

    __slots__ = ("boot", "boot_id", "connection", "freed", "now", "rings", "writes")
    sql = SQL

    def __init__(self, connection: sqlite3.Connection, clock: Clock, *, writes: bool) -> None:
        self.connection = connection
        self.writes = writes
        self.now = clock.now()
        self.boot = clock.boot()
        self.boot_id = clock.boot_id()
        self.rings: set[str] = set()
        self.freed: Counter[str] = Counter()
        """Units that groups have more than before: somebody may be waiting for them."""

    def run(self, sql: str, params: Mapping[str, Any] | Sequence[Any] = ()) -> sqlite3.Cursor:
        return self.connection.execute(sql, params)

    def many(self, sql: str, rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> sqlite3.Cursor:
        return self.connection.executemany(sql, rows)

    def row(self, sql: str, params: Mapping[str, Any] | Sequence[Any] = ()) -> Row | None:
        return self.connection.execute(sql, params).fetchone()

    def rows(self, sql: str, params: Mapping[str, Any] | Sequence[Any] = ()) -> list[Row]:
        return self.connection.execute(sql, params).fetchall()

    def value(self, sql: str, params: Mapping[str, Any] | Sequence[Any] = ()) -> Any:
        row = self.connection.execute(sql, params).fetchone()
        return None if row is None else row[0]

    def next(self, counter: str, count: int = 1) -> int:
        """The first of `count` new numbers; they only ever grow."""
        sql = "UPDATE counters SET value = value + ? WHERE name = ? RETURNING value"
        return int(self.value(sql, (count, counter))) - count + 1

    def numbers(self, sequence: str, count: int) -> Sequence[int]:
        """So many new numbers; they only ever grow."""
        first = self.next(sequence, count)
        return range(first, first + count)

    def lock(self, groups: Iterable[str]) -> None:
        """Nothing to do: whoever writes is alone from its BEGIN to its COMMIT."""

    def undo(self, savepoint: str) -> None:
        """Undo what was done since that savepoint, which stays."""
        self.connection.execute(f"ROLLBACK TO SAVEPOINT {savepoint}")

    def submit(self, jobs: Sequence[NewJob]) -> None:
        """Store jobs that follow from what this transaction does."""
        from headgate.stores.sqlite import submitting  # which is written in terms of this

        submitting.submit(self, jobs)

    def whole(self, text: str) -> str:
        """What this cell says, where long texts are kept elsewhere."""
        return text

    def ring(self, *what: str) -> None:
        """Ring these bells once the transaction is committed."""
        self.rings.update(what)

"""Changes as rows: what a transaction has left behind in each table, as JSON.

A row is written `[cell, …]` in the order of its table's columns; numbers keep every digit, bytes
are written as hexadecimal digits. What is gone is told by its key.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headgate.errors import StoreVersion

Cells = list[Any]


class Change(msgspec.Struct, omit_defaults=True):
    """What became of one table."""

    put: list[Cells] = msgspec.field(default_factory=list[Cells])
    gone: list[Cells] = msgspec.field(default_factory=list[Cells])


Changes = dict[str, Change]


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    key: tuple[int, ...]
    """Which of the columns are its key, in order."""

    @property
    def blobs(self) -> tuple[int, ...]:
        return tuple(i for i, kind in enumerate(self.kinds) if kind == "BLOB")

    def key_of(self, row: Cells) -> tuple[Any, ...]:
        return tuple(row[i] for i in self.key)

    def text(self, which: str, columns: Iterable[int]) -> str:
        """SQL for the JSON of these columns of the row `which` (old or new)."""

        def cell(i: int) -> str:
            column = f"{which}.{self.columns[i]}"
            if self.kinds[i] == "REAL":
                # JSON functions keep 15 digits, and times need them all. Far away from 1 SQLite
                # does not get the last one right, and writes no JSON at all for the infinite.
                return (
                    f"CASE WHEN {column} IS NULL THEN 'null'"
                    f" WHEN {column} BETWEEN 1e-3 AND 1e12 THEN printf('%!.17g', {column})"
                    f" ELSE exact({column}) END"
                )
            if self.kinds[i] == "BLOB":
                return f"CASE WHEN {column} IS NULL THEN 'null' ELSE json_quote(hex({column})) END"
            return f"json_quote({column})"

        return "'[' || " + " || ',' || ".join(map(cell, columns)) + " || ']'"

    def put_sql(self) -> str:
        cells = ("CAST(? AS REAL)" if kind == "REAL" else "?" for kind in self.kinds)
        return f"INSERT OR REPLACE INTO {self.name} VALUES ({', '.join(cells)})"

    def gone_sql(self) -> str:
        wanted = " AND ".join(f"{self.columns[i]} = ?" for i in self.key)
        return f"DELETE FROM {self.name} WHERE {wanted}"


def tables(connection: sqlite3.Connection) -> dict[str, Table]:
    """All tables that are shared; those of this machine alone begin with an underscore."""
    names = [
        row[0]
        for row in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table'"
            " AND name NOT LIKE 'sqlite~_%' ESCAPE '~' AND name NOT LIKE '~_%' ESCAPE '~'"
            " ORDER BY name"
        )
    ]
    return {name: _table(connection, name) for name in names}


def _table(connection: sqlite3.Connection, name: str) -> Table:
    rows = connection.execute(f"PRAGMA table_info({name})").fetchall()
    key = sorted((row["pk"], i) for i, row in enumerate(rows) if row["pk"])
    return Table(
        name,
        tuple(row["name"] for row in rows),
        tuple(row["type"] for row in rows),
        tuple(i for _, i in key),
    )


def _exact(number: float) -> str:
    """As JSON, which cannot tell the infinite: a text that SQLite takes for it."""
    if math.isinf(number):
        return '"9e999"' if number > 0 else '"-9e999"'
    return repr(number)


def record_changes(connection: sqlite3.Connection, known: Mapping[str, Table]) -> None:
    """From now on this connection notes what its transactions change."""
    connection.create_function("exact", 1, _exact, deterministic=True)
    connection.execute(
        "CREATE TEMP TABLE touched (tbl TEXT, key TEXT, row TEXT, PRIMARY KEY (tbl, key))"
        " WITHOUT ROWID"
    )
    # Else what a REPLACE deletes goes unnoticed.
    connection.execute("PRAGMA recursive_triggers = ON")
    for table in known.values():
        every = range(len(table.columns))
        put = _note(table, table.text("new", table.key), table.text("new", every))
        gone = _note(table, table.text("old", table.key), "NULL")
        for event, body in (("INSERT", put), ("DELETE", gone), ("UPDATE", f"{gone}; {put}")):
            connection.execute(
                f"CREATE TEMP TRIGGER {table.name}_{event.lower()} AFTER {event} ON {table.name}"
                f" BEGIN {body}; END"
            )


def _note(table: Table, key: str, row: str) -> str:
    return (
        f"INSERT INTO touched VALUES ('{table.name}', {key}, {row})"
        " ON CONFLICT (tbl, key) DO UPDATE SET row = excluded.row"
    )


def collect(connection: sqlite3.Connection) -> tuple[str, int]:
    """What was noted since the last call, as the JSON of `Changes`, and how many rows."""
    put: dict[str, list[str]] = {}
    gone: dict[str, list[str]] = {}
    count = 0
    for table, key, row in connection.execute("SELECT tbl, key, row FROM touched"):
        count += 1
        if row is None:
            gone.setdefault(table, []).append(key)
        else:
            put.setdefault(table, []).append(row)
    connection.execute("DELETE FROM touched")
    parts: list[str] = []
    for table in sorted({*put, *gone}):
        sides = [
            f'"{side}":[{",".join(rows[table])}]'
            for side, rows in (("put", put), ("gone", gone))
            if table in rows
        ]
        parts.append(f'"{table}":{{{",".join(sides)}}}')
    return "{" + ",".join(parts) + "}", count


def apply(connection: sqlite3.Connection, known: Mapping[str, Table], changes: Changes) -> None:
    """Have these changes here too."""
    for name, change in changes.items():
        table = known.get(name)
        if table is None:
            raise StoreVersion(
                f"the ledger tells of a table {name!r} that this Headgate does not know: it was"
                " written by another version; upgrade this program"
            )
        # What is gone first: a row that moved to another key would meet itself.
        if change.gone:
            connection.executemany(table.gone_sql(), change.gone)
        if change.put:
            for i in table.blobs:
                for row in change.put:
                    row[i] = None if row[i] is None else bytes.fromhex(row[i])
            connection.executemany(table.put_sql(), change.put)


@dataclass(slots=True)
class Merged:
    """Changes one after the other, as one: of each row only what became of it in the end."""

    known: Mapping[str, Table]
    _rows: dict[str, dict[tuple[Any, ...], Cells | None]] = field(
        default_factory=dict[str, dict[tuple[Any, ...], Cells | None]]
    )

    def add(self, changes: Changes) -> None:
        for name, change in changes.items():
            rows = self._rows.setdefault(name, {})
            rows.update((tuple(key), None) for key in change.gone)
            rows.update((self.known[name].key_of(row), row) for row in change.put)

    def changes(self) -> Changes:
        return {
            name: Change(
                put=[row for row in rows.values() if row is not None],
                gone=[list(key) for key, row in rows.items() if row is None],
            )
            for name, rows in self._rows.items()
        }


def dump(connection: sqlite3.Connection, table: Table, size: int) -> Iterable[Sequence[str]]:
    """All rows of a table as JSON texts, in pieces of at most `size`, in the order of its key.

    Rows with a number as their key are cut at round numbers, so that a piece in which nothing
    changed has the same content the next time.
    """
    connection.create_function("exact", 1, _exact, deterministic=True)
    every = range(len(table.columns))
    order = ", ".join(table.columns[i] for i in table.key)
    numbered = len(table.key) == 1 and table.kinds[table.key[0]] == "INTEGER"
    mark = table.columns[table.key[0]] if numbered else "0"
    piece: list[str] = []
    last = None
    rows = connection.execute(
        f"SELECT {mark}, {table.text('t', every)} FROM {table.name} t ORDER BY {order}"
    )
    for number, text in rows:
        block = number // size if numbered else None
        if piece and (len(piece) >= size or block != last):
            yield piece
            piece = []
        last = block
        piece.append(text)
    if piece:
        yield piece

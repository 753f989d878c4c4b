"""What a store does, counted where it happens: in SQLite, on the connections to PostgreSQL and in
its statistics, at the bucket."""

from __future__ import annotations

import os
import re
import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq

from headgate.stores.postgres.connection import Connection
from headgate.stores.postgres.url import Address, parse
from headgate.stores.sqlite.database import Database
from tests.bucket.memory import MemoryObjects


class Meter(ABC):
    """Made before the store is opened."""

    names: tuple[str, ...]

    @abstractmethod
    def counting(self) -> AbstractContextManager[Counter[str]]:
        """What the block costs is in the counter when it ends."""


class SQLiteMeter(Meter):
    """`pages`: appended to the write-ahead log."""

    names = "statements", "commits", "rows", "pages"

    def __init__(self, file: Path, patch: pytest.MonkeyPatch) -> None:
        self._file = file
        self._connections: list[sqlite3.Connection] = []
        self._sums: Counter[str] = Counter()
        connect = Database.connect

        def connected(database: Database, **options: Any) -> sqlite3.Connection:
            connection = connect(database, **options)
            connection.set_trace_callback(self._note)
            self._connections.append(connection)
            return connection

        patch.setattr(Database, "connect", connected)

    def _note(self, statement: str) -> None:
        self._sums["statements"] += 1
        self._sums["commits"] += statement == "COMMIT"

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        # An empty log: one that is full of copied pages is overwritten, and does not grow.
        with closing(sqlite3.connect(self._file)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before, counts = self._read(), Counter[str]()
        yield counts
        counts.update(self._read())
        counts.subtract(before)

    def _read(self) -> Counter[str]:
        header, frame = 32, 24 + 4096
        log = self._file.with_name(f"{self._file.name}-wal").stat().st_size
        rows = sum(connection.total_changes for connection in self._connections)
        return Counter(self._sums, rows=rows, pages=max(0, log - header) // frame)


class PostgresMeter(Meter):
    """`trips`, `statements` and bytes as libpq traces them on the wire; `rows` that are written and
    `scans` of tables and indexes as the server counts them, in functions too."""

    names = "trips", "statements", "rows", "scans", "sent", "received"
    _MESSAGE = re.compile(rb"^([FB])\t(\d+)\t(\w+)", re.MULTILINE)
    _ENDS_STATEMENT = (b"CommandComplete", b"EmptyQueryResponse", b"ErrorResponse")
    _TABLES = """
        SELECT sum(n_tup_ins + n_tup_upd + n_tup_del), sum(seq_scan + coalesce(idx_scan, 0))
        FROM pg_stat_user_tables WHERE schemaname = %s
    """

    def __init__(self, url: str, patch: pytest.MonkeyPatch) -> None:
        self._address = parse(url)
        self._opened: list[Connection] = []
        open = Connection.open

        def opened(address: Address) -> Connection:
            self._opened.append(open(address))
            return self._opened[-1]

        patch.setattr(Connection, "open", opened)

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        counts = Counter[str]()
        counts.subtract(self._in_tables())
        connections = [one for one in self._opened if not one.closed]
        traces = [os.memfd_create("trace") for _ in connections]
        for connection, trace in zip(connections, traces, strict=True):
            connection.pgconn.trace(trace)
            connection.pgconn.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)
        yield counts
        for connection, trace in zip(connections, traces, strict=True):
            connection.pgconn.untrace()
            counts.update(self._on_wire(os.pread(trace, os.fstat(trace).st_size, 0)))
            os.close(trace)
        counts.update(self._in_tables())
        now = [one for one in self._opened if not one.closed]
        assert now == connections, "a connection was opened or closed, and counted in part"

    def _on_wire(self, trace: bytes) -> Counter[str]:
        sums, before = Counter[str](), b"B"
        for end, length, kind in self._MESSAGE.findall(trace):
            sums["trips"] += end == b"F" and before == b"B"
            sums["statements"] += kind in self._ENDS_STATEMENT
            sums["sent" if end == b"F" else "received"] += 1 + int(length)
            before = end
        return sums

    def _in_tables(self) -> Counter[str]:
        for connection in self._opened:
            if not connection.closed:
                # A session shows what it has counted from time to time, or now.
                connection.pgconn.exec_(b"SELECT pg_stat_force_next_flush()")
        with psycopg.connect(self._address.conninfo) as observer:
            row = observer.execute(self._TABLES, (self._address.schema,)).fetchone()
        assert row is not None
        return Counter(rows=int(row[0]), scans=int(row[1]))


class BucketMeter(Meter):
    """Requests by kind, and bytes of contents."""

    names = "reads", "writes", "lists", "deletes", "sent", "received"

    def __init__(self, objects: MemoryObjects) -> None:
        self._objects = objects

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        before, counts = self._read(), Counter[str]()
        yield counts
        counts.update(self._read())
        counts.subtract(before)

    def _read(self) -> Counter[str]:
        objects = self._objects
        sums = Counter({f"{kind}s": count for kind, count in objects.counts.items()})
        sums.update(sent=objects.sent, received=objects.received)
        return sums

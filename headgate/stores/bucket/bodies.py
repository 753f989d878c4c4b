"""Large texts, as objects of their own: arguments, results, and what commands wrote.

The row holds a mark, `@bodies/<sha256>-<nonce>.txt`, which no JSON text can be; the text is read
when a record leaves the store. All of it happens at the edge of a commit: within a transaction
whatever is written now is whole, so digests and comparisons are those of the texts themselves.

An object is named once its content is there, and only for a while after that (`FRESH`): who wants
to name the same content later writes it anew, by another name. So what is old and named by nobody
can be named by nobody any more, and `Keeper.collect` may delete it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import msgspec

from headgate.clock import Clock
from headgate.errors import StoreError, StoreInDoubt, StoreUnavailable
from headgate.jobs import Claimed, JobRecord, Unrouted
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.ledger import new_nonce
from headgate.stores.bucket.objects import Objects
from headgate.stores.bucket.patience import create, patiently
from headgate.stores.protocol import OutputRecord

log = logging.getLogger("headgate.store")

LARGE = 4096
"""A text with more bytes than these is an object of its own."""
FRESH = 1200.0
"""Seconds after its writing in which an object may be named; much less than those after which
one that nobody names is deleted."""
CACHE_BYTES = 32 * 1024 * 1024
AT_ONCE = 8
"""Requests under way for one caller."""
ELSEWHERE = "@"
"""Ends the stream of a piece of output whose bytes are a mark."""

_MARK = re.compile(r"@bodies/([0-9a-f]{64}-[0-9a-f]{12})\.txt")


class _Column(NamedTuple):
    table: str
    name: str
    key: tuple[str, ...]


_COLUMNS = (
    _Column("jobs", "args", ("n",)),
    _Column("finished", "result", ("job",)),
    _Column("outputs", "data", ("job", "token", "seq")),
)


class Bodies:
    """Any thread may use it."""

    def __init__(self, objects: Objects, layout: Layout, where: str) -> None:
        self._objects = objects
        self._layout = layout
        self._where = where
        self._clock = Clock()
        self._fresh()

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached = 0
        self._written: OrderedDict[str, tuple[str, float]] = OrderedDict()
        """Of each content that was written of late: its name, and when."""

    def _mind_forks(self) -> None:
        if self._pid != os.getpid():  # another thread of the parent may have held the lock
            self._fresh()

    # --- to write -----------------------------------------------------------------------------

    def ahead(self, texts: Iterable[str | bytes | None]) -> None:
        """Write those that are large before the turn to commit comes, so that nobody waits for
        them who waits for that."""
        self._put_all([body for text in texts if (body := _large(text)) is not None])

    def move_out(self, connection: sqlite3.Connection) -> None:
        """What this transaction has written and is large goes into objects; marks stay. Their
        writing is over when this returns: who reads the mark finds the object."""
        found = [
            (column, cells)
            for column in _COLUMNS
            for cells in _touched(connection, column)
            if _large(cells[0]) is not None and not _is_mark(cells[0])
        ]
        if not found:
            return
        names = self._put_all([_bytes(cells[0]) for _, cells in found])
        for (column, cells), name in zip(found, names, strict=True):
            wanted = " AND ".join(f"{key} = ?" for key in column.key)
            mark: str | bytes = f"@bodies/{name}.txt"
            change = f"{column.name} = ?"
            if column.table == "outputs":
                # Commands write any bytes, these too: the stream says that they are a mark.
                mark = mark.encode()
                change += f", stream = stream || '{ELSEWHERE}'"
            connection.execute(
                f"UPDATE {column.table} SET {change} WHERE {wanted}", (mark, *cells[1:])
            )

    def _put_all(self, bodies: list[bytes]) -> list[str]:
        if not bodies:
            return []
        self._mind_forks()
        unique = {hashlib.sha256(body).hexdigest(): body for body in bodies}
        if len(unique) == 1:
            names = {digest: self._put(digest, body) for digest, body in unique.items()}
        else:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                names = dict(zip(unique, pool.map(self._put, unique, unique.values()), strict=True))
        return [names[hashlib.sha256(body).hexdigest()] for body in bodies]

    def _put(self, digest: str, body: bytes) -> str:
        now = self._clock.boot()
        with self._guard:
            known = self._written.get(digest)
        # One of the same content that others wrote, or we long ago, is not used again, though it
        # may be there: somebody may be about to delete it, having seen that nobody names it.
        if known is not None and now - known[1] < FRESH:
            return known[0]
        name = f"{digest}-{new_nonce()}"
        try:
            create(self._objects, self._layout.body(name), body)
        except StoreInDoubt as error:
            # Whether it was written or not: nothing names it.
            raise StoreUnavailable(str(error.__cause__)) from error
        with self._guard:
            # As of before it was written: rather too old than too young.
            self._written[digest] = name, now
            while len(self._written) > 1000:
                self._written.popitem(last=False)
            self._keep(name, body)
        return name

    # --- to read ------------------------------------------------------------------------------

    def _get_all(self, marks: Iterable[str]) -> dict[str, bytes | None]:
        """By mark; None: there is no such object."""
        self._mind_forks()
        wanted = list(dict.fromkeys(marks))
        found: dict[str, bytes | None] = {}
        with self._guard:
            for mark in wanted:
                if (body := self._cache.get(_name(mark))) is not None:
                    self._cache.move_to_end(_name(mark))
                    found[mark] = body
        missing = [mark for mark in wanted if mark not in found]
        if len(missing) == 1:
            found[missing[0]] = self._get(missing[0])
        elif missing:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                found.update(zip(missing, pool.map(self._get, missing), strict=True))
        return found

    def _get(self, mark: str) -> bytes | None:
        name = _name(mark)
        got = patiently(lambda: self._objects.get(self._layout.body(name)))
        if got is None:
            log.error("%s: %s was deleted, and a job needs it", self._where, mark[1:])
            return None
        with self._guard:
            self._keep(name, got.body)
        return got.body

    def _keep(self, name: str, body: bytes) -> None:
        self._cached += len(body) - len(self._cache.pop(name, b""))
        self._cache[name] = body
        while self._cached > CACHE_BYTES:
            _, dropped = self._cache.popitem(last=False)
            self._cached -= len(dropped)

    def whole(self, text: str) -> str:
        """The text that this stands for."""
        if not _is_mark(text):
            return text
        body = self._get_all([text])[text]
        # No JSON: who takes it for arguments is refused, and does not run with the wrong ones.
        return f"@missing {text[1:]}" if body is None else body.decode()

    def claimed(self, claimed: tuple[Claimed, ...]) -> tuple[Claimed, ...]:
        if not any(_is_mark(one.args) for one in claimed):
            return claimed
        self._get_all(one.args for one in claimed if _is_mark(one.args))
        return tuple(
            msgspec.structs.replace(one, args=self.whole(one.args)) if _is_mark(one.args) else one
            for one in claimed
        )

    def unrouted(self, found: list[Unrouted]) -> list[Unrouted]:
        self._get_all(one.args for one in found if _is_mark(one.args))
        return [
            replace(one, args=self.whole(one.args)) if _is_mark(one.args) else one for one in found
        ]

    def records(self, found: Iterable[JobRecord], *, strict: bool = False) -> list[JobRecord]:
        """`strict`: a result that was deleted is an error, for somebody would take what we tell
        in its place for the result."""
        records = list(found)
        texts = [text for one in records for text in (one.args, one.result) if _is_mark(text)]
        if not texts:
            return records
        bodies = self._get_all(text for text in texts if text is not None)

        def told(text: str) -> str:
            body = bodies.get(text, b"")
            if body is None:
                return f'"({text[1:]} was deleted)"'
            return body.decode() if _is_mark(text) else text

        for one in records:
            if strict and one.result is not None and bodies.get(one.result, b"") is None:
                raise StoreError(
                    f"{self._where}: the result of job {one.id} was in {one.result[1:]}, which was"
                    " deleted; put the object back, or run the job again (headgate jobs retry)"
                )
        return [
            replace(
                one, args=told(one.args), result=None if one.result is None else told(one.result)
            )
            for one in records
        ]

    def without(self, found: Iterable[JobRecord]) -> list[JobRecord]:
        """Records for a list: what is large is named, and not read."""

        def told(text: str) -> str:
            return f'"({text[1:]} is large)"' if _is_mark(text) else text

        return [
            replace(
                one, args=told(one.args), result=None if one.result is None else told(one.result)
            )
            for one in found
        ]

    def outputs(self, found: list[OutputRecord]) -> list[OutputRecord]:
        marks = {one.place: one.data.decode() for one in found if one.stream.endswith(ELSEWHERE)}
        if not marks:
            return found
        bodies = self._get_all(marks.values())

        def told(one: OutputRecord) -> OutputRecord:
            mark = marks.get(one.place)
            if mark is None:
                return one
            body = bodies[mark]
            gone = f"({mark[1:]} was deleted)\n".encode()
            return replace(
                one, stream=one.stream.removesuffix(ELSEWHERE), data=gone if body is None else body
            )

        return [told(one) for one in found]

    # --- to clean up --------------------------------------------------------------------------

    def named(self, connection: sqlite3.Connection) -> set[str]:
        """The objects that some job needs."""
        return {self._layout.body(_name(mark)) for mark, _ in _places(connection)}

    def needed(self, connection: sqlite3.Connection) -> set[tuple[str, str]]:
        """(job, object) of all large texts."""
        ids: dict[int, str] = {}
        found: set[tuple[str, str]] = set()
        for mark, n in _places(connection):
            if n not in ids:
                row = connection.execute("SELECT id FROM jobs WHERE n = ?", (n,)).fetchone()
                ids[n] = str(n) if row is None else row[0]
            found.add((ids[n], self._layout.body(_name(mark))))
        return found


def _places(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """All marks, with the number of the job."""
    found: list[tuple[str, int]] = []
    for column in _COLUMNS:
        where = f"substr({column.name}, 1, 8) = '@bodies/'"
        if column.table == "outputs":
            where = f"stream LIKE '%{ELSEWHERE}'"
        rows = connection.execute(
            f"SELECT {column.name}, {column.key[0]} FROM {column.table} WHERE {where}"
        )
        found += [(_bytes(row[0]).decode(), row[1]) for row in rows]
    return found


def _touched(connection: sqlite3.Connection, column: _Column) -> list[tuple[str | bytes, ...]]:
    """Cell and key of the rows of that table which the transaction has written, of those that
    may be large."""
    key = " AND ".join(
        f"t.{name} = json_extract(w.key, '$[{i}]')" for i, name in enumerate(column.key)
    )
    rows = connection.execute(
        f"SELECT t.{column.name}, {', '.join('t.' + name for name in column.key)}"
        f" FROM temp.touched w JOIN {column.table} t ON {key}"
        " WHERE w.tbl = ? AND length(CAST(w.row AS BLOB)) > ?",
        (column.table, LARGE),
    )
    return [tuple(row) for row in rows]


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _large(text: str | bytes | None) -> bytes | None:
    if text is None or 4 * len(text) <= LARGE:
        return None
    body = _bytes(text)
    return body if len(body) > LARGE else None


def _is_mark(text: str | bytes | None) -> bool:
    return isinstance(text, str) and text.startswith("@") and _MARK.fullmatch(text) is not None


def _name(mark: str) -> str:
    found = _MARK.fullmatch(mark)
    if found is None:
        raise StoreError(f"{mark[:100]!r} does not name a body: the store is damaged")
    return found[1]

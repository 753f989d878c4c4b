"""Connections to one SQLite file."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from weakref import WeakSet

from headgate.clock import Clock
from headgate.errors import StoreBusy, StoreError, StoreUnavailable
from headgate.stores.forking import CalmConnection, is_ours
from headgate.stores.sqlite.place import check_library, check_place, parse_url
from headgate.stores.sqlite.transaction import Transaction

BUSY_TIMEOUT = 30.0


class _Held:
    """A thread's connection: closed when the thread is gone, or the database."""

    __slots__ = ("__weakref__", "abandoned", "connection", "pid")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.abandoned = False
        self.pid = os.getpid()

    def close(self) -> None:
        if self.pid != os.getpid():
            # In a forked child what belongs to the other threads of its parent is deleted at once,
            # before anybody is asked; such a thread may have been in the middle of a statement.
            _abandoned.append(self.connection)
        elif not self.abandoned:
            self.connection.close()

    __del__ = close


_abandoned: list[sqlite3.Connection] = []
"""A parent's connections in a forked child: kept, so that nothing ever closes them."""


class Database:
    """A SQLite file in WAL mode. Every thread has its own connection; `:memory:` has one,
    used by one thread at a time."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self.clock = clock or Clock()
        self.path, self.synchronous = parse_url(url)
        self.memory = self.path is None
        self._local = threading.local()
        self._memory_lock = threading.RLock()
        self._memory_connection: sqlite3.Connection | None = None
        self._opened: WeakSet[_Held] = WeakSet()
        self.file: tuple[int, int] | None = None
        """Device and inode of the file, once it was opened."""
        self._pid = os.getpid()
        self._closed = False
        self._users = 0
        self._idle = threading.Condition()
        check_library()
        if self.path is not None:
            check_place(self.path)

    # --- connections ------------------------------------------------------------------

    def connection(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreError(f"the store {self.url} is closed")
        if self.memory:
            if self._memory_connection is None:
                self._memory_connection = self.connect()
            return self._memory_connection
        self._check_file()
        held: _Held | None = getattr(self._local, "held", None)
        if held is None:
            held = self._local.held = _Held(self.connect())
            self._opened.add(held)
            self.file = self.file or self._find_file()
        return held.connection

    def is_whole(self) -> bool:
        """Is the file in its place the one that was opened?"""
        return self.file is None or self._find_file() == self.file

    def start_over(self) -> None:
        """Use the file that is in its place now. Who is in the middle of something ends it in the
        old one: its connection is closed when nobody has it any more."""
        for held in list(self._opened):
            held.abandoned = True
        # In this order: until the last line, who comes is told that the file was replaced.
        self._local, self._opened = threading.local(), WeakSet()
        self.file = self._find_file()

    def _find_file(self) -> tuple[int, int] | None:
        assert self.path is not None
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def _check_file(self) -> None:
        """A deleted or replaced file lives on in our connections, where nobody else ever looks:
        what is stored there would be lost."""
        if not self.is_whole():
            what = "deleted" if self._find_file() is None else "replaced by another file"
            raise StoreUnavailable(
                f"{self.url} was {what} while it was in use; nothing was stored. Put it back, or"
                " restart this program to use what is there now"
            )

    def _after_fork(self) -> None:
        """The child must not touch the parent's connections (SQLite forbids it, and closing
        them would drop the parent's file locks) nor a lock that a thread of the parent held:
        it leaves them be and opens its own."""
        for held in self._opened:
            held.abandoned = True
        _abandoned.extend(held.connection for held in self._opened)
        self._pid, self._local, self._opened = os.getpid(), threading.local(), WeakSet()
        self._users, self._idle = 0, threading.Condition()

    def connect(self, *, calm: bool | None = None) -> sqlite3.Connection:
        """A connection of its own; `calm`: made for threads of ours (see `forking`), as it is
        anyway where one of them opens it for itself."""
        calm = is_ours() if calm is None else calm
        try:
            connection = sqlite3.connect(
                ":memory:" if self.path is None else self.path,
                timeout=0,
                factory=CalmConnection if calm else sqlite3.Connection,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=512,
            )
            connection.row_factory = sqlite3.Row
            # Whoever makes the file, or closes it as the last, holds it alone for a moment,
            # and SQLite refuses others then without asking its busy handler.
            self.patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.execute("PRAGMA foreign_keys = OFF")
            connection.execute("PRAGMA temp_store = MEMORY")
        except sqlite3.Error as error:
            raise translate(error, self.url) from error
        return connection

    def close(self) -> None:
        """Refuse new transactions, let those under way end, then close every connection:
        one closed while another thread uses it would take the interpreter down."""
        if self._pid != os.getpid():
            self._after_fork()
        with self._idle:
            self._closed = True
            self._idle.wait_for(lambda: self._users == 0)
        for held in list(self._opened):
            held.close()
        if self._memory_connection is not None:
            self._memory_connection.close()
        self._opened = WeakSet()

    # --- transactions -------------------------------------------------------------------

    @contextmanager
    def write(self, timeout: float = BUSY_TIMEOUT) -> Generator[Transaction]:
        """A transaction that may write: alone among all processes until it ends.

        BEGIN IMMEDIATE takes SQLite's one write lock before the first read, so what a
        transaction reads stays true until its commit: every check-then-act in this package
        rests on that line.
        """
        with self._in_use():
            connection = self.connection()
            self.patiently(lambda: connection.execute("BEGIN IMMEDIATE"), timeout)
            try:
                transaction = Transaction(connection, self.clock, writes=True)
                yield transaction
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                rollback(connection)
                raise translate(error, self.url) from error
            except BaseException:
                rollback(connection)
                raise

    @contextmanager
    def read(self) -> Generator[Transaction]:
        """A transaction that sees one moment and blocks nobody."""
        with self._in_use():
            connection = self.connection()
            self.patiently(lambda: take_snapshot(connection))
            try:
                yield Transaction(connection, self.clock, writes=False)
            except sqlite3.Error as error:
                raise translate(error, self.url) from error
            finally:
                rollback(connection)

    @contextmanager
    def _in_use(self) -> Generator[None]:
        if self._pid != os.getpid():
            self._after_fork()
        with self._idle:
            if self._closed:
                raise StoreError(f"the store {self.url} is closed")
            self._users += 1
        try:
            if self.memory:
                with self._memory_lock:
                    yield
            else:
                yield
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    def patiently(
        self, step: Callable[[], object], timeout: float = BUSY_TIMEOUT, at_most: float = 0.02
    ) -> None:
        """Repeat a step that finds the file locked, with short, jittered pauses: SQLite's own
        busy handler sleeps up to 100 ms at a time, which is an age to a job of 10 ms. Who has
        waited for long steps back a little, so that a lock held for seconds costs no
        processor."""
        began = time.monotonic()
        while True:
            try:
                step()
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise translate(error, self.url) from error
                waited = time.monotonic() - began
                if waited > timeout:
                    raise StoreBusy(
                        f"{self.url}: another process held the write lock for {timeout:g} s;"
                        " look for a stopped process or a transaction left open"
                    ) from error
                pause = min(max(0.0003, waited / 50), at_most)
                time.sleep(pause * (0.5 + random.random()))
            else:
                return


def take_snapshot(connection: sqlite3.Connection) -> None:
    """Begin to read: BEGIN alone takes nothing, the first look does."""
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    except sqlite3.Error:
        rollback(connection)
        raise


def rollback(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            # SQLite rolls back by itself on some errors (a full disk): then there is
            # nothing left to roll back. Anything else is worth hearing about.
            if "no transaction" not in str(error):
                raise


def is_busy(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translate(error: sqlite3.Error, url: str) -> StoreError:
    """A SQLite error as one of ours, saying what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusy(f"{url}: the database is locked by another process ({error})")
    if code == sqlite3.SQLITE_READONLY:
        return StoreUnavailable(
            f"{url} cannot be written ({error}): check the permissions of the file and its folder"
        )
    if code == sqlite3.SQLITE_FULL:
        return StoreUnavailable(
            f"{url}: the disk is full ({error}); nothing was stored, free some space and try again"
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreUnavailable(
            f"{url} cannot be opened ({error}): does its folder exist, and may you write there?"
        )
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StoreUnavailable(f"{url} is not a usable SQLite file ({error}): see headgate doctor")
    if code == sqlite3.SQLITE_IOERR:
        return StoreUnavailable(f"{url}: reading or writing failed ({error}): check the disk")
    if code == sqlite3.SQLITE_TOOBIG:
        return StoreError(f"{url}: a value is larger than SQLite can hold ({error})")
    if code in (0, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_CONSTRAINT):
        # What was to be written is at fault, not the store: another try would end the same.
        return StoreError(f"{url}: {error}")
    return StoreUnavailable(f"{url}: {error}")

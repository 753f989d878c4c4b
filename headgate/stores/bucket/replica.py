"""This machine's copy of the store: a SQLite file that all its processes share.

It holds nothing that the bucket does not, and is made anew when somebody deletes it. Its one
write lock is also the turn of this machine's processes to write to the bucket: who waits for it
finds the copy up to date, and needs no second look at the bucket.
"""

from __future__ import annotations

import fcntl
import logging
import os
import random
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec

from headgate.clock import Clock
from headgate.errors import StoreBusy, StoreError, StoreUnavailable
from headgate.stores.bucket import leases, rows, traffic
from headgate.stores.bucket.ledger import Checkpoint, Entry, Ledger, Run, changes_of
from headgate.stores.bucket.url import Address
from headgate.stores.forking import CalmConnection, no_fork
from headgate.stores.sqlite.database import BUSY_TIMEOUT, Database, rollback, translate
from headgate.stores.sqlite.schema import migrate

log = logging.getLogger("headgate.store")

FILE = "replica.db"
TABLES = (
    leases.TABLE,
    traffic.TABLE,
    "CREATE TABLE IF NOT EXISTS _head (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL,"
    " seq INTEGER NOT NULL, etag TEXT NOT NULL, at REAL NOT NULL, checked REAL NOT NULL,"
    " nonces TEXT NOT NULL, runs TEXT NOT NULL, checkpoint TEXT NOT NULL, slots TEXT NOT NULL)"
    " STRICT",
    "CREATE TABLE IF NOT EXISTS _recent (seq INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT",
)


@dataclass(frozen=True, slots=True)
class Head:
    """Up to where the copy goes, and all of the ledger there but for its entries."""

    id: str
    seq: int
    etag: str
    at: float
    nonces: list[str]
    runs: list[Run]
    checkpoint: Checkpoint | None
    slots: str


def folder_of(address: Address) -> Path:
    """Where the copy is: below the folder for temporary files, which is this machine's own."""
    try:
        return _made(address)
    except OSError as error:
        raise StoreUnavailable(
            f"{address.shown}: no place for this machine's copy of the jobs: {error}; name a folder"
            " that you may write to (…?cache=/a/folder)"
        ) from error


def _made(address: Address) -> Path:
    if address.cache is not None:
        folder = Path(address.cache) / address.digest
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder
    base = Path(tempfile.gettempdir()) / f"headgate-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StoreUnavailable(
            f"{base} must be a folder that belongs to you and to nobody else, for it holds a copy"
            " of the jobs in the bucket; delete it, or name another (…?cache=/a/folder)"
        )
    folder = base / address.digest
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


class Replica:
    """The copy; any thread may use it."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self.clock = clock
        self.db = Database(f"sqlite:///{quote(str(folder / FILE))}?synchronous=normal", clock)
        self._guard = threading.RLock()
        """Held by the one thread of this process that writes."""
        self._writer: sqlite3.Connection | None = None
        self._applier: sqlite3.Connection | None = None
        self._gate: int | None = None
        self._pid = os.getpid()
        try:
            _prepare(self.db)
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"{error}. It is only this machine's copy: when no process uses it, delete the"
                f" folder {folder}, and it is made anew from the bucket"
            ) from error
        with self.db.read() as tx:
            self.tables = rows.tables(tx.connection)

    def close(self) -> None:
        with self._guard:
            self._let_go()
        self.db.close()

    def _let_go(self) -> None:
        for connection in (self._writer, self._applier):
            if connection is not None and self._pid == os.getpid():
                connection.close()
        self._writer = self._applier = None
        if self._gate is not None and self._pid == os.getpid():
            os.close(self._gate)
        self._gate = None

    def mend(self) -> bool:
        """Make the copy anew if somebody has deleted it; True: that was so, and it is empty."""
        if self.db.is_whole():
            return False
        self._mind_forks()
        with self._guard:  # nobody of this process writes to the old one any more
            if self.db.is_whole():
                return False  # another thread was quicker
            log.warning("%s was deleted while in use: it is made anew from the bucket", self.folder)
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._let_go()
                with _alone(self.folder / "mend.lock"):
                    self._make()
            except OSError as error:
                raise StoreUnavailable(
                    f"{self.folder} was deleted while it was in use, and cannot be made anew:"
                    f" {error}; make it a folder that you may write to"
                ) from error
            self.db.start_over()
        return True

    def _make(self) -> None:
        """Under a lock: of several processes that miss the file, one makes it, and none takes away
        what another has made."""
        if not (self.folder / FILE).exists():
            # What is left of the old one would be taken for a part of the new one.
            for end in ("-wal", "-shm"):
                (self.folder / f"{FILE}{end}").unlink(missing_ok=True)
        with closing(Database(self.db.url, self.clock)) as fresh:
            _prepare(fresh)

    # --- writing ------------------------------------------------------------------------------

    @contextmanager
    def turn(self, *, recorded: bool) -> Generator[sqlite3.Connection]:
        """This machine's turn: nobody else of it writes to the copy, or to the bucket, until the
        end. `recorded`: what is changed is noted. Nothing is kept unless `COMMIT` is said."""
        self._mind_forks()
        if not self._guard.acquire(timeout=BUSY_TIMEOUT):
            raise StoreBusy(f"{self.folder}: another thread has been writing for too long")
        try:
            connection = self._connection(recorded)
            calm = nullcontext if isinstance(connection, CalmConnection) else no_fork
            with self._turnstile():
                self.db.patiently(lambda: _begin(connection, calm()), at_most=0.002)
            with calm():
                try:
                    yield connection
                except sqlite3.Error as error:
                    raise translate(error, self.db.url) from error
                finally:
                    rollback(connection)
        finally:
            self._guard.release()

    @contextmanager
    def _turnstile(self) -> Generator[None]:
        """Who waits for the turn stands in here, alone: a process that has just had its turn and
        wants the next one must come in behind, and so cannot overtake."""
        if self._gate is None:
            path = self.folder / "turn.lock"
            self._gate = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + BUSY_TIMEOUT
        while not _locked(self._gate):
            if time.monotonic() > deadline:
                raise StoreBusy(
                    f"{self.folder}: other processes have been writing for {BUSY_TIMEOUT:g} s; look"
                    " for a stopped process, or a server that does not answer"
                )
            time.sleep(random.uniform(0.001, 0.003))
        try:
            yield
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def _mind_forks(self) -> None:
        if self._pid != os.getpid():
            self._gate = None  # a lock through the parent's file would be the parent's too
            # The parent's connections are left alone: closing them here would drop its locks.
            _abandoned.extend((self._writer, self._applier))
            self._guard = threading.RLock()
            self._writer = self._applier = None
            self._pid = os.getpid()

    def _connection(self, recorded: bool) -> sqlite3.Connection:
        if recorded:
            if self._writer is None:
                self._writer = self.db.connect(calm=False)
                rows.record_changes(self._writer, self.tables)
            return self._writer
        if self._applier is None:
            self._applier = self.db.connect(calm=True)
        return self._applier

    # --- the head -----------------------------------------------------------------------------

    def head(self, connection: sqlite3.Connection | None = None) -> Head | None:
        """None: nothing has been copied yet."""
        if connection is None:
            with self.db.read() as tx:
                return self.head(tx.connection)
        row = connection.execute("SELECT * FROM _head").fetchone()
        if row is None:
            return None
        return Head(
            row["id"], row["seq"], row["etag"], row["at"],
            msgspec.json.decode(row["nonces"], type=list[str]),
            msgspec.json.decode(row["runs"], type=list[Run]),
            msgspec.json.decode(row["checkpoint"], type=Checkpoint | None),
            row["slots"],
        )  # fmt: skip

    def recent(self, connection: sqlite3.Connection) -> list[tuple[int, str]]:
        """The entries that stand in the ledger itself: number and JSON."""
        found = connection.execute("SELECT seq, text FROM _recent ORDER BY seq")
        return [(row[0], row[1]) for row in found]

    def set_head(self, connection: sqlite3.Connection, head: Head) -> None:
        connection.execute(
            "INSERT OR REPLACE INTO _head VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                head.id, head.seq, head.etag, head.at, time.time(),
                _text(head.nonces), _text(head.runs), _text(head.checkpoint), head.slots,
            ),
        )  # fmt: skip

    def set_recent(
        self, connection: sqlite3.Connection, entries: Iterable[tuple[int, str]], after: int
    ) -> None:
        """These entries are there too now, and none up to `after` any more."""
        connection.execute("DELETE FROM _recent WHERE seq <= ?", (after,))
        connection.executemany("INSERT OR REPLACE INTO _recent VALUES (?, ?)", entries)

    # --- catching up --------------------------------------------------------------------------

    def follow(
        self,
        ledger: Ledger,
        etag: str,
        fetch: Callable[[str], rows.Changes],
        load: Callable[[Checkpoint], Iterable[rows.Changes]],
        anew: bool = False,
    ) -> tuple[set[str], int]:
        """Bring the copy to where this ledger is; what is to be rung here, and from which entry
        on it went. `anew`: forget what it holds."""
        with self.turn(recorded=False) as connection:
            head = self.head(connection)
            if head is not None and (anew or not _one_history(head, ledger)):
                head = None  # the copy is of something else: it is made anew
            if head is not None and head.seq >= ledger.seq:
                if head.seq == ledger.seq and head.etag != etag:
                    # Only what it names changed, not what it says.
                    self._adopt(connection, ledger, etag)
                    connection.execute("COMMIT")
                return set(), head.seq  # another process was here first
            since = -1 if head is None else head.seq
            rings = self._apply(connection, ledger, since, fetch, load)
            self._adopt(connection, ledger, etag)
            connection.execute("COMMIT")
            return rings, max(since, 0)

    def _apply(
        self,
        connection: sqlite3.Connection,
        ledger: Ledger,
        since: int,
        fetch: Callable[[str], rows.Changes],
        load: Callable[[Checkpoint], Iterable[rows.Changes]],
    ) -> set[str]:
        rings: set[str] = set()
        base = 0 if ledger.checkpoint is None else ledger.checkpoint.seq
        if since < base or since < 0:
            self._clear(connection)
            if ledger.checkpoint is not None:
                for changes in load(ledger.checkpoint):
                    rows.apply(connection, self.tables, changes)
            since = base
            rings.update(("work", "done", "room", "output", "ticks"))
        for run in ledger.runs:
            # All rows that its entries touched, as they were after the last of them: it may be
            # laid over a copy that has some of its entries already.
            if run.last > since:
                rows.apply(connection, self.tables, fetch(run.object))
                since = run.last
                rings.update(("work", "done", "room", "output", "ticks"))
        for entry in ledger.recent:
            if entry.seq <= since:
                continue
            if entry.seq != since + 1:
                raise StoreError(f"the ledger lacks its entry {since + 1}: it is damaged")
            if entry.object is not None:
                rows.apply(connection, self.tables, fetch(entry.object))
            else:
                rows.apply(connection, self.tables, changes_of(entry.rows))
            since = entry.seq
            rings.update(entry.rings)
        return rings

    def _clear(self, connection: sqlite3.Connection) -> None:
        for table in self.tables:
            connection.execute(f"DELETE FROM {table}")

    def _adopt(self, connection: sqlite3.Connection, ledger: Ledger, etag: str) -> None:
        slots = msgspec.json.encode(ledger.slots).decode()
        self.set_head(
            connection,
            Head(ledger.id, ledger.seq, etag, ledger.at, ledger.nonces, ledger.runs,
                 ledger.checkpoint, slots),
        )  # fmt: skip
        connection.execute("DELETE FROM _recent")
        self.set_recent(connection, ((entry.seq, entry_text(entry)) for entry in ledger.recent), 0)


def _begin(connection: sqlite3.Connection, calm: AbstractContextManager[object]) -> None:
    with calm:
        connection.execute("BEGIN IMMEDIATE")


def _prepare(db: Database) -> None:
    migrate(db)
    with db.write() as tx:
        for statement in TABLES:
            tx.run(statement)


@contextmanager
def _alone(path: Path) -> Generator[None]:
    """The only one of this machine."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)  # and with it the lock


def _one_history(head: Head, ledger: Ledger) -> bool:
    """Did the one become the other? Not if there is another store in its place, nor if the ledger
    was set back to an older version of itself: then others have gone on from there."""
    if head.id != ledger.id:
        return False
    if ledger.seq <= head.seq:
        older, newer, apart = ledger.nonces, head.nonces, head.seq - ledger.seq
    else:
        older, newer, apart = head.nonces, ledger.nonces, ledger.seq - head.seq
    return apart >= len(newer) or older[-1] in newer


def entry_text(entry: Entry) -> str:
    return msgspec.json.encode(entry).decode()


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_abandoned: list[sqlite3.Connection | None] = []
"""A parent's connections in a forked child: kept, so that nothing ever closes them."""

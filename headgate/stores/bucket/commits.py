"""Group commit: what the threads of a process want to change is changed together, by one
replacement of the ledger.

A transaction is tried on this machine's copy first. If the ledger could be replaced, nobody else
has written since the copy was made, so what the transaction has seen was true: it counts. Else
nothing of it does: the copy is brought up to date, and the transaction tried again.
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headgate.backoff import grown
from headgate.clock import Clock
from headgate.errors import StoreInDoubt
from headgate.stores.bucket import rows
from headgate.stores.bucket.bodies import Bodies
from headgate.stores.bucket.following import Following
from headgate.stores.bucket.keeping import Keeper
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.objects import UNCHANGED, Objects
from headgate.stores.bucket.replacing import Replacing
from headgate.stores.bucket.replica import Replica
from headgate.stores.glances import AGE
from headgate.stores.sqlite.database import translate
from headgate.stores.sqlite.transaction import Transaction

T = TypeVar("T")
log = logging.getLogger("headgate.store")

LONGEST_PAUSE = 0.5
"""Seconds for which a machine lets others write before it does again, at most."""


class _Work:
    """One transaction that waits to be carried out."""

    __slots__ = ("done", "error", "result", "saw", "what")

    def __init__(self, what: Callable[[], Any]) -> None:
        self.what = what
        self.saw: str | None = None
        """The etag of what it saw, unless a write has proved that this was the latest."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False


@dataclass(slots=True)
class _Open:
    """The commit that this thread is carrying out."""

    connection: sqlite3.Connection
    floor: float
    rings: set[str] = field(default_factory=set[str])


class BucketTransaction(Transaction):
    __slots__ = ("bodies",)
    bodies: Bodies

    def whole(self, text: str) -> str:
        return self.bodies.whole(text)


class Commits:
    """The one way to the bucket; any thread may use it."""

    def __init__(
        self,
        objects: Objects,
        layout: Layout,
        replica: Replica,
        clock: Clock,
        ring: Callable[[str], None],
        where: str,
    ) -> None:
        self.objects = objects
        self.layout = layout
        self.replica = replica
        self.where = where
        self.bodies = Bodies(objects, layout, where)
        self.keeper = Keeper(objects, layout, replica, self.bodies, self._fence)
        self.following = Following(objects, layout, replica, self.keeper, clock, ring, where)
        self.refresh = self.following.refresh
        self._replacing = Replacing(
            objects, layout, replica, self.keeper, clock, where, self.following.by
        )
        self._clock = clock
        self._ring = ring
        self._local = threading.local()
        self._fresh()

    def _fresh(self) -> None:
        """As it is in a new process; a fork must not wait for threads of its parent."""
        self._pid = os.getpid()
        self._queue: list[_Work] = []
        self._queueing = threading.Lock()
        self._leading = threading.Condition()
        self._led = False
        self._behind_at = float("-inf")
        """When something was carried out that the copy could not note."""
        self._together = 0
        """How many were carried out by the last write."""
        self._work = 0.0
        """Seconds that it takes here to put a write together, smoothed."""

    # --- to carry out -------------------------------------------------------------------------

    def run(self, what: Callable[[], T], *, verify: bool = True) -> T:
        """Carry this out as one transaction; it may be tried several times. Unless it changes
        something, `verify` says whether it matters that what it saw was the latest."""
        if self._pid != os.getpid():
            self._fresh()
        if getattr(self._local, "open", None) is not None:
            return what()  # part of the one under way
        while True:
            work = _Work(what)
            with self._queueing:
                self._queue.append(work)
            self._carry_out(work)
            # Nothing was written, so nobody has told yet whether what was seen was the latest. It
            # was if it still is. Asked when others may go on.
            if not verify or work.saw is None or self.following.get(work.saw) is UNCHANGED:
                break
            self.refresh()
        if work.error is not None:
            raise work.error
        return work.result

    def _carry_out(self, work: _Work) -> None:
        """Until it is done: by whoever leads, or by leading. Nobody whose work is done waits for
        the next to be."""
        with self._leading:
            self._leading.wait_for(lambda: work.done or not self._led)
            if work.done:
                return
            self._led = True
        try:
            self._lead()  # takes all that has gathered, this too
        finally:
            with self._leading:
                self._led = False
                self._leading.notify_all()

    def _lead(self) -> None:
        self._let_others()
        if self._together > 1:
            # Those whose work was carried out together have just been told so, and some have
            # more: it is worth a moment to take them all along again.
            time.sleep(min(self._replacing.trip / 8, 0.01))
        with self._queueing:
            works, self._queue = self._queue, []
        self._together = len(works)
        try:
            self._until_done(works)
        except BaseException as error:
            for work in works:
                work.error, work.done = error, True
                if not isinstance(error, Exception):  # it interrupts this thread, not theirs
                    work.error = StoreInDoubt(f"{self.where}: interrupted in the middle")
            if not isinstance(error, Exception):
                raise
        for work in works:
            work.done = True

    def _let_others(self) -> None:
        """Other machines write too. Who lost to us must read, try again and write, which takes
        several times as long as our next write, or as our own work where the bucket is near:
        without a pause it would lose for ever."""
        if not self.following.crowded:
            return
        trips = (2 + 2 * self.following.others) * random.uniform(0.8, 1.2)
        wait = min(trips * max(self._replacing.trip, self._work), LONGEST_PAUSE)
        pause = self._replacing.wrote_at + wait - time.monotonic()
        if pause > 0:
            time.sleep(pause)

    def _until_done(self, works: list[_Work]) -> None:
        losses = 0
        while not self._attempt(works):
            losses += 1
            if losses > 2:
                # No longer than a few dozen trips: who stays away has the more to read.
                spread = grown(min(losses - 2, 5), self._replacing.trip, 1.0)
                time.sleep(random.uniform(0, spread))
            # After the pause, not before it: whatever others write meanwhile would make us lose.
            self.refresh()

    def _attempt(self, works: list[_Work]) -> bool:
        """False: the copy is behind the bucket, and nothing was done."""
        if self.replica.mend():
            return False
        with self.replica.turn(recorded=True) as connection:
            began = time.monotonic()
            head = self.replica.head(connection)
            # A copy that lacks what we did ourselves would call it stale, and who asks does not
            # always ask whether that was the latest.
            if head is None or not head.etag or self.following.looked_at < self._behind_at:
                return False
            under_way = _Open(connection, head.at)
            self._local.open = under_way
            try:
                for work in works:
                    self._try(work, connection)
            finally:
                self._local.open = None
            self.bodies.move_out(connection)
            changes, count = rows.collect(connection)
            self._work += (time.monotonic() - began - self._work) / 8
            kept = (
                self._replacing.write(connection, head, changes, under_way.rings) if count else None
            )
            if kept:
                try:
                    self.replica.set_head(connection, kept)
                    connection.execute("COMMIT")
                except sqlite3.Error as error:
                    # It has been carried out, whatever becomes of the copy: that catches up.
                    self._behind_at = time.monotonic()
                    log.warning("%s: the copy in %s: %s", self.where, self.replica.folder, error)
        for work in works:
            work.saw = None if kept else head.etag
        if not kept:
            return not count
        for bell in under_way.rings:
            self._ring(bell)
        self.keeper.look(kept)
        return True

    def _try(self, work: _Work, connection: sqlite3.Connection) -> None:
        connection.execute("SAVEPOINT work")
        work.result, work.error = None, None
        try:
            work.result = work.what()
        # Whatever it is, it is told to who asked for this, and undone; the others go on.
        except Exception as error:
            work.error = error
            connection.execute("ROLLBACK TO SAVEPOINT work")
        connection.execute("RELEASE SAVEPOINT work")

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        """Part of the commit under way: undone alone if it fails."""
        under_way: _Open | None = getattr(self._local, "open", None)
        if under_way is None:
            raise RuntimeError("a transaction on the bucket runs within Commits.run")
        tx = BucketTransaction(under_way.connection, self._clock, writes=True)
        tx.bodies = self.bodies
        tx.now = max(tx.now, under_way.floor)
        with self._as_current(tx):
            try:
                yield tx
            except sqlite3.Error as error:
                raise translate(error, self.where) from error
        under_way.rings |= tx.rings

    def current(self) -> Transaction:
        """The transaction that this thread has open, for reading or writing."""
        tx: Transaction | None = getattr(self._local, "tx", None)
        if tx is None:
            raise RuntimeError("no transaction is open in this thread")
        return tx

    @contextmanager
    def _as_current(self, tx: Transaction) -> Generator[Transaction]:
        before, self._local.tx = getattr(self._local, "tx", None), tx
        try:
            yield tx
        finally:
            self._local.tx = before

    @contextmanager
    def looking(self) -> Generator[Transaction]:
        """What is there now; within a transaction, as that sees it."""
        tx: Transaction | None = getattr(self._local, "tx", None)
        if tx is not None:
            yield tx
            return
        under_way: _Open | None = getattr(self._local, "open", None)
        if under_way is not None:
            tx = Transaction(under_way.connection, self._clock, writes=True)
            with self._as_current(tx):
                yield tx
            return
        age = time.monotonic() - self.following.looked_at
        if age > max(AGE.get(), getattr(self._local, "age", 0.0)):
            self.refresh()
        if not self.following.has_copy:
            self.refresh()
        with self.replica.db.read() as tx, self._as_current(tx):
            yield tx

    @contextmanager
    def glancing(self, age: float) -> Generator[None]:
        """What this thread reads here may be so many seconds old."""
        self._local.age = age
        try:
            yield
        finally:
            self._local.age = 0.0

    def _fence(self) -> None:
        """Replace the ledger. Who decided before this what to name must decide again."""

        def note() -> None:
            with self.transaction() as tx:
                tx.run(
                    "INSERT OR REPLACE INTO counters (name, value) VALUES ('collected', ?)",
                    (int(tx.now),),
                )

        self.run(note)

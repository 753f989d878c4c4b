"""Keeping the ledger small: old entries become a run, old runs a checkpoint.

All of it is done beside the commits, in a thread of its own, from what is fixed already; only the
next commit names the outcome. Whoever does it too, or dies over it, leaves objects that nobody
names, and those are deleted after a while.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from headgate.clock import Clock
from headgate.errors import HeadgateError, StoreUnavailable
from headgate.stores.bucket import rows
from headgate.stores.bucket.alone import Alone
from headgate.stores.bucket.bodies import FRESH, Bodies
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.ledger import (
    SEAL_BYTES,
    SEAL_ENTRIES,
    Checkpoint,
    Entry,
    Manifest,
    Part,
    Run,
    changes_of,
    new_nonce,
)
from headgate.stores.bucket.objects import Listed, Objects
from headgate.stores.bucket.patience import create, patiently
from headgate.stores.bucket.replica import Head, Replica
from headgate.stores.forking import ours

T = TypeVar("T")
log = logging.getLogger("headgate.store")
_manifests, _parts = msgspec.json.Decoder(Manifest), msgspec.json.Decoder(Part)

PIECE = 2048
"""Rows in a part of a checkpoint."""
CHECKPOINT_BYTES = 4 * 1024 * 1024
"""With more bytes than these in runs, and more than in the last checkpoint, there is a new one."""
FORGOTTEN = 3600.0
"""Seconds after which an object that nobody names is deleted: nobody can be reading it by then,
nor be about to name it."""
COLLECT_EVERY = 1800.0


class Keeper:
    def __init__(
        self,
        objects: Objects,
        layout: Layout,
        replica: Replica,
        bodies: Bodies,
        fence: Callable[[], None],
    ) -> None:
        self._bodies = bodies
        self._fence = fence
        """Replace the ledger, so that who decided before what to name must decide again."""
        self._clock = Clock()
        self._closed = False
        self._made_at = float("-inf")
        """When the run and the checkpoint were begun, the older of them."""
        self._objects = objects
        self._layout = layout
        self._replica = replica
        self._busy = threading.Lock()
        self._full = False
        """Was the ledger, when it was replaced last."""
        self._run: Run | None = None
        self._checkpoint: tuple[Checkpoint | None, Checkpoint] | None = None
        """The one that was in force when it was made, and the new one."""
        self._collected = time.monotonic()
        self._pid = os.getpid()
        self._turn = Alone(replica.folder / "keeper.lock")
        """Of this machine's processes one gathers, from when it begins until that is named."""

    def close(self) -> None:
        """Whatever is under way fails from here on, and need not be told."""
        self._closed = True

    # --- to read ------------------------------------------------------------------------------

    def fetch(self, key: str) -> rows.Changes:
        """The rows of a run. `FileNotFoundError`: the ledger that named it is out of date."""
        return self._decoded(key, changes_of)

    def _decoded(self, key: str, decode: Callable[[bytes], T]) -> T:
        body = self._body(key)
        try:
            return decode(body)
        except msgspec.MsgspecError as error:
            raise StoreUnavailable(
                f"the object {key}, which the ledger names, is damaged ({error}); put it back as it"
                " was"
            ) from error

    def _body(self, key: str) -> bytes:
        got = patiently(lambda: self._objects.get(key))
        if got is None:
            raise FileNotFoundError(key)
        return got.body

    def load(self, checkpoint: Checkpoint) -> Iterable[rows.Changes]:
        manifest = self._manifest(checkpoint)
        with ThreadPoolExecutor(8) as pool:
            for part in pool.map(self._part, manifest.parts):
                yield {part.table: rows.Change(put=part.rows)}

    def _manifest(self, checkpoint: Checkpoint) -> Manifest:
        return self._decoded(checkpoint.object, _manifests.decode)

    def _part(self, key: str) -> Part:
        return self._decoded(key, _parts.decode)

    # --- what a commit names ------------------------------------------------------------------

    def outcome(
        self, head: Head, recent: list[tuple[int, str]]
    ) -> tuple[list[Run], Checkpoint | None, int]:
        """The runs and the checkpoint to name from now on, and up to which entry they hold all.
        What is not of use any more, because others were quicker, is left alone."""
        self._full = _is_full(recent)
        runs, checkpoint = list(head.runs), head.checkpoint
        gathered = max([0 if checkpoint is None else checkpoint.seq, *(run.last for run in runs)])
        if self._clock.boot() - self._made_at > FRESH:
            # Nobody named them for long, so others may take them for forgotten.
            self._run = self._checkpoint = None
        run, made = self._run, self._checkpoint
        if made is not None and made[0] != checkpoint:
            # It names parts of one that is in force no more: they may be deleted at any time.
            made = self._checkpoint = None
        if run is not None and run.first != gathered + 1:
            # Others were quicker, or a checkpoint was: what it holds is gathered already.
            run = self._run = None
        if run is not None and any(n == run.last for n, _ in recent):
            runs.append(run)
            gathered = run.last
        if made is not None:
            checkpoint = made[1]
            runs = [run for run in runs if run.last > checkpoint.seq]
            gathered = max(gathered, checkpoint.seq)
        return runs, checkpoint, gathered

    # --- beside the commits -------------------------------------------------------------------

    def look(self, head: Head) -> None:
        """After a commit: is there anything to gather?"""
        if self._pid != os.getpid():  # a fork: the thread of its parent is not here
            self._pid, self._busy = os.getpid(), threading.Lock()
        if self._run is not None and any(run.object == self._run.object for run in head.runs):
            self._run = None
        if self._checkpoint is not None and head.checkpoint == self._checkpoint[1]:
            self._checkpoint = None
        if self._run is None and self._checkpoint is None and not self._busy.locked():
            self._turn.over()
        if self._due(head) and self._busy.acquire(blocking=False):
            if not self._turn.take():
                self._busy.release()
                return
            thread = threading.Thread(target=ours(self._keep), name="headgate-keeper", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending: somebody else will do it
                self._busy.release()

    def _due(self, head: Head) -> bool:
        """Asked after every commit, so that there is a thread only while it has something to do."""
        return (
            (self._full and self._run is None)
            or (self._checkpoint is None and _outgrown(head))
            or time.monotonic() - self._collected > COLLECT_EVERY
        )

    def _keep(self) -> None:
        try:
            self._seal()
            self._make_checkpoint()
            if time.monotonic() - self._collected > COLLECT_EVERY:
                self._collected = time.monotonic()
                if not self._others_collected():
                    self.collect()
        except (HeadgateError, FileNotFoundError) as error:
            if self._closed:
                return  # in the middle of it; somebody else will
            # Nothing is lost: the ledger grows until somebody can.
            log.warning("old entries of the ledger could not be gathered: %s", error)
        finally:
            self._busy.release()

    def _seal(self) -> None:
        with self._replica.db.read() as tx:
            head = self._replica.head(tx.connection)
            recent = self._replica.recent(tx.connection)
        if head is None or self._run is not None:
            return
        if not _is_full(recent):
            return
        base = 0 if head.checkpoint is None else head.checkpoint.seq
        gathered = max([base, *(run.last for run in head.runs)])
        entries = [msgspec.json.decode(t, type=Entry) for n, t in recent if n > gathered]
        if not entries:
            return
        self._begin()
        merged = rows.Merged(self._replica.tables)
        for entry in entries:
            if entry.object is not None:
                merged.add(self.fetch(entry.object))
            else:
                merged.add(changes_of(entry.rows))
        body = msgspec.json.encode(merged.changes())
        first, last = entries[0].seq, entries[-1].seq
        key = self._layout.run(first, last, new_nonce())
        create(self._objects, key, body)
        self._run = Run(first, last, key, len(body))

    def _begin(self) -> None:
        if self._run is None and self._checkpoint is None:
            self._made_at = self._clock.boot()

    def _make_checkpoint(self) -> None:
        with self._replica.db.read() as tx:
            head = self._replica.head(tx.connection)
            if head is None or self._checkpoint is not None:
                return
            if not _outgrown(head):
                return
            self._begin()
            self._checkpoint = head.checkpoint, self._dump(tx.connection, head)

    def _dump(self, connection: sqlite3.Connection, head: Head) -> Checkpoint:
        # Only parts of the one in force are used again: from their making on they have been named
        # without a break, so nobody can have taken them for forgotten.
        known: dict[str, str] = {}
        if head.checkpoint is not None:
            parts = self._manifest(head.checkpoint).parts
            known.update((self._layout.digest_of(key), key) for key in parts)
        keys: list[str] = []
        size = 0
        for table in self._replica.tables.values():
            columns = msgspec.json.encode(list(table.columns)).decode()
            for piece in rows.dump(connection, table, PIECE):
                lines = ",\n".join(piece)
                text = f'{{"table":"{table.name}","columns":{columns},"rows":[\n{lines}]}}'
                body = text.encode()
                digest = hashlib.sha256(body).hexdigest()[:40]
                key = known.get(digest)
                if key is None:
                    self._turn.keep()
                    # By a name that nobody ever used: one of the same content from some older
                    # checkpoint may be there, and about to be deleted.
                    key = self._layout.part(f"{digest}-{new_nonce()}")
                    create(self._objects, key, body)
                keys.append(key)
                size += len(body)
        key = self._layout.checkpoint(head.seq, new_nonce())
        create(self._objects, key, msgspec.json.encode(Manifest(head.seq, keys)))
        return Checkpoint(head.seq, key, size)

    def _others_collected(self) -> bool:
        with self._replica.db.read() as tx:
            at = tx.value("SELECT value FROM counters WHERE name = 'collected'")
            return at is not None and 0 <= tx.now - at < COLLECT_EVERY / 2

    def collect(self, older: float = FORGOTTEN) -> int:
        """Delete what nobody names any more; how many."""
        stored, named = self.stored(), self.named()
        old = [one.key for one in stored if one.age > older and one.key not in named]
        if not old:
            return 0
        # Somebody may have been about to name one of them when we listed it, and have stood still
        # ever since. Its write is refused from here on, as the ledger is another one; when it
        # decides again, it sees that what it made is not fresh, and makes it anew. Who was quicker
        # than this is seen by what we read next.
        self._fence()
        named = self.named()
        gone = [key for key in old if key not in named]
        for key in gone:
            self._objects.delete(key)
        return len(gone)

    def stored(self) -> list[Listed]:
        """All objects but the ledger."""
        layout = self._layout
        kinds = layout.runs, layout.checkpoints, layout.parts, layout.bodies, layout.probes
        return [one for prefix in kinds for one in self._objects.list(prefix)]

    def named(self) -> set[str]:
        """What the ledger and the jobs name, as of this machine's copy."""
        while True:
            with self._replica.db.read() as tx:
                head = self._replica.head(tx.connection)
                recent = self._replica.recent(tx.connection)
                named = self._bodies.named(tx.connection)
            entries = [msgspec.json.decode(text, type=Entry) for _, text in recent]
            named.update(entry.object for entry in entries if entry.object is not None)
            if head is None:
                return named
            named.update(run.object for run in head.runs)
            if head.checkpoint is None:
                return named
            named.add(head.checkpoint.object)
            try:
                named.update(self._manifest(head.checkpoint).parts)
            except FileNotFoundError:
                # There is a newer one already: its parts are what counts.
                after = self._replica.head()
                if after is None or after.checkpoint == head.checkpoint:
                    raise
                continue
            return named


def _is_full(recent: list[tuple[int, str]]) -> bool:
    return len(recent) >= SEAL_ENTRIES or sum(len(text) for _, text in recent) >= SEAL_BYTES


def _outgrown(head: Head) -> bool:
    """Is there more in runs than in the checkpoint before them?"""
    old = 0 if head.checkpoint is None else head.checkpoint.bytes
    return sum(run.bytes for run in head.runs) >= max(CHECKPOINT_BYTES, old)

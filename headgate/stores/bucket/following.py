"""Following: this machine's copy is brought to what the bucket holds, or the first ledger is made.

One conditional read tells that nothing is new. Else what the ledger has more than the copy is laid
over it, and the bells are rung that were rung where it was written.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from headgate.clock import Clock
from headgate.errors import StoreUnavailable, StoreVersion
from headgate.stores.bucket import rows
from headgate.stores.bucket.keeping import Keeper
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.ledger import first, read
from headgate.stores.bucket.objects import UNCHANGED, Got, Lost, Objects
from headgate.stores.bucket.patience import patiently
from headgate.stores.bucket.replica import Head, Replica

CROWDED = 3.0
"""Seconds for which another machine that wrote is taken to go on writing."""


class Following:
    """Any thread may use it."""

    def __init__(
        self,
        objects: Objects,
        layout: Layout,
        replica: Replica,
        keeper: Keeper,
        clock: Clock,
        ring: Callable[[str], None],
        where: str,
    ) -> None:
        self._objects = objects
        self._layout = layout
        self._replica = replica
        self._keeper = keeper
        self._clock = clock
        self._ring = ring
        self._where = where
        # Machines that share a host, as containers may, have copies of their own.
        place = hashlib.sha256(str(replica.folder.resolve()).encode()).hexdigest()[:8]
        self.by = f"{socket.gethostname()}:{place}"
        """What this machine's entries are signed with."""
        self._file: tuple[int, int] | None = None
        """The file that was brought up to date last."""
        self._fresh()

    def _fresh(self) -> None:
        """As it is in a new process; a fork must not wait for threads of its parent."""
        self._pid = os.getpid()
        self._refreshing = threading.Lock()
        self._begun = self._ended = 0
        self.looked_at = float("-inf")
        """When the copy was known to be what the bucket held."""
        self.foreign_at = float("-inf")
        self.others = 0
        """Machines that wrote when one was last seen to."""

    @property
    def crowded(self) -> bool:
        """Do other machines write too, of late?"""
        return time.monotonic() - self.foreign_at < CROWDED

    def get(self, known: str | None) -> Got | None:
        """The ledger; `UNCHANGED` while it is the one of this etag."""
        return patiently(lambda: self._objects.get(self._layout.ledger, known or None))

    def refresh(self) -> None:
        """Bring the copy to what the bucket holds now, or did at some moment of this call."""
        if self._pid != os.getpid():
            self._fresh()
        arrived = self._begun
        with self._refreshing:
            if self._ended > arrived:
                return  # somebody began after we came, and has ended
            self._begun += 1
            mine = self._begun
            self._replica.mend()
            file = self._replica.db.file
            began = time.monotonic()
            self._follow()
            self._ended = mine
            self.looked_at, self._file = began, file

    @property
    def has_copy(self) -> bool:
        """Has the copy that is there been filled? Not if it was deleted and made anew since."""
        return self._replica.db.is_whole() and self._file == self._replica.db.file

    def look(self) -> bool:
        """Has another machine written since the last look?"""
        self._replica.mend()
        before = self._replica.head()
        self.refresh()
        after = self._replica.head()
        return before is None or after is None or before.seq != after.seq

    def _follow(self) -> None:
        missing: tuple[str, str] | None = None
        while True:
            head = self._replica.head()
            got = self.get(None if head is None else head.etag)
            if got is UNCHANGED:
                return
            if got is None:
                self._found(head)
                continue
            ledger = read(got.body, self._where)
            # Read after we had a later one: somebody put an older version back.
            back = head is not None and head.id == ledger.id and ledger.seq < head.seq
            head = self._replica.head()
            if head is not None and (head.id, head.etag) == (ledger.id, got.etag):
                return  # another process of this machine wrote it, or was here first
            try:
                rings, since = self._replica.follow(
                    ledger, got.etag, self._keeper.fetch, self._keeper.load, back
                )
            except FileNotFoundError as error:
                if missing == (got.etag, str(error)):
                    raise StoreUnavailable(
                        f"{self._where}: the object {error}, which the ledger names, is missing;"
                        " put it back"
                    ) from error
                missing = got.etag, str(error)
                continue  # gathered meanwhile: the ledger names other objects by now
            if any(e.by != self.by for e in ledger.recent if e.seq > since):
                self.foreign_at = time.monotonic()
                lately = [e.by for e in ledger.recent if e.at > ledger.at - CROWDED]
                self.others = len({*lately} - {self.by})
            for bell in rings:
                self._ring(bell)
            return

    def _found(self, head: Head | None) -> None:
        """Make the ledger of a new store; whoever is first."""
        if head is not None:
            raise StoreUnavailable(
                f"{self._where}: the ledger {self._layout.ledger} was deleted while it was in use;"
                f" put it back, or stop the workers and delete {self._replica.folder} (and the like"
                " on other machines) to begin with an empty store"
            )
        self._refuse_shards()
        with self._replica.turn(recorded=False) as connection:
            table = self._replica.tables["counters"]
            counters = [text for piece in rows.dump(connection, table, 100) for text in piece]
        changes = f'{{"counters":{{"put":[{",".join(counters)}]}}}}'
        body = msgspec.json.encode(first(self._clock.now(), self.by, changes))
        try:
            patiently(lambda: self._objects.create(self._layout.ledger, body))
        except Lost:
            got = patiently(lambda: self._objects.get(self._layout.ledger))
            if got is None or got.body != body:
                return
            # To ourselves: an answer was lost.

    def _refuse_shards(self) -> None:
        """Asked only where no ledger exists, so that a store in use costs no request more."""
        if patiently(lambda: self._objects.get(self._layout.shards)) is not None:
            raise StoreVersion(
                f"{self._where}: {self._layout.shards} says that this is a store of several shards,"
                " which this Headgate does not read. Finish or export its jobs with the version"
                " that wrote it, or name another prefix; where one ledger is too slow, use"
                " PostgreSQL"
            )

"""Replacing the ledger: what a commit has changed becomes its next entry, by compare-and-swap."""

from __future__ import annotations

import json
import sqlite3
import time
from typing import Any

from headgate.clock import Clock
from headgate.errors import StoreInDoubt, StoreUnavailable
from headgate.stores.bucket.keeping import Keeper
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.ledger import (
    FULL,
    INLINE,
    NONCES,
    SHOWN_SLOTS,
    compose,
    new_nonce,
    read,
)
from headgate.stores.bucket.objects import Lost, Objects, Trouble
from headgate.stores.bucket.patience import create, patiently
from headgate.stores.bucket.replica import Head, Replica


class Replacing:
    """Used by one thread at a time, in this machine's turn."""

    def __init__(
        self,
        objects: Objects,
        layout: Layout,
        replica: Replica,
        keeper: Keeper,
        clock: Clock,
        where: str,
        by: str,
    ) -> None:
        self._objects = objects
        self._layout = layout
        self._replica = replica
        self._keeper = keeper
        self._clock = clock
        self._where = where
        self._by = by
        self.wrote_at = float("-inf")
        self.trip = 0.01
        """Seconds that a write takes of late."""

    def write(
        self, connection: sqlite3.Connection, head: Head, changes: str, rings: set[str]
    ) -> Head | None:
        """Replace the ledger; None: somebody else did."""
        seq, nonce, at = head.seq + 1, new_nonce(), max(self._clock.now(), head.at)
        entry: dict[str, Any] = {"seq": seq, "nonce": nonce, "by": self._by, "at": at}
        if rings:
            entry["rings"] = sorted(rings)
        text = json.dumps(entry, ensure_ascii=False)[:-1]
        recent = self._replica.recent(connection)
        runs, checkpoint, gathered = self._keeper.outcome(head, recent)
        recent = [(n, t) for n, t in recent if n > gathered]
        # However far behind is who gathers them, the ledger stays small.
        if len(changes) > min(INLINE, FULL - sum(len(t) for _, t in recent)):
            key = self._layout.run(seq, seq, nonce)
            create(self._objects, key, changes.encode())
            text += f', "object": "{key}"}}'
        else:
            text += f', "rows": {changes}}}'
        recent.append((seq, text))
        slots = _slots(connection) if '"slots":{' in changes else head.slots
        nonces = [*head.nonces[-NONCES + 1 :], nonce]
        body = compose(head.id, seq, at, nonces, recent, runs, checkpoint, slots)
        self._replica.set_recent(connection, [(seq, text)], gathered)
        began = time.monotonic()
        etag = self._put(body.encode(), head.etag, nonce, seq)
        self.wrote_at = time.monotonic()
        self.trip += (self.wrote_at - began - self.trip) / 8
        if etag is None:
            return None
        return Head(head.id, seq, etag, at, nonces, runs, checkpoint, slots)

    def _put(self, body: bytes, known: str, nonce: str, seq: int) -> str | None:
        """The new etag, empty when others have written since; None: we were too late.

        Until the server has said which, the very same write is sent again: it can only be
        carried out once, for it changes the etag that it asks for.
        """

        doubt = False

        def replace() -> str | None:
            nonlocal doubt
            try:
                return self._objects.replace(self._layout.ledger, body, known)
            except Trouble as trouble:
                doubt = doubt or trouble.maybe
                raise
            except Lost:
                # To ourselves perhaps: an answer was lost, and the write was carried out.
                got = self._objects.get(self._layout.ledger)
                if got is None:
                    raise StoreUnavailable(f"{self._where}: the ledger was deleted") from None
                if got.etag == known:
                    # A conflict (409) with a write that has not been carried out yet, and may be
                    # one of ours of which we heard nothing. Only the same write again tells.
                    raise Trouble(f"{self._where}: a conflict with another write") from None
                now = read(got.body, self._where)
                if nonce not in now.nonces:
                    if doubt and now.seq - seq >= len(now.nonces):
                        raise StoreInDoubt(
                            f"{self._where}: no answer came to a write, and so many others followed"
                            " that the ledger does not tell any more whether it was carried out"
                        ) from None
                    return None
                return got.etag if got.body == body else ""

        return patiently(replace)


def _slots(connection: sqlite3.Connection) -> str:
    """Who holds what, for people who look at the ledger."""
    shown: dict[str, list[dict[str, Any]]] = {}
    for row in connection.execute(
        "SELECT grp, slot, holder, worker_name, units, since, ends FROM slots WHERE holder <> ''"
        " ORDER BY grp, slot LIMIT ?",
        (SHOWN_SLOTS,),
    ):
        told = {
            "slot": row["slot"], "holder": row["holder"], "worker": row["worker_name"],
            "units": row["units"], "since": row["since"],
        }  # fmt: skip
        if row["ends"] is not None:
            told["ends"] = row["ends"]
        shown.setdefault(row["grp"], []).append(told)
    return json.dumps(shown, ensure_ascii=False)

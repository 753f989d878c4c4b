"""What round trips granted of which nobody could tell whether it was carried out.

The worker was not told of it, so it runs none of it; but it may be written in the ledger, and then
its slots are held. The next round trip of that worker looks, and hands out what it finds.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from headgate.jobs import Claimed, Finish
from headgate.stores.bucket import leases
from headgate.stores.relational import finishing
from headgate.stores.sqlite.transaction import Transaction

GRANTED = """
SELECT 1 FROM running r JOIN jobs j ON j.n = r.job
WHERE r.token = ? AND r.worker = ? AND j.id = ? AND r.started_at = ?
"""
"""Tries that were undone gave the same token, perhaps with other slots; at another time."""


class Unheard:
    """By worker. Several threads of one worker may have round trips under way."""

    def __init__(self) -> None:
        self._by_worker: dict[str, tuple[Claimed, ...]] = {}
        # Two that add at the same moment, or one that adds while another settles: without this,
        # what one of them added would be forgotten, and held for as long as its worker lives.
        self._lock = threading.Lock()

    def of(self, worker: str) -> tuple[Claimed, ...]:
        return self._by_worker.get(worker, ())

    def add(self, worker: str, granted: Sequence[Claimed]) -> None:
        """With those of a round trip before, of which we have not heard either: only one of the
        two was carried out, and which the ledger will tell."""
        if granted:
            with self._lock:
                self._by_worker[worker] = (*self.of(worker), *granted)

    def settle(self, worker: str, looked: Sequence[Claimed]) -> None:
        """These were looked for, and what became of them is told. Another thread may have had no
        answer for the same worker since we looked: that is still unheard."""
        if not looked:
            return
        with self._lock:
            known = self._by_worker.pop(worker, ())
            left = tuple(one for one in known if not any(one is other for other in looked))
            if left:
                self._by_worker[worker] = left


def take_up(
    tx: Transaction, worker: str, unheard: Sequence[Claimed], room: int
) -> tuple[Claimed, ...]:
    """Those of them that were granted after all; what there is no room for is given back."""
    by_token = {one.token: one for one in unheard if _is_granted(tx, one, worker)}
    granted = list(by_token.values())
    # What was to follow others is given back, and what there is no room for any more.
    kept = [one for one in granted if not one.reserved][:room]
    back = [Finish(one.token, "returned") for one in granted if one not in kept]
    finishing.finish_all(tx, worker, "", back, lambda _, jobs: [])
    if back:
        tx.ring("work", "room")
    if not kept:
        # Its write may arrive yet, when we have looked and forgotten it: ours, whatever else is
        # in it, replaces the ledger that it asks for.
        leases.touch(tx, worker)
    return tuple(kept)


def _is_granted(tx: Transaction, claimed: Claimed, worker: str) -> bool:
    return tx.row(GRANTED, (claimed.token, worker, claimed.job, claimed.started_at)) is not None

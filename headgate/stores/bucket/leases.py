"""Leases: a worker lives as long as it renews its own, by the store's clock.

A renewal and the end of a lease are both entries of the ledger, one after the other: who takes a
worker away has seen that its last renewal is too old, or its own write is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.stores.protocol import NewWorker
from headgate.stores.sqlite.transaction import Transaction

TABLE = (
    "CREATE TABLE IF NOT EXISTS leases (worker TEXT PRIMARY KEY, seconds REAL NOT NULL,"
    " ends REAL NOT NULL) STRICT, WITHOUT ROWID"
)


class Leases:
    """Who is alive in the transaction that this thread has open."""

    def __init__(self, transaction: Callable[[], Transaction]) -> None:
        self._transaction = transaction

    def alive(self, worker: str) -> bool:
        tx = self._transaction()
        ends = tx.value("SELECT ends FROM leases WHERE worker = ?", (worker,))
        return ends is not None and ends > tx.now

    def forget(self, worker: str) -> None:
        """Its lease is deleted with it, in the same transaction; see `end`."""

    def keep_only(self, workers: set[str]) -> None:
        """Nothing is remembered."""

    def strays(self, workers: set[str]) -> list[str]:
        return []


def begin(tx: Transaction, worker: NewWorker) -> None:
    """Once more, if it was not told that it had begun."""
    tx.run(
        "INSERT OR REPLACE INTO leases (worker, seconds, ends) VALUES (?, ?, ?)",
        (worker.id, worker.lease, tx.now + worker.lease),
    )


def renew(tx: Transaction, worker: str) -> bool:
    """False: it has been taken away, or its lease ended and it will be."""
    done = tx.run(
        "UPDATE leases SET ends = ? + seconds WHERE worker = ? AND ends > ?",
        (tx.now, worker, tx.now),
    )
    return done.rowcount == 1


def touch(tx: Transaction, worker: str) -> None:
    """Change nothing, but so that it is written."""
    tx.run("UPDATE leases SET ends = ends WHERE worker = ?", (worker,))


def tidy(tx: Transaction) -> None:
    """Leases of workers that are not registered any more."""
    tx.run("DELETE FROM leases WHERE worker NOT IN (SELECT id FROM workers)")


def ends(tx: Transaction) -> dict[str, float]:
    return {row["worker"]: row["ends"] for row in tx.rows("SELECT worker, ends FROM leases")}

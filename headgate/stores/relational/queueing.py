"""Queues: an operator may pause one."""

from __future__ import annotations

from headgate.stores.relational.events import record
from headgate.stores.relational.transaction import Transaction
from headgate.stores.relational.values import changed


def pause(tx: Transaction, queue: str, paused: bool, by: str, reason: str) -> None:
    setting = {"name": queue, "paused": paused, "who": by, "reason": reason, "at": tx.now}
    tx.run(tx.sql.queues.put, setting)
    record(tx, "queue_paused" if paused else "queue_resumed", queue, by, reason=reason)
    changed(tx)  # who reserved jobs of this queue ahead hears of it like of a limit

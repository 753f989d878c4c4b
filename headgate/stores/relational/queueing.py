"""Queues: an operator may pause one."""

from __future__ import annotations

from headgate.stores.relational.events import record
from headgate.stores.relational.transaction import Transaction


def pause(tx: Transaction, queue: str, paused: bool, by: str, reason: str) -> None:
    setting = {"name": queue, "paused": paused, "who": by, "reason": reason, "at": tx.now}
    tx.run(tx.sql.queues.put, setting)
    record(tx, "queue_paused" if paused else "queue_resumed", queue, by, reason=reason)
    tx.ring("work")

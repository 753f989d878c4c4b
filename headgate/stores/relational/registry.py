"""Workers: who works here, and what becomes of those that are gone."""

from __future__ import annotations

import json
from collections.abc import Callable

from headgate.errors import StoreError
from headgate.stores.protocol import NewWorker, WorkerRecord
from headgate.stores.relational import finishing
from headgate.stores.relational.events import record
from headgate.stores.relational.transaction import Row, Transaction


def register(tx: Transaction, worker: NewWorker) -> bool:
    """Enter a worker. False: it stands there already, by its own hand: who was not told what became
    of its first call has called again."""
    there = tx.row(tx.sql.workers.known, {"worker": worker.id})
    if there is not None:
        own = (worker.name, worker.host, worker.pid)
        if (there["name"], there["host"], there["pid"]) != own:
            raise StoreError(
                f"the id {worker.id!r} is that of worker {there['name']!r} (process {there['pid']}"
                f" on {there['host'] or 'an unknown host'}): register each under an id of its own"
            )
        return False
    tx.run(
        tx.sql.workers.insert,
        {
            "id": worker.id,
            "name": worker.name,
            "keeper": worker.keeper,
            "host": worker.host,
            "pid": worker.pid,
            "queues": json.dumps(worker.queues),
            "serves": None if worker.serves is None else json.dumps(worker.serves),
            "tasks": json.dumps(worker.tasks),
            "concurrency": worker.concurrency,
            "started_at": tx.now,
            "lease": worker.lease,
            "boot_id": tx.boot_id,
        },
    )
    record(tx, "worker_started", worker.name, worker.id, pid=worker.pid, host=worker.host)
    return True


def mark(tx: Transaction, worker: str, state: str) -> None:
    """`stalled`, `stopping` or `alive`, for those who look."""
    tx.run(tx.sql.workers.mark, {"worker": worker, "state": state})
    record(tx, f"worker_{state}", known(tx, worker) or worker, worker)


def names(tx: Transaction) -> dict[str, str]:
    """All registered workers: id → name."""
    return {row["id"]: row["name"] for row in tx.rows(tx.sql.workers.names)}


def known(tx: Transaction, worker: str) -> str | None:
    """The name of a registered worker; None when it was taken away."""
    return tx.value(tx.sql.workers.known, {"worker": worker})


def declare_dead(
    tx: Transaction, worker: str, reason: str, started: frozenset[int] | None = None
) -> bool:
    """The keeper's word: it has ended all that belonged to this worker."""
    name = known(tx, worker)
    if name is not None:
        remove(tx, worker, name, reason, started)
    return name is not None


def remove(
    tx: Transaction,
    worker: str,
    name: str,
    reason: str,
    started: frozenset[int] | None = None,
) -> int:
    """Take a worker away; its attempts are lost. How many there were."""
    running = tx.rows(tx.sql.finish.running_of_worker, {"worker": worker})
    for row in running:
        finishing.lose(tx, row["token"], name, reason, started)
    tx.run(tx.sql.workers.delete, {"worker": worker})
    record(tx, "worker_lost", name, worker, reason=reason, attempts=len(running))
    tx.ring("work")
    return len(running)


def unregister(tx: Transaction, worker: str) -> bool:
    """A worker that ended in good order. What it still runs, it loses."""
    name = known(tx, worker)
    if name is None:
        return False
    if tx.row(tx.sql.finish.running_of_worker, {"worker": worker}) is not None:
        remove(tx, worker, name, "it ended without finishing this attempt")
    else:
        tx.run(tx.sql.workers.delete, {"worker": worker})
        record(tx, "worker_stopped", name, worker)
    return True


def records(tx: Transaction, alive: Callable[[Row], bool]) -> list[WorkerRecord]:
    """All workers, those that are gone and not yet taken away too."""
    counts = {row["worker"]: row["n"] for row in tx.rows(tx.sql.workers.running)}
    return [
        WorkerRecord(
            id=row["id"],
            name=row["name"],
            keeper=row["keeper"],
            host=row["host"],
            pid=row["pid"],
            queues=tuple(json.loads(row["queues"])),
            tasks=tuple(json.loads(row["tasks"])),
            concurrency=row["concurrency"],
            started_at=row["started_at"],
            state=row["state"] if alive(row) else "dead",
            running=counts.get(row["id"], 0),
            lease_ends=row["lease_ends"],
            serves=None if row["serves"] is None else tuple(json.loads(row["serves"])),
        )
        for row in tx.rows(tx.sql.workers.every)
    ]

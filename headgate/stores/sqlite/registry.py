"""Workers: who works here, and what becomes of those that are gone."""

from __future__ import annotations

import json

from headgate.stores.protocol import NewWorker, WorkerRecord
from headgate.stores.sqlite import finishing
from headgate.stores.sqlite.database import Transaction
from headgate.stores.sqlite.events import record
from headgate.stores.sqlite.liveness import Liveness

_INSERT = """
INSERT INTO workers (id, name, keeper, host, pid, queues, tasks, concurrency, started_at, state,
                     boot)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'alive', ?)
"""


def register(tx: Transaction, worker: NewWorker) -> None:
    tx.run(
        _INSERT,
        (worker.id, worker.name, worker.keeper, worker.host, worker.pid,
         json.dumps(worker.queues), json.dumps(worker.tasks), worker.concurrency, tx.now,
         tx.boot_id),
    )  # fmt: skip
    record(tx, "worker_started", worker.name, worker.id, pid=worker.pid, host=worker.host)


def names(tx: Transaction) -> dict[str, str]:
    """All registered workers: id → name."""
    return {row["id"]: row["name"] for row in tx.rows("SELECT id, name FROM workers")}


def reap(tx: Transaction, liveness: Liveness, workers: dict[str, str]) -> list[str]:
    """Take away every one of these whose lock is free: nobody of it is alive any more.

    This is part of each claim, so that no sweeper has to run before a free slot is free.
    """
    gone = [worker for worker in workers if not liveness.alive(worker)]
    for worker in gone:
        remove(tx, worker, workers[worker], "its processes are gone")
    return gone


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
) -> None:
    running = tx.rows(finishing.Q.running_of_worker, {"worker": worker})
    for row in running:
        finishing.lose(tx, row["token"], name, reason, started)
    tx.run("DELETE FROM workers WHERE id = ?", (worker,))
    record(tx, "worker_lost", name, worker, reason=reason, attempts=len(running))
    tx.ring("work")


def unregister(tx: Transaction, worker: str) -> bool:
    """A worker that ended in good order. What it still runs, it loses."""
    name = known(tx, worker)
    if name is None:
        return False
    if tx.row(finishing.Q.running_of_worker, {"worker": worker}) is not None:
        remove(tx, worker, name, "it ended without finishing this attempt")
    else:
        tx.run("DELETE FROM workers WHERE id = ?", (worker,))
        record(tx, "worker_stopped", name, worker)
    return True


def known(tx: Transaction, worker: str) -> str | None:
    """The name of a registered worker; None when it was taken away."""
    return tx.value("SELECT name FROM workers WHERE id = ?", (worker,))


def records(tx: Transaction, liveness: Liveness) -> list[WorkerRecord]:
    counts = {
        row["worker"]: row["n"]
        for row in tx.rows(
            "SELECT worker, count(*) AS n FROM running WHERE reserved = 0 GROUP BY worker"
        )
    }
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
            state=row["state"] if liveness.alive(row["id"]) else "dead",
            running=counts.get(row["id"], 0),
        )
        for row in tx.rows("SELECT * FROM workers ORDER BY started_at, id")
    ]

"""Telling a task of a job that will not run any more: lost, cancelled or expired for good."""

from __future__ import annotations

import json

import msgspec

from headgate.jobs import NewJob, State
from headgate.stores.protocol import TaskSpec
from headgate.stores.relational.transaction import Transaction


def aborts(state: State, reason: str) -> bool:
    """Is this an end that the code of the job did not come to by itself?"""
    return state == "cancelled" or (state == "failed" and reason == "lost")


def tell(tx: Transaction, job: int, state: State, reason: str) -> None:
    """Store a job that tells of this end, in the transaction that makes it so: the one is there
    if and only if the other is. Whether anybody wants to know is asked of the catalogue, so that
    jobs carry nothing for it."""
    row = tx.row(tx.sql.moves.who_wants_to_know, {"job": job})
    if row is None:
        return
    spec = msgspec.json.decode(row["spec"], type=TaskSpec)
    if spec.on_aborted is None:
        return
    told = {"job": row["id"], "state": state, "reason": reason}
    head = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
    tx.submit(
        [
            NewJob(
                task=spec.on_aborted,
                args=f'{head[:-1]},"args":{tx.whole(row["args"])}}}',
                queue=row["queue"] or spec.queue,  # one that nobody had stamped has none
                priority=row["priority"],
                turn=row["turn"],
                max_lost=spec.max_lost,
                parent=row["id"],
            )
        ]
    )

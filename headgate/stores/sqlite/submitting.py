"""From a submission to a stored job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.jobs import NewJob, Submitted
from headgate.stores.relational import inspecting, moves, values
from headgate.stores.relational.bodies import cells
from headgate.stores.relational.capping import HELD, to_text
from headgate.stores.relational.routing import conflict, digest_of
from headgate.stores.relational.succession import SUPERSEDED, settle
from headgate.stores.relational.transaction import Transaction
from headgate.stores.sqlite.capping import Verdict


def submit(tx: Transaction, jobs: Sequence[NewJob]) -> list[Submitted]:
    """Store all of them, or none. A repeated idempotency key meets its earlier job."""
    moves.promote(tx)  # what is due by now stands before what is submitted now
    places = tx.numbers("place", len(jobs)) if jobs else ()
    results = [_submit_one(tx, job, n) for job, n in zip(jobs, places, strict=True)]
    tx.ring("work")
    return results


def _submit_one(tx: Transaction, job: NewJob, n: int) -> Submitted:
    digest = ""
    if job.idempotency_key is not None:
        digest = digest_of(job.args)
        known = tx.row(tx.sql.submit.idempotent, {"key": job.idempotency_key})
        if known is not None:
            if known["digest"] != digest or own_name(tx, known["task"]) != own_name(tx, job.task):
                raise conflict(job.idempotency_key, known["id"])
            return Submitted(known["id"], existing=True)
    elif tx.row(tx.sql.submit.id_exists, {"id": job.id}) is not None:
        return Submitted(job.id, existing=True)  # the same submit again, after a lost answer

    verdict = Verdict(tx, job) if job.caps else None
    if verdict is not None and (verdict.refused or verdict.existing):
        return Submitted(verdict.existing or job.id, bool(verdict.existing), verdict.refused)
    if job.idempotency_key is not None:
        key = {"key": job.idempotency_key, "job": n, "digest": digest}
        tx.run(tx.sql.submit.insert_idempotency, key)
    due = job.run_at if job.run_at is not None else tx.now + max(0.0, job.delay)
    waits = due > tx.now
    row: dict[str, Any] = {
        **cells(job),
        "n": n,
        "id": job.id,
        "created_at": tx.now,
        "run_at": due if waits else None,
        "expires": job.expires,
        "expires_at": None if job.expires is None else due + job.expires,
        "idempotency_key": job.idempotency_key,
        "parent": job.parent,
        "caps": to_text(job.caps),
        "since": tx.now,
    }
    tx.run(tx.sql.submit.insert_job, row)
    for group, value in job.carried:
        values.carry(tx, group, value)
    if verdict is not None and verdict.after:
        _hold(tx, n, job.id, verdict)
    elif not job.routed:
        tx.run(tx.sql.submit.insert_unrouted, row)
    elif waits:
        moves.schedule(tx, n, due, 0, keeps_place=False, reason="delayed")
    else:
        tx.run(tx.sql.submit.insert_ready, row)
    return Submitted(job.id)


def _hold(tx: Transaction, n: int, id: str, verdict: Verdict) -> None:
    """It stands for others: what can be done about them is done at once."""
    tx.run(tx.sql.submit.insert_unrouted, {"task": HELD, "n": n})
    for other, (kind, group) in verdict.after.items():
        held = {"job": id, "after": other, "kind": kind, "grp": group}
        tx.run(tx.sql.caps.insert_held, held)
        if kind == "cancel":
            inspecting.cancel(tx, other, f"job {id}", SUPERSEDED)
    settle(tx, id)


def own_name(tx: Transaction, task: str) -> str:
    """The task's own name, where it is known by this one too: a job that was submitted under
    an alias got its own name when it was stamped."""
    return tx.value(tx.sql.submit.own_name, {"task": task}) or task

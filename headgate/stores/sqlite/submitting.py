"""From a submission to a stored job; the stamp of jobs submitted by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from headgate.errors import IdempotencyConflict, StoreError
from headgate.jobs import NewJob, Routing, Submitted, Unrouted
from headgate.limits import band_of, lane_of
from headgate.stores.sqlite import moves, values
from headgate.stores.sqlite.database import Transaction
from headgate.stores.sqlite.queries import Queries

Q = Queries("submit")


def submit(tx: Transaction, jobs: Sequence[NewJob]) -> list[Submitted]:
    """Store all of them, or none. A repeated idempotency key meets its earlier job."""
    moves.promote(tx)  # what is due by now stands before what is submitted now
    first = tx.next("place", len(jobs)) if jobs else 0
    results = [_submit_one(tx, job, first + i) for i, job in enumerate(jobs)]
    tx.ring("work")
    return results


def _submit_one(tx: Transaction, job: NewJob, n: int) -> Submitted:
    if job.idempotency_key is not None:
        digest = digest_of(job.args)
        known = tx.row(Q.idempotent, {"key": job.idempotency_key})
        if known is not None:
            if known["digest"] != digest or own_name(tx, known["task"]) != own_name(tx, job.task):
                raise IdempotencyConflict(
                    f"idempotency key {job.idempotency_key!r} belongs to job {known['id']}, which"
                    " has another task or other arguments; use a new key for new work"
                )
            return Submitted(known["id"], existing=True)
        tx.run(Q.insert_idempotency, {"key": job.idempotency_key, "job": n, "digest": digest})
    elif tx.row(Q.id_exists, {"id": job.id}) is not None:
        return Submitted(job.id, existing=True)  # the same submit again, after a lost answer

    due = job.run_at if job.run_at is not None else tx.now + max(0.0, job.delay)
    waits = due > tx.now
    row: dict[str, Any] = {
        "n": n,
        "id": job.id,
        "task": job.task,
        "queue": job.queue if job.routed else "",
        "priority": job.priority,
        "band": band_of(job.task, job.needs, job.fair_limit) if job.routed else "",
        "turn": job.turn,
        "lane": lane_of(job.needs),
        "args": job.args,
        "options": job.options,
        "needs": job.needs.to_json(),
        "created_at": tx.now,
        "run_at": due if waits else None,
        "expires": job.expires,
        "expires_at": None if job.expires is None else due + job.expires,
        "max_lost": job.max_lost,
        "idempotency_key": job.idempotency_key,
        "parent": job.parent,
        "since": tx.now,
    }
    tx.run(Q.insert_job, row)
    for group, value in job.carried:
        values.carry(tx, group, value)
    if not job.routed:
        tx.run(Q.insert_unrouted, row)
    elif waits:
        moves.schedule(tx, n, due, 0, keeps_place=False, reason="delayed")
    else:
        tx.run(Q.insert_ready, row)
    return Submitted(job.id)


def digest_of(args: str) -> str:
    """The same for the same arguments, in whatever order they were named."""
    plain = json.dumps(json.loads(args, parse_float=str), sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()


def own_name(tx: Transaction, task: str) -> str:
    """The task's own name, where it is known by this one too: a job that was submitted under
    an alias got its own name when it was stamped."""
    return tx.value(Q.own_name, {"task": task}) or task


# --- the stamp ---------------------------------------------------------------------------------


def unrouted_tasks(tx: Transaction) -> set[str]:
    return {row["task"] for row in tx.rows(Q.unrouted_tasks)}


def unrouted(tx: Transaction, tasks: frozenset[str], limit: int) -> list[Unrouted]:
    found: list[Unrouted] = []
    for task in sorted(unrouted_tasks(tx) & tasks):
        rows = tx.rows(Q.unrouted, {"task": task, "limit": limit - len(found)})
        found += [Unrouted(r["id"], r["task"], r["args"], r["options"]) for r in rows]
        if len(found) >= limit:
            break
    return found


def route(tx: Transaction, routings: Sequence[Routing]) -> int:
    """Put jobs into line. One that somebody else stamped meanwhile is left as it is."""
    return sum(_route_one(tx, routing) for routing in routings)


def _route_one(tx: Transaction, routing: Routing) -> bool:
    job = tx.row(Q.unrouted_job, {"id": routing.job})
    if job is None:
        return False
    tx.run(Q.delete_unrouted, {"task": job["task"], "job": job["n"]})
    if routing.error is not None:
        moves.conclude(tx, job["n"], "failed", "unroutable", error=moves.plain_error(routing.error))
        return True
    task = routing.task or job["task"]
    due = job["run_at"] if job["run_at"] is not None else job["created_at"]
    stamped: dict[str, Any] = {
        "n": job["n"],
        "task": task,
        "queue": routing.queue,
        "priority": routing.priority,
        "band": band_of(task, routing.needs, routing.fair_limit),
        "turn": routing.turn,
        "lane": lane_of(routing.needs),
        "needs": routing.needs.to_json(),
        "expires": routing.expires,
        "expires_at": None if routing.expires is None else due + routing.expires,
        "max_lost": routing.max_lost,
        "since": tx.now,
    }
    if tx.run(Q.stamp, stamped).rowcount != 1:
        raise StoreError(f"job {routing.job} vanished while it was routed")
    if due > tx.now:
        moves.schedule(tx, job["n"], due, 0, keeps_place=False, reason="delayed")
    else:
        tx.run(Q.insert_ready, stamped)
    tx.ring("work")
    return True

"""The stamp of jobs that were submitted by name; what a submission is compared by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from headgate.errors import IdempotencyConflict, StoreError
from headgate.jobs import Routing, Unrouted
from headgate.limits import band_of, lane_of
from headgate.stores.relational import moves, values
from headgate.stores.relational.transaction import Transaction


def digest_of(args: str) -> str:
    """The same for the same arguments, in whatever order they were named."""
    plain = json.dumps(json.loads(args, parse_float=str), sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()


def conflict(key: str, id: str) -> IdempotencyConflict:
    return IdempotencyConflict(
        f"idempotency key {key!r} belongs to job {id}, which has another task or other"
        " arguments; use a new key for new work"
    )


def unrouted_tasks(tx: Transaction) -> set[str]:
    return {row["task"] for row in tx.rows(tx.sql.route.unrouted_tasks)}


def unrouted(tx: Transaction, tasks: frozenset[str], limit: int) -> list[Unrouted]:
    found: list[Unrouted] = []
    for task in sorted(unrouted_tasks(tx) & tasks):
        params = {"task": task, "limit": limit - len(found)}
        rows = tx.rows(tx.sql.route.unrouted, params)
        found += [Unrouted(r["id"], r["task"], r["args"], r["options"]) for r in rows]
        if len(found) >= limit:
            break
    return found


def route(tx: Transaction, routings: Sequence[Routing]) -> int:
    """Put jobs into line. One that somebody else stamped meanwhile is left as it is."""
    routed = [routing for routing in routings if _route_one(tx, routing)]
    carried = {group: value for one in reversed(routed) for group, value in one.carried}
    for group in sorted(carried):  # in one order, so that no two wait in a circle
        values.carry(tx, group, carried[group])
    return len(routed)


def _route_one(tx: Transaction, routing: Routing) -> bool:
    job = tx.row(tx.sql.route.unrouted_job, {"id": routing.job})
    if job is None:
        return False
    # The row that is deleted decides: of two who stamp the same job, one finds it gone.
    params = {"task": job["task"], "job": job["n"]}
    if tx.run(tx.sql.route.delete_unrouted, params).rowcount == 0:
        return False
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
    }
    if tx.run(tx.sql.route.stamp, stamped).rowcount != 1:
        raise StoreError(f"job {routing.job} vanished while it was routed")
    if due > tx.now:
        moves.schedule(tx, job["n"], due, 0, keeps_place=False, reason="delayed")
    else:
        moves.back(tx, job["n"], 0)
    tx.ring("work")
    return True

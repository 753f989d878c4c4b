"""Looking at the whole: queues, why a job waits, what is left for a burst."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headgate.choice import LaneKey
from headgate.claim import Block, Room
from headgate.limits import Band, Needs, needs_of
from headgate.stores.protocol import LimitRecord, QueueRecord, Why, WorkerRecord
from headgate.stores.relational import cataloguing, orphans
from headgate.stores.relational.inspecting import job_row, to_record
from headgate.stores.relational.lines import list_lines
from headgate.stores.relational.routing import unrouted_tasks
from headgate.stores.relational.transaction import Row, Transaction
from headgate.stores.relational.values import Values, limit_record, limit_records, slot_records

BOUND = 10_000
_LANE = ("queue", "priority", "band", "turn", "lane", "place", "n")


def queues(tx: Transaction) -> list[QueueRecord]:
    waiting = set(list_lines(tx))
    running = {row["queue"]: row["n"] for row in tx.rows(tx.sql.look.queue_running)}
    reserved = {row["queue"]: row["n"] for row in tx.rows(tx.sql.look.queue_reserved)}
    scheduled = {r["queue"]: r["n"] for r in tx.rows(tx.sql.look.queue_scheduled, {"limit": BOUND})}
    settings = {row["name"]: row for row in tx.rows(tx.sql.queues.every)}
    names = waiting | set(running) | set(reserved) | set(scheduled) | set(settings)
    found: list[QueueRecord] = []
    for name in sorted(names):
        params = {"queue": name, "limit": BOUND}
        count = min(BOUND, tx.value(tx.sql.look.queue_waiting, params) + reserved.get(name, 0))
        setting = settings.get(name)
        found.append(
            QueueRecord(
                name=name,
                paused=bool(setting and setting["paused"]),
                waiting=count,
                running=running.get(name, 0),
                scheduled=scheduled.get(name, 0),
                oldest_ready_at=tx.value(tx.sql.look.queue_oldest, params),
                bounded=count >= BOUND,
                paused_by=setting["who"] if setting and setting["paused"] else "",
            )
        )
    return found


def why(tx: Transaction, everyone: Callable[[Transaction], Sequence[WorkerRecord]], id: str) -> Why:
    """Why a job is where it is: the first cause that keeps it from starting."""
    row = job_row(tx, id)
    job = to_record(row)
    if job.done:
        return Why(job, "done")
    if job.state == "running":
        slots = [slot for group in job.groups for slot in slot_records(tx, group)]
        mine = tuple(slot for slot in slots if slot.token == job.token)
        return Why(job, "cancelling" if job.cancel_requested else "running", holders=mine)
    workers = [worker for worker in everyone(tx) if worker.state != "dead"]
    if job.state == "scheduled":
        return Why(job, "retry" if job.reason == "retry" else "scheduled", until=job.run_at)
    if row["reserved"]:
        worker = row["worker_name"] or row["worker"]
        return Why(job, "turn", detail=f"worker {worker} has it reserved and starts it next")
    if not row["band"]:
        known = any(job.task in worker.tasks for worker in workers)
        return Why(job, "unrouted", detail="" if known else "no live worker knows the task")
    ahead = tx.value(tx.sql.jobs.ahead, {column: row[column] for column in _LANE})
    place = {"ahead": min(ahead, 1000), "ahead_bounded": ahead > 1000}
    paused = tx.row(tx.sql.queues.paused, {"queue": job.queue})
    if paused is not None:
        detail = ": ".join(part for part in (paused["who"], paused["reason"]) if part)
        return Why(job, "queue-paused", detail=detail, **place)
    block, groups = blocked_by(tx, job.needs, _lane_text(row), _carried(row))
    if block is not None:
        code = {
            "full": "limit-full", "zero": "limit-zero", "paused": "limit-paused",
            "missing": "limit-missing", "reserved": "reserved", "too-wide": "too-wide",
        }[block.cause]  # fmt: skip
        holders = tuple(slot for group in groups for slot in slot_records(tx, group.group))
        detail = ""
        if block.cause == "reserved":
            detail = tx.value(tx.sql.look.reserver, {"grp": block.group})
        return Why(job, code, groups=groups, holders=holders, detail=detail or "", **place)
    if not any(job.task in worker.tasks for worker in workers):
        detail = "" if workers else "no worker is running"
        return Why(job, "unknown-task", detail=detail, **place)
    serving = [
        w for w in workers if job.task in w.tasks and (not w.queues or job.queue in w.queues)
    ]
    if not serving:
        return Why(job, "no-worker", **place)
    return Why(job, "turn", detail=_busy(serving), **place)


def _lane_text(row: Row) -> str:
    return LaneKey(row["queue"], row["priority"], row["band"], row["turn"], row["lane"]).text


def _carried(row: Row) -> Mapping[str, int | None]:
    """The values that the job brought, where it is left to the first claim to record them."""
    return dict(json.loads(row["carried"] or "[]"))


def _busy(workers: list[WorkerRecord]) -> str:
    room = sum(max(0, w.concurrency - w.running) for w in workers)
    return "" if room else "all workers that could run it are busy"


def blocked_by(
    tx: Transaction, needs: Needs, lane: str, carried: Mapping[str, int | None]
) -> tuple[Block | None, tuple[LimitRecord, ...]]:
    """What stands in the way of these needs now, with every group that is part of it."""
    values = Values(tx, carried=carried)
    room = Room(values.group)
    plan = room.plan(needs, lane)
    if not isinstance(plan, Block):
        return None, ()
    names = [n.group for n in needs.all if room.group(n.group).refuses(n.units, lane)]
    if not names:
        for members in needs.one_of:
            if all(room.group(m.group).refuses(m.units, lane) for m in members):
                names += [m.group for m in members]
    return plan, tuple(limit_record(tx, values, name) for name in dict.fromkeys(names))


def remaining(
    tx: Transaction,
    tasks: frozenset[str],
    queues: tuple[str, ...] | None,
    closed: frozenset[str],
) -> int:
    """Jobs that a worker of these tasks and queues could still run (see the protocol)."""
    paused = {row["name"] for row in tx.rows(tx.sql.queues.every) if row["paused"]} | closed
    room = Room(Values(tx).group)

    def mine(task: str, queue: str) -> bool:
        return task in tasks and queue not in paused and (queues is None or queue in queues)

    count = len(unrouted_tasks(tx) & tasks)
    count += sum(mine(row["task"], row["queue"]) for row in tx.rows(tx.sql.look.running_tasks))
    for sql in (tx.sql.look.retrying, tx.sql.look.due_tasks):
        for row in tx.rows(sql, {"now": tx.now} if sql is tx.sql.look.due_tasks else ()):
            needs = needs_of(row["band"], row["lane"])
            count += mine(row["task"], row["queue"]) and not shut_off(room, needs)
    for queue, priorities in list_lines(tx).items():
        for priority, bands in priorities.items():
            for band in bands:
                if mine(Band.parse(band).task, queue):
                    where = {"queue": queue, "priority": priority, "band": band}
                    lanes = tx.rows(tx.sql.look.band_lanes, where)
                    count += sum(not shut_off(room, needs_of(band, r["lane"])) for r in lanes)
    return count


def shut_off(room: Room, needs: Needs) -> bool:
    """Paused, at 0 or without a value: nothing that ends or finishes will open it."""

    def shut(group: str, units: int) -> bool:
        state = room.group(group)
        fits = state.value is None or units <= state.value
        return state.paused or state.missing or not fits

    if any(shut(need.group, need.units) for need in needs.all):
        return True
    return any(all(shut(m.group, m.units) for m in members) for members in needs.one_of)


def groups(tx: Transaction) -> list[str]:
    """Every group with something of its own: a value, an override, a holder."""
    return sorted({*Values(tx).names(), *(row["grp"] for row in tx.rows(tx.sql.look.groups))})


def limits(tx: Transaction) -> list[LimitRecord]:
    """Limits and groups, the busiest keys of keyed limits included (those that hold)."""
    keyed = {
        use.name
        for spec in cataloguing.every(tx)
        for use in (*spec.limits, *(member for members in spec.one_of for member in members))
        if use.key is not None or use.callable
    }
    orphaned = orphans.orphaned_limits(tx)
    return [
        replace(record, keyed=record.group in keyed, orphaned=record.group in orphaned)
        for record in limit_records(tx, groups(tx)).values()
    ]

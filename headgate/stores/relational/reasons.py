"""Why a job is where it is: the first cause that keeps it from starting, as facts.

All looks are bounded: what stands before a job is counted up to 1,000, how long jobs of its task
take is read from the last few hundred that ended.
"""

from __future__ import annotations

import heapq
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headgate.choice import LaneKey
from headgate.claim import Block, Room
from headgate.jobs import JobRecord
from headgate.limits import Needs
from headgate.stores.protocol import LimitRecord, SlotRecord, Why, WorkerRecord
from headgate.stores.relational import rating
from headgate.stores.relational.inspecting import job_row, to_record
from headgate.stores.relational.lines import list_lanes, list_lines
from headgate.stores.relational.oddities import serving_workers
from headgate.stores.relational.transaction import Row, Transaction
from headgate.stores.relational.values import Values, limit_record, slot_records

BOUND = 1000
ENOUGH = 3
"""So many ends of a task at least, and its next may be estimated from them."""
CODES: Mapping[str, str] = {
    "full": "limit-full",
    "rate": "rate-full",
    "zero": "limit-zero",
    "paused": "limit-paused",
    "missing": "limit-missing",
    "reserved": "reserved",
    "too-wide": "too-wide",
}
_SHOWN = 3
_LANE = ("queue", "priority", "band", "turn", "lane", "place", "n")


def why(tx: Transaction, everyone: Callable[[Transaction], Sequence[WorkerRecord]], id: str) -> Why:
    row = job_row(tx, id)
    job = to_record(row)
    if job.done:
        return Why(job, "done")
    if job.state == "running":
        slots = [slot for group in job.groups for slot in slot_records(tx, group)]
        mine = [slot for slot in slots if slot.token == job.token]
        code = "cancelling" if job.cancel_requested else "running"
        return Why(job, code, holders=_leased(mine, everyone(tx)))
    if job.state == "scheduled":
        code = "retry" if job.reason == "retry" else "scheduled"
        return Why(job, code, until=job.run_at, estimated_start=job.run_at)
    ahead_of = tx.row(tx.sql.look.stands_for, {"id": id})
    if ahead_of is not None:
        detail = f"job {ahead_of['after']} of {ahead_of['grp']} has to leave first"
        return Why(job, "cap", detail=detail)
    workers = [worker for worker in everyone(tx) if worker.state != "dead"]
    if row["reserved"]:
        worker = row["worker_name"] or row["worker"]
        return Why(job, "turn", detail=f"worker {worker} has it reserved and starts it next")
    if not row["band"]:
        known = any(job.task in worker.tasks for worker in workers)
        return Why(job, "unrouted", detail="" if known else "no live worker knows the task")
    return _waiting(tx, row, job, workers)


def _waiting(tx: Transaction, row: Row, job: JobRecord, workers: list[WorkerRecord]) -> Why:
    """It stands in line."""
    ahead = tx.value(tx.sql.jobs.ahead, {column: row[column] for column in _LANE})
    place: dict[str, Any] = {"ahead": min(ahead, BOUND), "ahead_bounded": ahead > BOUND}
    paused = tx.row(tx.sql.queues.paused, {"queue": job.queue})
    if paused is not None:
        detail = ": ".join(part for part in (paused["who"], paused["reason"]) if part)
        return Why(job, "queue-paused", detail=detail, **place)
    serving = serving_workers(workers, job.task, job.queue)
    needs = _served(job.needs, serving)
    block, groups = blocked_by(tx, needs or job.needs, _lane_text(row), _carried(row))
    if block is not None and needs is not None:
        return _blocked(tx, job, block, groups, workers, place)
    if not any(job.task in worker.tasks for worker in workers):
        detail = "" if workers else "no worker is running"
        return Why(job, "unknown-task", detail=detail, **place)
    if not serving:
        return Why(job, "no-worker", **place)
    if needs is None:
        return Why(job, "no-group", detail=_unserved(job.needs, serving), **place)
    room = sum(max(0, w.concurrency - w.running) for w in serving)
    before, bounded = _before(tx, job)
    place |= {"turns": _turns(tx, job), **_estimate(tx, job, serving, place["ahead"])}
    detail = "" if room else "all workers that could run it are busy"
    if before and not room:
        place |= {"before": before, "before_bounded": bounded}
        return Why(job, "priority", detail=detail, **place)
    return Why(job, "turn", detail=detail, **place)


def _served(needs: Needs, serving: Sequence[WorkerRecord]) -> Needs | None:
    """The needs with those members of each one-of only that somebody who is there would pick;
    None: of one of them there is none. Where nobody is there at all, as they are."""
    if not needs.one_of or not serving or any(worker.serves is None for worker in serving):
        return needs
    picked = {name for worker in serving for name in worker.serves or ()}
    left = tuple(tuple(n for n in members if n.name in picked) for members in needs.one_of)
    return replace(needs, one_of=left) if all(left) else None


def _unserved(needs: Needs, serving: Sequence[WorkerRecord]) -> str:
    """The groups that it could run in, and who would run it in another."""
    wanted = sorted({n.group for members in needs.one_of for n in members})
    there = sorted(f"{w.name} serves {', '.join(w.serves or ()) or 'none'}" for w in serving)
    more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    return f"{', '.join(wanted)} ({'; '.join(there[:_SHOWN])}{more})"


def _blocked(
    tx: Transaction,
    job: JobRecord,
    block: Block,
    groups: tuple[LimitRecord, ...],
    workers: Sequence[WorkerRecord],
    place: dict[str, Any],
) -> Why:
    held = [slot for group in groups for slot in slot_records(tx, group.group)]
    holders = _leased(held, workers)
    detail, until = "", None
    if block.cause == "reserved":
        detail = tx.value(tx.sql.look.reserver, {"grp": block.group}) or ""
    elif block.cause == "full":
        # When the first of those slots ends by itself, if any does.
        until = min((s.expires_at for s in held if not s.job and s.expires_at), default=None)
        place |= _estimate_full(tx, job, groups, held, place["ahead"])
    elif block.cause == "rate":
        opened = [rating.opens(group, place["ahead"]) for group in groups]
        until = max((group.opens_at for group in groups if group.opens_at), default=None)
        place |= {"estimated_start": max((at for at in opened if at is not None), default=None)}
    elif block.cause == "paused":
        ends = [group.pause.until for group in groups if group.pause is not None]
        until = max((end for end in ends if end is not None), default=None)
        until = None if None in ends else until
    return Why(
        job, CODES[block.cause], groups=groups, holders=holders, detail=detail, until=until, **place
    )


def _leased(slots: Sequence[SlotRecord], workers: Sequence[WorkerRecord]) -> tuple[SlotRecord, ...]:
    """Each with the end of what it lives by: its own lease, else its worker's."""
    ends = {worker.id: worker.lease_ends for worker in workers}
    return tuple(
        replace(slot, lease_ends=slot.expires_at or ends.get(slot.worker_id or ""))
        for slot in slots
    )


def _lane_text(row: Row) -> str:
    return LaneKey(row["queue"], row["priority"], row["band"], row["turn"], row["lane"]).text


def _carried(row: Row) -> Mapping[str, int | None]:
    """The values that the job brought, where it is left to the first claim to record them."""
    return dict(json.loads(row["carried"] or "[]"))


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


# --- who is before it ---------------------------------------------------------------------------


def _before(tx: Transaction, job: JobRecord) -> tuple[int, bool]:
    """Ready jobs of its queue with a better priority, and whether there are more."""
    count = tx.value(tx.sql.look.before, {"queue": job.queue, "priority": job.priority})
    return min(count, BOUND), count > BOUND


def _turns(tx: Transaction, job: JobRecord) -> int:
    """Fairness keys with ready jobs of its queue and priority, its own included; bounded by what
    a look at each band shows."""
    bands = list_lines(tx).get(job.queue, {}).get(job.priority, [])
    found: set[str] = set()
    for band in bands[:BOUND]:
        found |= {turn for turn, _ in list_lanes(tx, job.queue, job.priority, band)}
        if len(found) >= BOUND:
            break
    return min(len(found), BOUND)


# --- when it may start --------------------------------------------------------------------------


def _typical(tx: Transaction, task: str) -> tuple[float | None, int]:
    """How long a job of this task takes: the median of the last that ended well, and of how
    many it is."""
    took = [max(0.0, row["took"]) for row in tx.rows(tx.sql.look.durations, {"task": task})]
    return (statistics.median(took) if len(took) >= ENOUGH else None), len(took)


def _estimate_full(
    tx: Transaction,
    job: JobRecord,
    groups: Sequence[LimitRecord],
    held: Sequence[SlotRecord],
    ahead: int,
) -> dict[str, Any]:
    """At the earliest: if what holds the group takes as long as jobs of this task do, and only
    those before it in its lane come first."""
    typical, measured = _typical(tx, job.task)
    facts: dict[str, Any] = {"typical": typical, "measured": measured}
    starts: list[float] = []
    for group in groups:
        mine = [slot for slot in held if slot.group == group.group]
        if typical is None or not mine or not group.value:
            return facts
        ends = [_end(slot, tx.now, typical) for slot in mine]
        starts.append(nth_start(tx.now, ends, max(0, len(mine) - group.value), ahead, typical))
    return {**facts, "estimated_start": max(starts, default=None)}


def _end(slot: SlotRecord, now: float, typical: float) -> float:
    if not slot.job and slot.expires_at is not None:
        return slot.expires_at
    # What has run for longer than others do may well run for as long again.
    runs = now - slot.since
    return slot.since + typical if runs < typical else now + runs


def nth_start(now: float, ends: Sequence[float], excess: int, ahead: int, takes: float) -> float:
    """When a place is free for who has `ahead` others before it: places become free at `ends`,
    the first `excess` of them are not given again, and each who comes takes so long.

    >>> nth_start(0.0, [1.0, 2.0], 0, 0, 5.0), nth_start(0.0, [1.0, 2.0], 0, 2, 5.0)
    (1.0, 6.0)
    """
    places = [max(now, end) for end in ends]
    heapq.heapify(places)
    for _ in range(min(excess, len(places) - 1)):
        heapq.heappop(places)
    for _ in range(ahead):
        heapq.heapreplace(places, places[0] + takes)
    return places[0]


def _estimate(
    tx: Transaction, job: JobRecord, serving: Sequence[WorkerRecord], ahead: int
) -> dict[str, Any]:
    """At the earliest, where what it needs is free: by the room of workers, and of its groups
    for those before it."""
    typical, measured = _typical(tx, job.task)
    facts: dict[str, Any] = {"typical": typical, "measured": measured}
    free = sum(max(0, w.concurrency - w.running) for w in serving)
    places = sum(w.concurrency for w in serving)
    values = Values(tx, reservations=False)
    for one in job.needs.all:
        group = values.group(one.group)
        if group.value is not None:
            places = min(places, group.value // one.units)
            free = min(free, group.free() // one.units)
    if free > ahead:
        return {**facts, "estimated_start": tx.now}
    if typical is None or not places:
        return facts
    # Of what runs there nobody knows how far it is: as a rule half of it is over.
    ends = [tx.now] * free + [tx.now + typical / 2] * (places - free)
    ends = ends[: 10 * BOUND]
    return {**facts, "estimated_start": nth_start(tx.now, ends, 0, ahead, typical)}

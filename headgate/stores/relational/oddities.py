"""What looks wrong, though the tables agree: for `doctor` and `concurrency status`.

Every look is bounded: it names what it finds first, not all there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headgate.choice import LaneKey
from headgate.claim import Block, Room
from headgate.limits import Band, needs_of
from headgate.stores.protocol import Trouble, WorkerRecord
from headgate.stores.relational import orphans
from headgate.stores.relational.lines import list_heads, list_lines
from headgate.stores.relational.transaction import Row, Transaction
from headgate.stores.relational.values import Values
from headgate.why import age

LANES = 500
"""Lanes whose first job is looked at."""
SHOWN = 20


def find(tx: Transaction, workers: Sequence[WorkerRecord], older: float) -> list[Trouble]:
    """What looks wrong; jobs that waited for more than `older` seconds count as waiting long."""
    return [
        *_workers(workers),
        *_overdue(tx),
        *_waiting(tx, [worker for worker in workers if worker.state == "alive"], older),
        *_disagreements(tx),
        *_orphans(tx),
        *_late_schedules(tx, older),
    ]


def _workers(workers: Sequence[WorkerRecord]) -> Iterator[Trouble]:
    for worker in workers:
        name = f"worker {worker.name} ({worker.host}, pid {worker.pid})"
        if worker.state == "dead":
            yield Trouble(
                "expired-lease",
                f"{name} is gone; its {worker.running} attempts are lost and its slots are free at"
                " the next claim",
            )
        elif worker.state == "stalled":
            yield Trouble("stalled-worker", f"{name} does not answer; it runs {worker.running}")


def _overdue(tx: Transaction) -> Iterator[Trouble]:
    for row in tx.rows(tx.sql.look.overdue)[:SHOWN]:
        yield Trouble(
            "overdue-attempt",
            f"job {row['id']} of task {row['task']} on worker {row['worker']}: {row['overdue']};"
            " its code could not be stopped and keeps its slots",
        )


def _waiting(tx: Transaction, workers: Sequence[WorkerRecord], older: float) -> Iterator[Trouble]:
    """Jobs that could start and do not, or that nobody would start."""
    paused = {row["name"] for row in tx.rows(tx.sql.queues.every) if row["paused"]}
    room = Room(Values(tx).group)
    looks, shown = LANES, 0
    for queue, priorities in list_lines(tx).items():
        if queue in paused:
            continue
        for priority, bands in priorities.items():
            for text in bands:
                band = Band.parse(text)
                serving = serving_workers(workers, band.task, queue)
                free = [worker for worker in serving if worker.running < worker.concurrency]
                if serving and (not free or room.blocks_band(band)):
                    continue  # all are busy, or a limit is full: waiting is what is to be done
                for head in list_heads(tx, queue, priority, text, looks if serving else 1):
                    looks -= 1
                    if looks < 0 or shown >= SHOWN:
                        return
                    key = LaneKey(queue, priority, text, head["turn"], head["lane"])
                    trouble = _lane(tx.now, room, key, head, free, older)
                    if trouble is not None:
                        shown += 1
                        yield trouble
                if not looks:
                    return


def _lane(
    now: float,
    room: Room,
    key: LaneKey,
    head: Row,
    free: Sequence[WorkerRecord],
    older: float,
) -> Trouble | None:
    if head["since"] > now - older:
        return None
    task, waited = Band.parse(key.band).task, now - head["since"]
    job = f"job {head['id']} of task {task} has waited in queue {key.queue} for {age(waited)}"
    if not free:
        return Trouble("unserved", f"{job}, and no worker that is there would take it")
    needs = needs_of(key.band, key.lane)
    if isinstance(room.plan(needs, key.text), Block):
        return None
    groups = ", ".join(dict.fromkeys(need.group for need in needs)) or "nothing"
    return Trouble(
        "free-with-waiters",
        f"{job} though what it needs ({groups}) is free and worker {free[0].name} has room;"
        f" see headgate jobs why {head['id']}",
    )


def serving_workers(workers: Sequence[WorkerRecord], task: str, queue: str) -> list[WorkerRecord]:
    """Those that would take a job of this task from this queue."""
    return [w for w in workers if task in w.tasks and (not w.queues or queue in w.queues)]


def _disagreements(tx: Transaction) -> Iterator[Trouble]:
    # During a deployment those before are gone, and their word is dropped in a while.
    gone = {r["declarer"] for r in tx.rows(tx.sql.orphans.declarers) if r["gone"] is not None}
    for name, rows in sorted(Values(tx, reservations=False).words.declared.items()):
        live = [row for row in rows if row["declarer"] not in gone]
        others = [
            f"{row['declarer']} says {_number(row['value'])}"
            for row in live
            if row["source"] == live[0]["source"] and row["value"] != live[0]["value"]
        ]
        if others:
            yield Trouble(
                "disagreement",
                f"limit {name}: {_number(live[0]['value'])} counts by the declarations, but"
                f" {', '.join(others[:SHOWN])}",
            )


def _number(value: int | None) -> str:
    return "unlimited" if value is None else f"{value:,}"


def _orphans(tx: Transaction) -> Iterator[Trouble]:
    for name in sorted(orphans.orphaned_limits(tx))[:SHOWN]:
        yield Trouble(
            "orphaned-limit",
            f"limit {name}: no worker that is there declares it any more; it is forgotten"
            f" {orphans.FORGET_AFTER / 86400:.0f} days after the last one went, when nothing"
            " needs it",
        )
    for name, gone in list(orphans.orphaned_tasks(tx))[:SHOWN]:
        yield Trouble(
            "orphaned-task",
            f"task {name}: no worker that is there has known it for {age(tx.now - gone)}",
        )


def _late_schedules(tx: Transaction, older: float) -> Iterator[Trouble]:
    params = {"now": tx.now - older, "limit": SHOWN, "without": "[]"}
    for row in tx.rows(tx.sql.schedules.due, params):
        late = tx.now - (row["next_at"] if row["planned"] else row["since"])
        if late >= older:
            yield Trouble(
                "late-schedule",
                f"schedule {row['name']} is due since {age(late)} and nobody has ticked it: is a"
                " worker there without --no-scheduler, with the extra `schedules` installed?",
            )

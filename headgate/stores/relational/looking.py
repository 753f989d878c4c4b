"""Looking at the whole: queues, limits, what is left for a burst."""

from __future__ import annotations

from dataclasses import replace

from headgate.claim import Room
from headgate.limits import Band, Needs, needs_of
from headgate.stores.protocol import LimitRecord, QueueRecord
from headgate.stores.relational import cataloguing, orphans
from headgate.stores.relational.lines import list_lanes, list_lines
from headgate.stores.relational.routing import unrouted_tasks
from headgate.stores.relational.transaction import Transaction
from headgate.stores.relational.values import Values, limit_records

BOUND = 10_000


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
                    lanes = list_lanes(tx, queue, priority, band)
                    count += sum(not shut_off(room, needs_of(band, lane)) for _, lane in lanes)
    return count


def shut_off(room: Room, needs: Needs) -> bool:
    """Paused, at 0 or without a value: nothing that ends or finishes will open it."""

    def shut(group: str, units: int) -> bool:
        state = room.group(group)
        fits = units <= state.most()
        return state.paused or state.missing or not fits

    if any(shut(need.group, need.units) for need in needs.all):
        return True
    return any(all(shut(m.group, m.units) for m in members) for members in needs.one_of)


def groups(tx: Transaction) -> list[str]:
    """Every group with something of its own: a value, an override, a holder."""
    return sorted({*Values(tx).names(), *(row["grp"] for row in tx.rows(tx.sql.look.groups))})


def limits(tx: Transaction) -> list[LimitRecord]:
    """Limits and groups, the busiest keys of keyed limits included (those that hold)."""
    keyed = cataloguing.keyed_limits(tx)
    orphaned = orphans.orphaned_limits(tx)
    return [
        replace(record, keyed=record.group in keyed, orphaned=record.group in orphaned)
        for record in limit_records(tx, groups(tx)).values()
    ]

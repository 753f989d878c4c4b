"""Looking at the whole: queues, limits, what is left for a burst."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from headgate.claim import Room
from headgate.limits import Band, Needs, needs_of
from headgate.stores.protocol import LimitPage, LimitRecord, QueueRecord
from headgate.stores.relational import cataloguing, orphans
from headgate.stores.relational.lines import list_lanes, list_lines
from headgate.stores.relational.routing import unrouted_tasks
from headgate.stores.relational.transaction import Row, Transaction
from headgate.stores.relational.values import Values, limit_records

BOUND = 10_000
LOOK = 1000
"""So many groups a page of them looks at, held or not."""


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
    return list(_records(tx, groups(tx)))


def limit_page(tx: Transaction, limit: int, after: str | None, *, said: bool) -> LimitPage:
    """The same, of groups that are not declared limits a page at a time."""
    declared = sorted(name for name in Values(tx).names() if "/" not in name)
    others, end = _others(tx, set(declared), limit, after or "", said=said)
    found = tuple(_records(tx, [*(declared if after is None else ()), *others]))
    count = len(found) - len(others)
    return LimitPage(found[:count], found[count:], end)


def _others(
    tx: Transaction, declared: set[str], limit: int, after: str, *, said: bool
) -> tuple[list[str], str | None]:
    """The next of the other groups, by name, and where to go on."""
    look = max(LOOK, limit)
    params = {"after": after, "limit": look}
    carried = [row["grp"] for row in tx.rows(tx.sql.look.carried_groups, params)]
    slots: list[Row] = [] if said else list(tx.rows(tx.sql.look.slot_groups, params))
    # What is behind the end of a look that was cut short is not known yet.
    ends = [carried[-1]] if len(carried) == look else []
    ends += [slots[-1]["grp"]] if len(slots) == look else []
    end = min(ends, default=None)
    words = Values(tx).words
    found = {*words.declared, *words.limits, *words.pauses, *carried}
    found |= {row["grp"] for row in slots if row["held"]}
    if said:  # a fairness key that has a weight need not be a group of any limit
        found |= words.weights.keys()
    names = sorted(
        name for name in found - declared if name > after and (end is None or name <= end)
    )
    return names[:limit], names[limit - 1] if len(names) > limit else end


def _records(tx: Transaction, groups: Iterable[str]) -> Iterator[LimitRecord]:
    keyed = cataloguing.keyed_limits(tx)
    orphaned = orphans.orphaned_limits(tx)
    for record in limit_records(tx, groups).values():
        group = record.group
        yield replace(record, keyed=group in keyed, orphaned=group in orphaned)

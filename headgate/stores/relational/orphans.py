"""What no worker that is there declares any more: limits and tasks.

A declaration counts while a worker of the declarer's name is registered, and for `GONE_AFTER`
seconds longer, so that a restart changes nothing. After that

- where somebody who is there declares the same limit, the word of who is gone is dropped: a
  release that was rolled back decides nothing any more;
- where nobody does, the limit is *orphaned*: it is shown as such, keeps its value, and holds what
  it holds. It is forgotten after `FORGET_AFTER` seconds more, once nothing holds or needs it.

A task that no registered worker knows is orphaned and forgotten in the same way. An operator's
word is never forgotten. The sweeper of any worker does all this; nothing waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from headgate.limits import Band
from headgate.stores.relational.events import record
from headgate.stores.relational.lines import list_lines
from headgate.stores.relational.transaction import Row, Transaction
from headgate.stores.relational.values import changed

GONE_AFTER = 300.0
FORGET_AFTER = 7 * 86400.0
ALONE = "\x01orphans"
LOOK_EVERY = 10.0
"""Seconds between two looks of one process."""


def mark(tx: Transaction) -> bool:
    """Note who has gone and who is back; whether there is something to forget. In a transaction
    that only reads, whether there is anything to do at all."""
    if tx.writes:
        tx.lock([ALONE])  # two who note the same would wait for each other's rows
    workers = {row["name"] for row in tx.rows(tx.sql.workers.names)}
    tasks = {task for row in tx.rows(tx.sql.workers.every) for task in json.loads(row["tasks"])}
    declarers = tx.rows(tx.sql.orphans.declarers)
    catalogue = tx.rows(tx.sql.orphans.tasks)
    noted = False
    for sql, column, rows, here in (
        (tx.sql.orphans.declarers_gone, "declarer", declarers, workers),
        (tx.sql.orphans.tasks_gone, "name", catalogue, tasks),
    ):
        gone = [r[column] for r in rows if r["gone"] is None and not _here(r, column, here)]
        back = [r[column] for r in rows if r["gone"] is not None and _here(r, column, here)]
        for names, moment in ((gone, tx.now), (back, None)):
            if names and tx.writes:
                tx.run(sql, {"names": json.dumps(names, ensure_ascii=False), "gone": moment})
            noted = noted or bool(names)
    before = {"before": tx.now - GONE_AFTER}
    said = {row["declarer"] for row in tx.rows(tx.sql.orphans.stale, before)}
    if any(r["gone"] is not None and r["gone"] <= before["before"] for r in declarers
           if r["declarer"] not in said):  # fmt: skip
        # Nothing is left of what they said.
        noted = True
        if tx.writes:
            tx.run(tx.sql.orphans.forget_declarers, before)
    declarations, droppable = _droppable(tx)
    stale = bool(declarations or droppable)
    return stale if tx.writes else stale or noted


def _here(row: Row, column: str, here: set[str]) -> bool:
    return row[column] in here or (column == "name" and row["task"] in here)


def _over(row: Row, now: float) -> bool:
    return row["gone"] is not None and row["gone"] <= now - FORGET_AFTER


def _droppable(tx: Transaction) -> tuple[list[Row], list[Row]]:
    """Declarations and tasks that count no more: others declare the same, or nothing needs them."""
    rows = tx.rows(tx.sql.orphans.stale, {"before": tx.now - GONE_AFTER})
    stale = [row for row in rows if row["live"] or _over(row, tx.now)]
    tasks = [row for row in tx.rows(tx.sql.orphans.tasks) if _over(row, tx.now)]
    if tasks or not all(row["live"] for row in stale):
        needed_limits, needed_tasks = needed(tx)
        stale = [
            row for row in stale
            if row["live"] or not (row["name"] in needed_limits or _held(tx, row["name"]))
        ]  # fmt: skip
        tasks = [row for row in tasks if not {row["name"], row["task"]} & needed_tasks]
    return stale, tasks


def forget(tx: Transaction) -> None:
    """Drop what does not count any more. A value may change by it, so nobody grants meanwhile."""
    declarations, tasks = _droppable(tx)
    for row in declarations:
        tx.run(tx.sql.orphans.undeclare, {"name": row["name"], "declarer": row["declarer"]})
    for name in sorted({row["name"] for row in declarations if not row["live"]}):
        record(tx, "limit_forgotten", name, reason="no worker declares it, and nothing needs it")
    for row in tasks:
        tx.run(tx.sql.orphans.forget_task, {"name": row["name"]})
        record(tx, "task_forgotten", row["name"], reason="no worker knows it, and no job waits")
    tx.run(tx.sql.orphans.forget_declarers, {"before": tx.now - GONE_AFTER})
    if declarations:
        changed(tx)


def _held(tx: Transaction, name: str) -> bool:
    plain = name.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return tx.row(tx.sql.orphans.holds, {"name": name, "keys": f"{plain}/%"}) is not None


def needed(tx: Transaction) -> tuple[set[str], set[str]]:
    """The limits and tasks of all that waits, delayed jobs as far as a bounded look sees them: a
    worker that runs one of the others declares what it needs when it starts."""
    bands = [b for priorities in list_lines(tx).values() for of in priorities.values() for b in of]
    tasks: set[str] = set()
    for row in tx.rows(tx.sql.orphans.waiting):
        tasks.add(row["task"])
        bands += [row["band"]] if row["band"] else []
    limits: set[str] = set()
    for band in map(Band.parse, bands):
        tasks.add(band.task)
        limits |= {name for name, _, _ in band.all}
        limits |= {name for members in band.one_of for name, _, _ in members}
    return limits, tasks


def orphaned_limits(tx: Transaction) -> set[str]:
    """Limits that were declared, and by nobody who is there."""
    rows = tx.rows(tx.sql.orphans.stale, {"before": tx.now - GONE_AFTER})
    return {row["name"] for row in rows if not row["live"]}


def orphaned_tasks(tx: Transaction) -> Iterable[tuple[str, float]]:
    """Tasks that no worker who is there knows, and since when."""
    for row in tx.rows(tx.sql.orphans.tasks):
        gone = row["gone"]
        if row["name"] == row["task"] and gone is not None and gone <= tx.now - GONE_AFTER:
            yield row["name"], gone

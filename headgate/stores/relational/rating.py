"""Starts under rates, as the rows that stand for them.

A row of `slots` without job, worker and holder is so many starts: it counts until its end, and
nobody gives it back. Its token is no attempt's, so no end of an attempt touches it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headgate.claim import Group
from headgate.rates import Pace, Starts
from headgate.stores.protocol import LimitRecord
from headgate.stores.relational.transaction import Row, Transaction


def pace_of(declaration: Row) -> Pace | None:
    """What makes it a rate, if it is one."""
    per: float | None = declaration["per"]
    return None if per is None else Pace(per, declaration["burst"])


def is_start(row: Row) -> bool:
    return row["job"] is None and row["worker"] is None and not row["holder"]


def starts(tx: Transaction, rows: Sequence[Row], pace: Pace, value: int | None) -> Starts:
    """What has started and still counts."""
    counted = ((r["ends"], r["units"]) for r in rows if r["worker"] is None and r["ends"] > tx.boot)
    return Starts(pace, value, tx.boot, counted)


def of_this_boot(tx: Transaction, group: str, rows: Sequence[Row], pace: Pace) -> Sequence[Row]:
    """Starts from before the machine was started anew count on, by the wall clock: what was
    called then has not forgotten them. Their ends are put on the clock of this boot; whatever
    that clock was set to meanwhile, none of them counts for longer than a period from now."""
    found: list[Row] = []
    for row in rows:
        if row["worker"] is not None or row["boot"] == tx.boot_id:
            found.append(row)
            continue
        left = row["since"] + pace.step + pace.per - tx.now
        if not 0 < left <= pace.step + pace.per:
            found.append(row)  # it has ended, whatever it says of another clock
            continue
        ends = {"ends": tx.boot + left, "boot": tx.boot_id}
        if tx.writes:
            params = {"grp": group, "slot": row["slot"], "token": row["token"]}
            tx.run(tx.sql.slots.extend, {**params, "ends": ends["ends"], "boot_id": tx.boot_id})
        found.append({**{key: row[key] for key in ("slot", "units", "worker", "since")}, **ends})
    return found


def describe(tx: Transaction, record: LimitRecord, group: Group) -> LimitRecord:
    """The record of a rate: how many have started, and when the next may."""
    opens = group.opens(1)
    opens_at = None if opens is None else tx.now + (opens - tx.boot)
    return replace(record, held=group.held, opens_at=opens_at)


def opens(record: LimitRecord, ahead: int) -> float | None:
    """When a rate comes to a job with so many before it, if they start as fast as they may."""
    if record.pace is None or record.opens_at is None or not record.value:
        return None
    return record.opens_at + ahead * record.pace.per / record.value

"""Schedules: who declares them, how they stand, and when they are forgotten.

A schedule is there while a worker of a declarer's name is registered, and for `GONE_AFTER` seconds
longer, so that a restart changes nothing: others tick it meanwhile. Where a worker that is there
knows its task and does not declare it, it was renamed or taken away, and goes after `HANDOVER`.
"""

from __future__ import annotations

import hashlib
import json

import msgspec

from headgate.errors import ScheduleNotFound
from headgate.jobs import Retention
from headgate.schedules import template
from headgate.stores.protocol import ScheduleRecord, Schedules, ScheduleSpec
from headgate.stores.relational import values
from headgate.stores.relational.events import record
from headgate.stores.relational.orphans import GONE_AFTER
from headgate.stores.relational.transaction import Row, Transaction

HANDOVER = 30.0
"""Seconds after which a schedule without a living declarer is taken for removed, where somebody
who knows its task is there. As long as a restart may take."""
ALONE = "\x1fschedules"
"""The lock of those who declare and forget; no group has this name."""

_TIMES = ("when", "timezone", "start", "end")


def names_text(names: object) -> str:
    return json.dumps(names, ensure_ascii=False)


def to_text(spec: ScheduleSpec) -> str:
    return msgspec.json.encode(spec, order="sorted").decode()


def read_spec(text: str) -> ScheduleSpec:
    return msgspec.json.decode(text, type=ScheduleSpec)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- declare ---------------------------------------------------------------------------------


def declare(tx: Transaction, said: Schedules) -> None:
    """Replace what this declarer said before. The highest release wins; without one, the last
    start. Where only the job of a schedule changes, the tick that is due next stays."""
    tx.lock([ALONE])  # one at a time: a fleet that starts declares the same at the same moment
    names = names_text([spec.name for spec in said.schedules])
    known = {row["name"]: row for row in tx.rows(tx.sql.schedules.declared, {"names": names})}
    tx.run(tx.sql.orphans.declared_by, {"declarer": said.declarer, "at": tx.now})
    changed = False
    for spec in sorted(said.schedules, key=lambda spec: spec.name):
        changed = _put(tx, spec, said.release, known.get(spec.name)) or changed
    tx.run(tx.sql.schedules.undeclare, {"declarer": said.declarer, "names": names})
    tx.many(
        tx.sql.schedules.declare,
        [{"schedule": spec.name, "declarer": said.declarer} for spec in said.schedules],
    )
    # Who alone declared one says now that it is gone.
    for row in tx.rows(tx.sql.schedules.undeclared):
        _forget(tx, row["name"], "its program does not declare it any more")
        changed = True
    if changed:
        tx.ring("ticks")


def _put(tx: Transaction, spec: ScheduleSpec, release: str, before: Row | None) -> bool:
    text = to_text(spec)
    cells = {
        "name": spec.name,
        "spec": text,
        "digest": digest_of(text),
        "times": digest_of(json.dumps([getattr(spec, name) for name in _TIMES])),
        "task": template.task_of(spec.job),
        "release": release,
        "at": tx.now,
    }
    if before is None:
        tx.run(tx.sql.schedules.insert, cells)
        record(tx, "schedule_declared", spec.name, when=spec.when, timezone=spec.timezone)
        return True
    if values.release_key(before["release"]) > values.release_key(release):
        return False
    if before["digest"] == cells["digest"]:
        return False
    tx.run(tx.sql.schedules.change, cells)
    if before["times"] != cells["times"]:
        tx.run(tx.sql.schedules.replan, {"name": spec.name, "at": tx.now})
    record(tx, "schedule_changed", spec.name, when=spec.when, timezone=spec.timezone)
    return True


# --- forget ----------------------------------------------------------------------------------


def stale(tx: Transaction) -> list[str]:
    """Schedules that are to be forgotten now."""
    found: list[str] = []
    rows = tx.rows(tx.sql.schedules.abandoned)
    if not rows:
        return found
    known = {task for row in tx.rows(tx.sql.workers.every) for task in json.loads(row["tasks"])}
    for row in rows:
        grace = HANDOVER if row["task"] in known else GONE_AFTER
        if row["gone"] <= tx.now - grace:
            found.append(row["name"])
    return found


def forget(tx: Transaction) -> None:
    """Forget what nobody declares any more, and those who are long gone beside others."""
    if not tx.rows(tx.sql.schedules.declarers):
        return
    # Before the look: somebody may be declaring one of them right now, and its commit must not
    # fall between our look and our deed.
    tx.lock([ALONE])
    for name in stale(tx):
        _forget(tx, name, "no worker that is there declares it")
    tx.run(tx.sql.schedules.forget_declarers, {"before": tx.now - GONE_AFTER})


def _forget(tx: Transaction, name: str, reason: str) -> None:
    """Its ticks stay, until they are pruned: they tell what ran."""
    for sql in (
        tx.sql.schedules.forget,
        tx.sql.schedules.forget_declarations,
        tx.sql.schedules.forget_runs,
    ):
        tx.run(sql, {"name": name})
    record(tx, "schedule_forgotten", name, reason=reason)


def prune(tx: Transaction, retention: Retention, limit: int) -> None:
    """Ticks are kept for as long as the runs that went well."""
    if retention.succeeded is not None:
        tx.run(tx.sql.schedules.prune, {"before": tx.now - retention.succeeded, "limit": limit})


# --- look and operate --------------------------------------------------------------------------


def every(tx: Transaction) -> list[ScheduleRecord]:
    declarers: dict[str, list[str]] = {}
    for row in tx.rows(tx.sql.schedules.declarers):
        declarers.setdefault(row["schedule"], []).append(row["declarer"])
    rows = tx.rows(tx.sql.schedules.every)
    return [to_record(row, declarers.get(row["name"], [])) for row in rows]


def find(tx: Transaction, name: str) -> ScheduleRecord | None:
    row = tx.row(tx.sql.schedules.one, {"name": name})
    if row is None:
        return None
    declarers = tx.rows(tx.sql.schedules.declarers_of, {"name": name})
    return to_record(row, [found["declarer"] for found in declarers])


def to_record(row: Row, declarers: list[str]) -> ScheduleRecord:
    planned = bool(row["planned"])
    return ScheduleRecord(
        spec=read_spec(row["spec"]),
        digest=row["digest"],
        since=row["since"],
        next_at=row["next_at"] if planned else None,
        planned=planned,
        last_at=row["last_at"],
        last_run_at=row["last_run_at"],
        last_job=row["last_job"],
        paused=bool(row["paused"]),
        paused_by=row["who"],
        reason=row["reason"],
        declarers=tuple(declarers),
        orphaned=not row["live"],
    )


def pause(tx: Transaction, name: str, paused: bool, by: str, reason: str) -> None:
    if tx.row(tx.sql.schedules.lock_one, {"name": name}) is None:
        raise not_found(name)
    if paused:
        tx.run(tx.sql.schedules.pause, {"name": name, "who": by, "reason": reason})
    else:
        # Planned anew from this moment: what was due meanwhile was not wanted.
        tx.run(tx.sql.schedules.resume, {"name": name, "now": tx.now})
    record(tx, "schedule_paused" if paused else "schedule_resumed", name, by, reason=reason)
    tx.ring("ticks")


def not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(
        f"no schedule {name!r}: a worker declares the schedules of its app when it starts; see"
        " headgate schedules ls"
    )

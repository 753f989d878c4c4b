"""What a limit's value is, and how much of a group is held.

The value in force: an operator's override for the key, then for the name; then the
configuration file; then code (the highest release, else the last start); then what the
first job carried. The sum held is computed from the holders each time: nothing is counted
up or down, so nothing can drift.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from headgate.claim import Group
from headgate.limits import split_group
from headgate.stores.protocol import LimitChange, LimitRecord, Publication, SlotRecord
from headgate.stores.sqlite.database import Row, Transaction
from headgate.stores.sqlite.events import record
from headgate.stores.sqlite.queries import Queries

Q = Queries("limits")


@dataclass(frozen=True, slots=True)
class Value:
    """The value in force for one group, and where it comes from."""

    value: int | None
    source: str
    paused: bool = False
    paused_by: str = ""
    declared: int | None = None
    disagree: tuple[tuple[str, int | None], ...] = ()


class Values:
    """Reads values within one transaction; declarations are few and read once."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._declared: dict[str, list[Row]] | None = None

    def declarations(self, name: str) -> list[Row]:
        """Most authoritative first."""
        if self._declared is None:
            self._declared = {}
            for row in self._tx.rows(Q.declared):
                self._declared.setdefault(row["name"], []).append(row)
            for rows in self._declared.values():
                rows.sort(key=authority)
        return self._declared.get(name, [])

    def names(self) -> list[str]:
        self.declarations("")
        assert self._declared is not None
        return list(self._declared)

    def of(self, group: str) -> Value:
        name, key = split_group(group)
        declarations = self.declarations(name)
        declared: int | None = None
        source = "none"
        if declarations:
            declared, source = declarations[0]["value"], declarations[0]["source"]
        value = declared
        paused, paused_by = False, ""
        for scope in (name, group) if key is not None else (name,):
            override = self._tx.row(Q.override, {"grp": scope})
            if override is None:
                continue
            if override["paused"]:
                paused, paused_by = True, override["who"]
            if override["has_value"]:
                value, source = override["value"], "override"
        if source == "none":
            row = self._tx.row(Q.carried, {"grp": group})
            if row is not None:
                value, source = row["value"], "carried"
        first = declarations[0] if declarations else None
        disagree = tuple(
            (row["declarer"], row["value"])
            for row in declarations
            if first is not None and row["source"] == first["source"] and row["value"] != declared
        )
        return Value(value, source, paused, paused_by, declared, disagree)

    def group(self, group: str) -> Group:
        """The group as a claim sees it, with what has ended taken away."""
        value = self.of(group)
        name, key = split_group(group)
        limit = value.value
        if (
            key is None
            and limit == 0
            and self._tx.row(Q.keyed_override_above_zero, {"name": name}) is not None
        ):
            limit = None  # some key of it is open: the lanes decide, not the band
        # Expiry is taken, not observed: the ended slots are deleted in the transaction that
        # counts, so whoever extends one later finds it gone.
        tx = self._tx
        params = {"grp": group, "boot": tx.boot, "boot_id": tx.boot_id}
        if tx.writes:
            tx.run(Q.drop_ended, params)
        rows = tx.rows(Q.held, params)
        reservation = tx.row(Q.reservation, {"grp": group})
        reserved_for, reserved = None, 0
        if (
            reservation is not None
            and reservation["boot"] == tx.boot_id
            and reservation["ends"] > tx.boot
        ):
            reserved_for, reserved = reservation["lane"], reservation["units"]
        return Group(
            group,
            limit,
            paused=value.paused,
            missing=value.source == "none",
            held=sum(row["units"] for row in rows),
            numbers={row["slot"] for row in rows},
            reserved_for=reserved_for,
            reserved=reserved,
        )


def authority(row: Row) -> tuple[bool, list[int], float]:
    """Sorts declarations: the file's first, then the highest release, then the latest."""
    return row["source"] != "file", [-n for n in release_key(row["release"])], -row["at"]


def release_key(release: str) -> list[int]:
    """The numbers of a release, so that 1.10 is higher than 1.9, and any than none."""
    return [*map(int, re.findall(r"\d+", release)), -1]


def declare(tx: Transaction, publication: Publication) -> None:
    """Replace what this declarer said before."""
    tx.run(Q.undeclare, {"declarer": publication.declarer})
    for source, values in (("code", publication.code), ("file", publication.file)):
        for name, value in values.items():
            tx.run(
                Q.declare,
                {
                    "name": name,
                    "source": source,
                    "declarer": publication.declarer,
                    "value": value,
                    "release": publication.release,
                    "at": tx.now,
                },
            )
    tx.ring("work")  # a value may have been raised


def change(tx: Transaction, change: LimitChange) -> None:
    """Apply an operator's word and record it: who, when, old, new, why."""
    before = tx.row(Q.override, {"grp": change.group})
    old = Values(tx).of(change.group)
    value = before["value"] if before else None
    has_value = bool(before["has_value"]) if before else False
    paused = bool(before["paused"]) if before else False
    if change.reset:
        value, has_value = None, False
    if change.set_value:
        value, has_value = change.value, True
    if change.paused is not None:
        paused = change.paused
    if has_value or paused:
        tx.run(
            Q.set_override,
            {
                "grp": change.group,
                "value": value,
                "has_value": int(has_value),
                "paused": int(paused),
                "who": change.by,
                "reason": change.reason,
                "at": tx.now,
            },
        )
    else:
        tx.run(Q.drop_override, {"grp": change.group})
    new = Values(tx).of(change.group)
    record(
        tx, "limit_changed", change.group, change.by,
        old=old.value, new=new.value, old_source=old.source, new_source=new.source,
        paused=new.paused, was_paused=old.paused, reason=change.reason,
    )  # fmt: skip
    tx.ring("work")


def limit_record(tx: Transaction, values: Values, group: str) -> LimitRecord:
    value = values.of(group)
    slots = [row for row in tx.rows(Q.slots_of_group, {"grp": group}) if lives(tx, row)]
    reservation = tx.row(Q.reservation, {"grp": group})
    return LimitRecord(
        group=group,
        value=value.value,
        source=value.source,
        paused=value.paused,
        held=sum(row["units"] for row in slots),
        holders=len(slots),
        paused_by=value.paused_by,
        declared=value.declared,
        reserved_by=str(reservation["job"]) if reservation is not None else None,
        disagree=value.disagree,
    )


def limit_records(tx: Transaction, groups: Iterable[str]) -> dict[str, LimitRecord]:
    values = Values(tx)
    return {group: limit_record(tx, values, group) for group in groups}


def slot_records(tx: Transaction, group: str) -> list[SlotRecord]:
    return [
        slot_record(tx, row) for row in tx.rows(Q.slots_of_group, {"grp": group}) if lives(tx, row)
    ]


def lives(tx: Transaction, row: Row) -> bool:
    """Does the slot still count? Those of a worker count until the worker is taken away."""
    if row["worker"] is not None:
        return True
    return row["boot"] == tx.boot_id and row["ends"] > tx.boot


def slot_record(tx: Transaction, row: Row) -> SlotRecord:
    ends = row["ends"]
    return SlotRecord(
        group=row["grp"],
        slot=row["slot"],
        token=row["token"],
        holder=row["holder"],
        worker=row["worker_name"],
        units=row["units"],
        since=row["since"],
        expires_at=None if ends is None else tx.now + (ends - tx.boot),
        job=row["job"] is not None,
        overdue=bool(row["overdue"]),
    )

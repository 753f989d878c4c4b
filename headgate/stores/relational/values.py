"""What a limit's value is, and how much of a group is held.

The value in force: an operator's override for the key, then for the name; then the
configuration file; then code (the highest release, else the last start); then what the
first job carried. The sum held is computed from the holders each time: nothing is counted
up or down, so nothing can drift.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headgate.claim import Group
from headgate.limits import split_group
from headgate.stores.protocol import LimitChange, LimitRecord, Publication, SlotRecord
from headgate.stores.relational.events import record
from headgate.stores.relational.transaction import Row, Transaction


@dataclass(frozen=True, slots=True)
class Value:
    """The value in force for one group, and where it comes from."""

    value: int | None
    source: str
    paused: bool = False
    paused_by: str = ""
    declared: int | None = None
    disagree: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Words:
    """What programs and operators said about limits, as of one version."""

    version: int
    declared: Mapping[str, Sequence[Row]]
    """By name, the most authoritative first."""
    overrides: Mapping[str, Row]
    open_keys: frozenset[str]
    """Names of limits of which some key has a value above 0 of its own."""

    def of(self, group: str) -> Value:
        """The value in force by what was said; `source` is "none" where nobody said anything."""
        name, key = split_group(group)
        declarations = self.declared.get(name, ())
        value, source, declared = None, "none", None
        disagree: tuple[tuple[str, int | None], ...] = ()
        if declarations:
            first = declarations[0]
            value = declared = first["value"]
            source = first["source"]
            disagree = tuple(
                (row["declarer"], row["value"])
                for row in declarations
                if row["source"] == source and row["value"] != declared
            )
        paused, paused_by = False, ""
        for scope in (name, group) if key is not None else (name,):
            override = self.overrides.get(scope)
            if override is None:
                continue
            if override["paused"]:
                paused, paused_by = True, override["who"]
            if override["has_value"]:
                value, source = override["value"], "override"
        return Value(value, source, paused, paused_by, declared, disagree)


class WordsCache:
    """Keeps what was said about limits between transactions: it changes seldom, and each
    change counts up the version, which every transaction reads for itself."""

    def __init__(self, words: Words | None = None) -> None:
        self.words = words

    def read(self, tx: Transaction, version: int | None = None) -> Words:
        if version is None:
            version = int(tx.value(tx.sql.limits.version))
        words = self.words
        if words is None or words.version != version:
            words = self.words = self._load(tx, version)
        return words

    def _load(self, tx: Transaction, version: int) -> Words:
        declared: dict[str, list[Row]] = {}
        for row in tx.rows(tx.sql.limits.declared):
            declared.setdefault(row["name"], []).append(row)
        for rows in declared.values():
            rows.sort(key=authority)
        overrides = {row["grp"]: row for row in tx.rows(tx.sql.limits.overrides)}
        open_keys = {
            split_group(group)[0]
            for group, row in overrides.items()
            if "/" in group and row["has_value"] and row["value"] != 0
        }
        return Words(version, declared, overrides, frozenset(open_keys))


def changed(tx: Transaction) -> None:
    """Something was said about limits: whoever remembers the old words reads them anew."""
    tx.run(tx.sql.limits.bump)
    tx.ring("work", "room")  # a value may have been raised


class Values:
    """Reads values and rooms within one transaction."""

    def __init__(
        self,
        tx: Transaction,
        cache: WordsCache | None = None,
        *,
        version: int | None = None,
        reservations: bool = True,
        carried: Mapping[str, int | None] | None = None,
    ) -> None:
        self._tx = tx
        self._carried = carried or {}
        """What a job brought with it that no claim has recorded yet."""
        self._words = (cache or WordsCache()).read(tx, version)
        rows = tx.rows(tx.sql.limits.reservations) if reservations else ()
        self._reservations = {row["grp"]: row for row in rows}
        self._ahead: dict[str, list[Row]] = {}

    def load_ahead(self, groups: set[str]) -> None:
        """Read the holders of these groups in one look."""
        if groups:
            self._ahead = {group: [] for group in groups}
            params = {"groups": json.dumps(sorted(groups), ensure_ascii=False)}
            for row in self._tx.rows(self._tx.sql.limits.held_by_any, params):
                self._ahead[row["grp"]].append(row)

    def holders(self, group: str) -> Sequence[Row]:
        rows = self._ahead.pop(group, None)
        return self._tx.rows(self._tx.sql.limits.held, {"grp": group}) if rows is None else rows

    def names(self) -> list[str]:
        return list(self._words.declared)

    def of(self, group: str) -> Value:
        value = self._words.of(group)
        if value.source != "none":
            return value
        row = self._tx.row(self._tx.sql.limits.carried, {"grp": group})
        if row is not None:
            return replace(value, value=row["value"], source="carried")
        if group in self._carried:
            return replace(value, value=self._carried[group], source="carried")
        return value

    def group(self, group: str) -> Group:
        """The group as a claim sees it, with what has ended taken away."""
        tx = self._tx
        value = self.of(group)
        held, numbers, ended = 0, set[int](), False
        for row in self.holders(group):
            if lives(tx, row):
                held += row["units"]
                numbers.add(row["slot"])
            else:
                ended = True
        if ended and tx.writes:
            # Expiry is taken, not observed: the ended slots are freed in the transaction that
            # counts, so whoever extends one later (under the lock of the group) finds it gone.
            params = {"grp": group, "now": tx.now, "boot": tx.boot, "boot_id": tx.boot_id}
            tx.run(tx.sql.limits.drop_ended, params)
        reservation = self.reservation(group)
        return Group(
            group,
            value.value,
            paused=value.paused,
            missing=value.source == "none",
            held=held,
            some_key_open=group in self._words.open_keys,
            numbers=numbers,
            reserved_for=None if reservation is None else reservation["lane"],
            reserved=0 if reservation is None else reservation["units"],
        )

    def reservation(self, group: str) -> Row | None:
        row = self._reservations.get(group)
        if row is None or row["boot"] != self._tx.boot_id or row["ends"] <= self._tx.boot:
            return None
        return row


def authority(row: Row) -> tuple[bool, list[int], float]:
    """Sorts declarations: the file's first, then the highest release, then the latest."""
    return row["source"] != "file", [-n for n in release_key(row["release"])], -row["at"]


def release_key(release: str) -> list[int]:
    """The numbers of a release, so that 1.10 is higher than 1.9, and any than none."""
    return [*map(int, re.findall(r"\d+", release)), -1]


def declare(tx: Transaction, publication: Publication) -> None:
    """Replace what this declarer said before."""
    tx.run(tx.sql.limits.undeclare, {"declarer": publication.declarer})
    for source, values in (("code", publication.code), ("file", publication.file)):
        for name, value in values.items():
            tx.run(
                tx.sql.limits.declare,
                {
                    "name": name,
                    "source": source,
                    "declarer": publication.declarer,
                    "value": value,
                    "release": publication.release,
                    "at": tx.now,
                },
            )
    changed(tx)


def carry(tx: Transaction, group: str, value: int | None) -> None:
    """First wins: a later job that carries another value changes nothing.

    There may be as many of these as jobs, so nobody remembers them: each is looked up alone.
    """
    if tx.run(tx.sql.limits.carry, {"grp": group, "value": value, "at": tx.now}).rowcount:
        tx.ring("work")


def change(tx: Transaction, change: LimitChange) -> None:
    """Apply an operator's word and record it: who, when, old, new, why."""
    before = tx.row(tx.sql.limits.override, {"grp": change.group})
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
            tx.sql.limits.set_override,
            {
                "grp": change.group,
                "value": value,
                "has_value": has_value,
                "paused": paused,
                "who": change.by,
                "reason": change.reason,
                "at": tx.now,
            },
        )
    else:
        tx.run(tx.sql.limits.drop_override, {"grp": change.group})
    changed(tx)
    new = Values(tx).of(change.group)
    record(
        tx, "limit_changed", change.group, change.by,
        old=old.value, new=new.value, old_source=old.source, new_source=new.source,
        paused=new.paused, was_paused=old.paused, reason=change.reason,
    )  # fmt: skip


def limit_record(tx: Transaction, values: Values, group: str) -> LimitRecord:
    value = values.of(group)
    slots = [row for row in values.holders(group) if lives(tx, row)]
    reservation = values.reservation(group)
    return LimitRecord(
        group=group,
        value=value.value,
        source=value.source,
        paused=value.paused,
        held=sum(row["units"] for row in slots),
        holders=len(slots),
        paused_by=value.paused_by,
        declared=value.declared,
        reserved_by=None if reservation is None else reserver(tx, reservation),
        disagree=value.disagree,
    )


def reserver(tx: Transaction, reservation: Row) -> str:
    """The job that reserved; or who waits by hand, as its lane tells it."""
    id: str | None = tx.value(tx.sql.jobs.id_of, {"n": reservation["job"]})
    return id or reservation["lane"].replace("\x1f", " ")


def limit_records(tx: Transaction, groups: Iterable[str]) -> dict[str, LimitRecord]:
    values, wanted = Values(tx), list(groups)
    values.load_ahead(set(wanted))
    return {group: limit_record(tx, values, group) for group in wanted}


def slot_records(tx: Transaction, group: str) -> list[SlotRecord]:
    rows = tx.rows(tx.sql.limits.slots_of_group, {"grp": group})
    return [slot_record(tx, row) for row in rows if lives(tx, row)]


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

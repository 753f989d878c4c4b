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
from headgate.rates import Pace
from headgate.stores.protocol import Claim, LimitRecord, Publication, SlotRecord, Word
from headgate.stores.relational import rating
from headgate.stores.relational.transaction import Row, Transaction

CARRIED_FOR = 3600.0
"""Seconds for which a value that a job brought is kept at least."""


@dataclass(frozen=True, slots=True)
class Value:
    """The value in force for one group, and where it comes from."""

    value: int | None
    source: str
    paused: bool = False
    declared: int | None = None
    disagree: tuple[tuple[str, int | None], ...] = ()
    override: Word | None = None
    pause: Word | None = None
    pace: Pace | None = None
    """It is a rate."""


@dataclass(frozen=True, slots=True)
class Words:
    """What programs and operators said about limits, as of one version."""

    version: int
    declared: Mapping[str, Sequence[Row]]
    """By name, the most authoritative first."""
    limits: Mapping[str, Word]
    """The operators' words, by group."""
    pauses: Mapping[str, Word]
    weights: Mapping[str, Word]
    turns: Mapping[str, int]
    """The weights by fairness key, as a claim asks for them."""
    open_keys: frozenset[str]
    """Names of limits of which some key has a value above 0 of its own."""
    ends: float | None = None
    """When the first of the operators' words ends: these are then out of date."""

    def weigh(self, claim: Claim) -> Claim:
        """The claim with the weights that operators gave, over those of its program."""
        return replace(claim, weights={**claim.weights, **self.turns}) if self.turns else claim

    def of(self, group: str) -> Value:
        """The value in force by what was said; `source` is "none" where nobody said anything."""
        name, key = split_group(group)
        declarations = self.declared.get(name, ())
        value, source, declared = None, "none", None
        disagree: tuple[tuple[str, int | None], ...] = ()
        pace: Pace | None = None
        if declarations:
            first = declarations[0]
            pace = rating.pace_of(first)
            value = declared = first["value"]
            source = first["source"]
            disagree = tuple(
                (row["declarer"], row["value"])
                for row in declarations
                if row["source"] == source
                and (row["value"] != declared or rating.pace_of(row) != pace)
            )
        override = self.limits.get(group)
        pause = self.pauses.get(group)
        if key is not None:
            override = override or self.limits.get(name)
            pause = pause or self.pauses.get(name)
        if override is not None:
            value, source = override.value, "override"
        return Value(value, source, pause is not None, declared, disagree, override, pause, pace)


ENDED = -1
"""The version while some word has ended and nobody has taken it back yet."""


class WordsCache:
    """Keeps what was said about limits between transactions: it changes seldom, and each
    change counts up the version, which every transaction reads for itself."""

    def __init__(self, words: Words | None = None) -> None:
        self.words = words

    def read(self, tx: Transaction, version: int | None = None) -> Words:
        if version is None:
            version = int(tx.value(tx.sql.limits.version, {"now": tx.now}))
        words = self.words
        if words is None or words.version != version or version == ENDED:
            words = self._load(tx, version)
            # Words that have ended and are not taken back yet have no version to be known by.
            self.words = None if version == ENDED else words
        return words

    def _load(self, tx: Transaction, version: int) -> Words:
        declared: dict[str, list[Row]] = {}
        for row in tx.rows(tx.sql.limits.declared):
            declared.setdefault(row["name"], []).append(row)
        for rows in declared.values():
            rows.sort(key=authority)
        said: dict[str, dict[str, Word]] = {"limit": {}, "pause": {}, "weight": {}}
        ends: float | None = None
        for row in tx.rows(tx.sql.limits.overrides):
            until: float | None = row["ends"]
            if until is not None:
                if until <= tx.now:
                    continue
                ends = until if ends is None else min(ends, until)
            said[row["what"]][row["grp"]] = word_of(row)
        open_keys = {
            split_group(group)[0]
            for group, word in said["limit"].items()
            if "/" in group and word.value != 0
        }
        turns: dict[str, int] = {}
        for group, word in sorted(said["weight"].items(), key=lambda cell: cell[1].at):
            # The key of a limit, or a fairness key as it stands: the last word on it counts.
            turns[group] = turns[split_group(group)[1] or group] = word.value or 1
        return Words(
            version, declared, said["limit"], said["pause"], said["weight"], turns,
            frozenset(open_keys), ends,
        )  # fmt: skip


def word_of(row: Row) -> Word:
    return Word(row["value"], row["who"], row["reason"], row["at"], row["ends"])


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
        self.words = (cache or WordsCache()).read(tx, version)
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
        return list(self.words.declared)

    def of(self, group: str) -> Value:
        value = self.words.of(group)
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
        rows = self.holders(group)
        if value.pace is not None:
            rows = rating.of_this_boot(tx, group, rows, value.pace)
        for row in rows:
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
        starts = None
        if value.pace is not None:
            starts = rating.starts(tx, rows, value.pace, value.value)
        return Group(
            group,
            value.value,
            paused=value.paused,
            missing=value.source == "none",
            held=held,
            some_key_open=group in self.words.open_keys,
            numbers=numbers,
            reserved_for=None if reservation is None else reservation["lane"],
            reserved=0 if reservation is None else reservation["units"],
            starts=starts,
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
    for source, values, rates in (
        ("code", publication.code, publication.code_rates),
        ("file", publication.file, publication.file_rates),
    ):
        for name, value in values.items():
            pace = rates.get(name)
            tx.run(
                tx.sql.limits.declare,
                {
                    "name": name,
                    "source": source,
                    "declarer": publication.declarer,
                    "value": value,
                    "per": None if pace is None else pace.per,
                    "burst": None if pace is None else pace.burst,
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


def forget_carried(tx: Transaction, limit: int) -> None:
    """There may be as many as there are groups that ever were. Of one that nobody holds, the
    next job brings the value again."""
    tx.run(tx.sql.limits.forget_carried, {"before": tx.now - CARRIED_FOR, "limit": limit})


def limit_record(tx: Transaction, values: Values, group: str) -> LimitRecord:
    value = values.of(group)
    if value.pace is not None:
        return rating.describe(tx, _limit_record(tx, values, group, value, ()), values.group(group))
    slots = [row for row in values.holders(group) if lives(tx, row)]
    return _limit_record(tx, values, group, value, slots)


def _limit_record(
    tx: Transaction, values: Values, group: str, value: Value, slots: Sequence[Row]
) -> LimitRecord:
    reservation = values.reservation(group)
    return LimitRecord(
        group=group,
        value=value.value,
        source=value.source,
        paused=value.paused,
        held=sum(row["units"] for row in slots),
        holders=len(slots),
        paused_by="" if value.pause is None else value.pause.by,
        declared=value.declared,
        reserved_by=None if reservation is None else reserver(tx, reservation),
        disagree=value.disagree,
        override=value.override,
        pause=value.pause,
        weight=values.words.weights.get(group),
        pace=value.pace,
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
    """Who holds something of the group. Starts under a rate are held by nobody."""
    rows = tx.rows(tx.sql.limits.slots_of_group, {"grp": group})
    return [slot_record(tx, row) for row in rows if lives(tx, row) and not rating.is_start(row)]


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
        worker_id=row["worker"],
    )

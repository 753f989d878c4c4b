"""The line of ready jobs as `headgate.look` saw it, and as a claim goes through it.

A view is a snapshot: the choice made from it may be out of date when it is acted on, and
`headgate.act` then grants less. What a view does not hold is looked up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from headgate.choice import LaneKey, Lines, Row
from headgate.claim import Group
from headgate.limits import Need, needs_of
from headgate.rates import Pace, Starts
from headgate.stores.postgres.transaction import SQL, Transaction
from headgate.stores.relational.reserving import Reservations
from headgate.stores.relational.values import Words, carry

LANES = 16
"""Lanes of a turn that a look brings along."""
SLOW = 0.001
"""Seconds to come to the first job in line: more than that, and something stands in the way."""
NEAR_TIMES = 20
NEAR_LONGEST = 1.0
MORE_LANES = 128
"""The same when a choice needs more of them."""

IDLE = "\x01idle "
"""Before the name of a group, where it is marked by somebody who has nothing to run."""

Reads = AbstractContextManager[Transaction]


class Tables(Protocol):
    """What goes beyond the view."""

    def read(self) -> Reads: ...
    def write(self) -> Reads: ...
    def call(self, sql: str, params: Mapping[str, Any]) -> Sequence[Row]: ...


BandKey = tuple[str, int, str]
Place = tuple[BandKey, str]
"""A turn of a band."""


class Turns(msgspec.Struct, array_like=True):
    """The turns of one band as far as they were seen: those after the cursor, then those from
    the start up to it."""

    band: int
    cursor: str | None
    after: list[str]
    all_after: bool
    start: list[str]
    all_start: bool

    def following(self, after: str | None, limit: int) -> tuple[list[str], bool]:
        """The next turns as far as they were seen, and whether there are more."""
        if after == self.cursor:
            found, complete = self.after, self.all_after
        elif after is None and self.all_start:
            found, complete = [*self.start, *self.after], self.all_after
        elif after is None:
            found, complete = self.start, False
        elif after in self.after:
            found, complete = self.after[self.after.index(after) + 1 :], self.all_after
        else:
            found, complete = [], False
        return found[:limit], not complete or len(found) > limit

    def holds(self, turn: str) -> bool | None:
        if turn in self.after or turn in self.start:
            return True
        return False if self.all_after and self.all_start else None


class Lane(msgspec.Struct, array_like=True):
    """The head of a lane, and how many jobs there are: `more` than that, if it says so."""

    band: int
    turn: str
    lane: str
    jobs: int
    more: bool
    place: int
    job: int
    since: float


class Seen(msgspec.Struct):
    """What `headgate.look` answers."""

    now: float
    version: int
    bands: list[BandKey]
    turns: list[Turns]
    lanes: list[Lane]
    held: dict[str, int] | None = None
    starts: dict[str, list[tuple[float, int]]] | None = None
    next_due: float | None = None
    due_took: float = 0.0
    next_end: float | None = None
    unrouted: bool = False
    expired: bool = False
    workers: int = 1
    reservations: dict[str, tuple[str, int]] | None = None
    refused: list[str] | None = None
    paused: list[str] | None = None
    cancels: list[tuple[int, str]] | None = None
    heads: list[tuple[str, int, str, str, str, int]] = []
    took: float = 0.0


class View:
    """One look, indexed. `nearer`: the view before it, if it looked only where that had found
    something."""

    def __init__(self, seen: Seen, wanted: int, nearer: View | None = None) -> None:
        self.seen = seen
        self.taken_at = time.monotonic()
        self._full_at, self._took = self.taken_at, seen.took
        if nearer is not None:
            self._full_at, self._took = nearer._full_at, nearer._took
        self.wanted = wanted
        self.lines: Lines = {}
        for queue, priority, band in seen.bands:
            self.lines.setdefault(queue, {}).setdefault(priority, []).append(band)
        self.turns = {seen.bands[turns.band]: turns for turns in seen.turns}
        self.lanes: dict[tuple[BandKey, str], list[Lane]] = {}
        for lane in seen.lanes:
            self.lanes.setdefault((seen.bands[lane.band], lane.turn), []).append(lane)

    @property
    def age(self) -> float:
        return time.monotonic() - self.taken_at

    @property
    def heads(self) -> str | None:
        """Where a next look may begin, for `headgate.look`; None: at the start of the line.

        To begin at the start is slow only where dead rows stand there that cannot be removed.
        Then it is done so seldom that it costs a twentieth of the time; what is new meanwhile,
        and stands before all that was seen, waits that long.
        """
        near = min(NEAR_LONGEST, NEAR_TIMES * self._took)
        if self._took < SLOW or time.monotonic() - self._full_at > near:
            return None
        return msgspec.json.encode(self.seen.heads).decode()


class Order:
    """What a claim wants, as `headgate.act` takes it: lanes, and one lane number per job, a
    negative one for a job that is reserved."""

    def __init__(self) -> None:
        self.lanes: list[LaneKey] = []
        self.places: list[int] = []
        """Where the first of each lane stands."""
        self._numbers: dict[LaneKey, int] = {}
        self.jobs: list[int] = []

    def number(self, key: LaneKey) -> int | None:
        """The lane's, if it is noted."""
        return self._numbers.get(key)

    def note(self, key: LaneKey, place: int) -> int:
        """A lane comes up for the first time, and stands there."""
        self.lanes.append(key)
        self.places.append(place)
        number = self._numbers[key] = len(self.lanes)
        return number


class ViewLine:
    """A `Line` over a view."""

    def __init__(
        self, view: View, words: Words, tables: Tables, worker: str, freed: Mapping[str, int]
    ) -> None:
        self._view = view
        self._words = words
        self._tables = tables
        self._worker = worker
        self._freed = freed
        """Units that the same round trip gives back: the view still counts them."""
        self._groups: dict[str, Group] = {}
        self._counted: dict[LaneKey, Lane] = {}
        self._complete: set[Place] = set()
        """Turns of which all lanes were seen, though they are many."""
        self.now = self.boot = view.seen.now
        self.lines = view.lines
        self.order = Order()

    # --- the line -----------------------------------------------------------------------------

    def paused_queues(self) -> set[str]:
        return set(self._view.seen.paused or ())

    def turns(
        self, queue: str, priority: int, band: str, after: str | None, limit: int
    ) -> tuple[Sequence[str], bool]:
        turns = self._view.turns.get((queue, priority, band))
        return ([], True) if turns is None else turns.following(after, limit)

    def has_turn(self, queue: str, priority: int, band: str, turn: str) -> bool:
        turns = self._view.turns.get((queue, priority, band))
        found = turns.holds(turn) if turns is not None else None
        if found is not None:
            return found
        params = {"queue": queue, "priority": priority, "band": band, "turn": turn}
        return bool(self._rows("has_turn", params))

    def lanes(
        self, queue: str, priority: int, band: str, turn: str, after: str | None, limit: int
    ) -> Sequence[str]:
        place: Place = (queue, priority, band), turn
        while True:
            seen = self._view.lanes.get(place, [])
            lanes = [lane.lane for lane in seen if after is None or lane.lane > after]
            if len(lanes) >= limit or place in self._complete or len(seen) < LANES:
                return lanes[:limit]
            self._look_further(place, seen)

    def _look_further(self, place: Place, seen: list[Lane]) -> None:
        """More lanes of a turn than the view has, and the groups that they need."""
        (queue, priority, band), turn = place
        params = {"queue": queue, "priority": priority, "band": band, "turn": turn}
        rows = self._rows("lanes", {**params, "after": seen[-1].lane, "limit": MORE_LANES})
        if len(rows) < MORE_LANES:
            self._complete.add(place)
        cells = ("lane", "jobs", "more", "place", "job", "since")
        seen += [Lane(-1, turn, *(row[cell] for cell in cells)) for row in rows]
        needs = [need for row in rows for need in needs_of(band, row["lane"])]
        groups = {need.group for need in needs} - set(self._groups)
        held, starts = self._view.seen.held or {}, self._view.seen.starts or {}
        for row in self._rows("held", {"groups": sorted(groups)}):
            held[row["grp"]] = row["held"]
            if row["starts"] is not None:
                starts[row["grp"]] = row["starts"]
        self._view.seen.held, self._view.seen.starts = held, starts

    def heads(self, key: LaneKey, after: int, limit: int) -> tuple[Sequence[Row], bool]:
        """As many as there are, told apart only by their number: which ones they are is found
        out when they are taken."""
        lane = self._lane(key)
        first = 0 if lane is None or after < lane.place else after + 1 - lane.place
        # Not before all that the view knows of is taken: to ask is a round trip of its own.
        if lane is None or (lane.more and first >= lane.jobs):
            # All that may be wanted: a lane that goes on further than the view asks only once.
            lane = self._count(key, first + max(limit, self._view.wanted))
            if lane is None:
                return (), False
        known = range(first, min(lane.jobs, first + limit))
        rows = [
            {"place": lane.place + i, "job": lane.job, "attempt": 0, "since": lane.since,
             "expires_at": None}
            for i in known
        ]  # fmt: skip
        return rows, lane.more or known.stop < lane.jobs

    def _lane(self, key: LaneKey) -> Lane | None:
        found = self._counted.get(key)
        if found is not None:
            return found
        seen = self._view.lanes.get(((key.queue, key.priority, key.band), key.turn), ())
        return next((lane for lane in seen if lane.lane == key.lane), None)

    def _count(self, key: LaneKey, limit: int) -> Lane | None:
        """Look at a lane further down than the view does."""
        known = self._lane(key)
        since = 0 if known is None else known.place
        rows = self._rows("count", {**key.params(), "since": since, "most": limit + 1})
        if not rows:
            return None
        (found,) = rows
        lane = Lane(
            *(-1, key.turn, key.lane, min(found["n"], limit), found["n"] > limit),
            *(found["place"], found["job"], found["since"]),
        )
        self._counted[key] = lane
        return lane

    def first_of_band(self, queue: str, priority: int, band: str) -> Row | None:
        rows = self._rows("first_of_band", {"queue": queue, "priority": priority, "band": band})
        return rows[0] if rows else None

    def take(
        self, key: LaneKey, rows: Sequence[Row], plan: Sequence[Need], *, reserved: bool
    ) -> None:
        number = self.order.number(key)
        if number is None:
            lane = self._lane(key)
            number = self.order.note(key, rows[0]["place"] if lane is None else lane.place)
        self.order.jobs += [-number if reserved else number] * len(rows)

    def expire(self, key: LaneKey, row: Row) -> None:
        raise AssertionError("what has expired is found when it is taken")

    def _rows(self, name: str, params: Mapping[str, Any]) -> Sequence[Row]:
        return self._tables.call(getattr(SQL.line, name), params)

    # --- groups -------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = self._load(name)
        return group

    def _load(self, name: str) -> Group:
        seen = self._view.seen
        value = self._words.of(name)
        limit, missing = value.value, value.source == "none"
        if missing:
            limit, missing = self._carried(name)
        held = (seen.held or {}).get(name, 0) - self._freed.get(name, 0)
        lane, units = (seen.reservations or {}).get(name, (None, 0))
        return Group(
            name, limit, paused=value.paused, missing=missing, held=held,
            some_key_open=name in self._words.open_keys, reserved_for=lane, reserved=units,
            starts=None if value.pace is None else self._starts(name, value.pace, limit),
        )  # fmt: skip

    def _starts(self, name: str, pace: Pace, value: int | None) -> Starts:
        return Starts(pace, value, self.boot, (self._view.seen.starts or {}).get(name, ()))

    def _carried(self, name: str) -> tuple[int | None, bool]:
        """Nobody declares this group: the first claimer that meets it records what its job
        carried. The value, and whether there is none."""
        with self._tables.read() as tx:
            row = tx.row(tx.sql.limits.carried, {"grp": name})
            if row is not None:
                return row["value"], False
            for key, lanes in self._view.lanes.items():
                for lane in lanes:
                    if any(need.group == name for need in needs_of(key[0][2], lane.lane)):
                        text = tx.value(tx.sql.line.carried_by, {"job": lane.job})
                        found = dict(msgspec.json.decode(text)) if text else {}
                        if name in found:
                            self._record(name, found[name])
                            return found[name], False
        return None, True

    def _record(self, name: str, value: int | None) -> None:
        with self._tables.write() as tx:
            carry(tx, name, value)

    def load_ahead(self, groups: Iterable[str]) -> None:
        """A look brings the groups along."""

    # --- reservations and marks ---------------------------------------------------------------

    @property
    def reserving(self) -> ViewLine:
        return self

    def renew(self, lane: str) -> None:
        with self._tables.write() as tx:
            Reservations(tx, self).renew(lane)

    def reserve(self, lane: str, wanted: list[tuple[str, int]], place: int) -> None:
        with self._tables.write() as tx:
            # Two that reserve at the same time would each see the groups without the other.
            tx.lock(group for group, _ in wanted)
            Reservations(tx, self).reserve(lane, wanted, place)

    def drop(self, lane: str) -> None:
        with self._tables.write() as tx:
            Reservations(tx, self).drop(lane)

    def forget_reservation(self, lane: str) -> None:
        for group in self._groups.values():
            if group.reserved_for == lane:
                group.reserved_for, group.reserved = None, 0

    def others_granted(self, group: str, key: LaneKey, since: float) -> bool:
        return bool(self._rows("others_granted", {**key.params(), "since": since, "grp": group}))

    def refused_others(self, groups: Iterable[str]) -> set[str]:
        return set(groups) & set(self._view.seen.refused or ())

    def note_refused(self, groups: Iterable[str]) -> None:
        with self._tables.write() as tx:
            for group in sorted(groups):
                tx.run(tx.sql.line.note_refused, {"grp": group, "worker": self._worker})

    def idle_others(self) -> frozenset[str]:
        marks = self._view.seen.refused or ()
        return frozenset(mark.removeprefix(IDLE) for mark in marks if mark.startswith(IDLE))

    def note_idle(self, group: str) -> None:
        if group not in self.idle_others():  # that one of them is idle is enough
            self.note_refused([IDLE + group])

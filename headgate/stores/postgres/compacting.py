"""Keep what claims read small while another session keeps dead rows from being removed.

What is done is decided here, from how worn the tables are; how it is done, and why it is safe,
is in `compact_functions.sql`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.stores.postgres.database import Database
from headgate.stores.postgres.transaction import SQL

EVERY = 1.0
"""Seconds between two looks."""
EVERY_PINNED = 0.1
"""The same while the horizon is pinned, for the one process that compacts."""
PINNED = 1.0
"""Seconds for which somebody has held the horizon, while …"""
PINNED_AGE = 20
"""… so many transactions have begun."""
PAGE_ROWS = 50
"""Rows in a page of `ready` or `slots`, roughly."""
GENERATION_ROWS = 10_000
"""A generation that has had so many rows is left behind."""
GENERATIONS = 8
"""At most so many: each is probed by every claim."""
SLOT_VERSIONS = 800
"""Dead versions of slots before they move on, and as many times their number as …"""
SLOT_SHARE = 1
SETTLED = 10.0
"""Seconds for which an old generation runs empty by itself, before its rest is moved."""
REST = 20
"""What was in vain is tried again after so many times what it took, …"""
LONGEST_REST = 10.0
"""… or after twice as long as before, up to this."""
MOVED_AT_ONCE = 1000
MOST_MOVES = 10


class Generation(msgspec.Struct, array_like=True, frozen=True):
    """One generation of `ready`."""

    gen: int
    pages: int
    current: bool
    retired: float | None
    """Seconds since it was the current one."""
    closed: bool
    """Nobody can write to it any more."""

    @property
    def rows(self) -> int:
        """That it has had since it was last empty: while the horizon is pinned, no place in it
        is used twice."""
        return self.pages * PAGE_ROWS


class Wear(msgspec.Struct, frozen=True):
    """What `headgate.wear` answers."""

    age: int
    horizon: str
    """The oldest transaction whose effects some session may not see yet."""
    generations: list[Generation]
    slots: tuple[int, int]
    """Pages by which they grew in this epoch; rows that live."""


@dataclass(frozen=True, slots=True)
class Step:
    """A function of compact_functions.sql, and what it is called with."""

    name: str
    params: tuple[Any, ...] = ()


def steps(wear: Wear, *, pinned: bool) -> Iterator[Step]:
    """What there is to do, most urgent first."""
    grown, live = wear.slots
    if pinned and grown * PAGE_ROWS > SLOT_VERSIONS + SLOT_SHARE * live:
        yield Step("renew_slots")
    old = [one for one in wear.generations if not one.current]
    for one in old:
        if one.pages:
            yield Step("empty_generation", (one.gen,))
    for current in (one for one in wear.generations if one.current):
        # Back to the first when nobody is in the way any more: the others can be dropped.
        back = not pinned and current.gen and any(not one.gen and not one.pages for one in old)
        if back or (pinned and current.rows > GENERATION_ROWS):
            yield Step("switch_generation", (GENERATIONS,))
    if any(not one.closed for one in old):
        yield Step("retire_generations")
    for one in old:
        settled = one.retired is None or one.retired > SETTLED
        if one.pages and settled:
            few = one.rows // 5 if pinned else GENERATION_ROWS
            yield Step("move_generation", (one.gen, few, MOVED_AT_ONCE))
        elif not one.pages and one.gen and one.closed and not pinned:
            yield Step("drop_generation", (one.gen,))


class Compactor:
    """Looks now and then whether there is something to do, and does it, a step at a time. One
    process at a time does; who does not get its turn looks again later."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._next = 0.0
        self._horizon = ""
        self._held_since = 0.0
        self._rests: dict[tuple[Any, ...], tuple[float, float]] = {}
        """Steps that were in vain: until when they rest, and for how long in all."""

    def run(self) -> None:
        if time.monotonic() < self._next:
            return
        wear = msgspec.json.decode(self._value("wear"), type=Wear)
        pinned = self._pinned(wear)
        alone = all(self._do(step) for step in steps(wear, pinned=pinned))
        self._next = time.monotonic() + (EVERY_PINNED if pinned and alone else EVERY)

    def _pinned(self, wear: Wear) -> bool:
        """Has the horizon stood still since an earlier look?"""
        now = time.monotonic()
        if wear.horizon != self._horizon or wear.age < PINNED_AGE:
            self._horizon, self._held_since = wear.horizon, now
        return now - self._held_since >= PINNED

    def _do(self, step: Step) -> bool:
        """False: another process is at it."""
        began = time.monotonic()
        what = (step.name, *step.params[:1])
        until, rested = self._rests.get(what, (0.0, 0.0))
        if began < until:
            return True
        done = self._value(step.name, step.params)
        if step.name == "move_generation":
            moves = 1
            while done == MOVED_AT_ONCE and moves < MOST_MOVES:
                done = self._value(step.name, step.params)
                moves += 1
        took = time.monotonic() - began
        if done is False or done in ("locked", 0, -1):
            # While we waited for the lock, claims waited behind us; and who found nothing to move
            # has read all that died there. Seldom, if it is in vain.
            rest = min(max(REST * took, min(LONGEST_REST, 2 * rested)), 6 * LONGEST_REST)
            self._rests[what] = (began + rest, rest)
        elif done == "rows":
            self._rests[what] = (began + REST * took, 0.0)
        else:
            self._rests.pop(what, None)
        return done is not None

    def _value(self, name: str, params: tuple[Any, ...] = ()) -> Any:
        (row,) = self._db.call(getattr(SQL.compact, name), params)
        return row[0]

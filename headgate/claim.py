"""Is there room: decisions over plain data, without a store.

A store lists bands, turns and lanes in key order and loads the state of groups; what
follows from that is decided here and in `turns`, the same for every store.

`Room` knows what is free and hands out whole grants (all groups or none).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from headgate.limits import Band, Need, Needs
from headgate.rates import RATE_SLOT, Starts

Cause = Literal["full", "rate", "zero", "paused", "missing", "reserved", "too-wide", "share"]
"""`rate`: so many have started in its period; nobody holds them, so nobody gives them back."""

PARTIAL: frozenset[Cause | None] = frozenset((None, "reserved", "share"))
"""Causes that hold for one lane or for this claim only: the group itself is open."""

SHUT: frozenset[Cause | None] = frozenset(("paused", "zero", "missing", "too-wide"))
"""Causes that no release ends: somebody must change the limit first."""

RESERVE_AFTER = 5.0
"""Seconds for which a wide lane may be passed over before it reserves its groups."""
RESERVATION = 10.0
"""Seconds a reservation lasts unless a claim renews it."""
RESERVATION_BY_HAND = 3.0
"""The same for who waits outside the line, and asks again every second."""
UNLIMITED = 1 << 62


@dataclass(slots=True)
class Group:
    """The state of one group within a claim: loaded once, then kept up to date here."""

    name: str
    value: int | None
    """None: unlimited."""
    paused: bool = False
    missing: bool = False
    """No value is declared anywhere: nothing may start until there is one."""
    held: int = 0
    some_key_open: bool = False
    """Some key of this limit has a value above 0 of its own, whatever the limit's."""
    numbers: set[int] = field(default_factory=set[int])
    reserved_for: str | None = None
    reserved: int = 0
    share: int | None = None
    """What this claim may take here, so that others find something too; None: all."""
    taken: int = 0
    """What it has taken."""
    left: int = 0
    """What it leaves free for others."""
    starts: Starts | None = None
    """Of a rate: what has started and still counts. They are among `held`."""

    def free(self) -> int:
        if self.value is None:
            return UNLIMITED
        return self.value - self.held if self.starts is None else self.starts.free(self.held)

    def most(self) -> int:
        """The units that it has when nobody holds any."""
        if self.value is None:
            return UNLIMITED
        return self.value if self.starts is None else self.starts.pace.at_once(self.value)

    def opens(self, units: int) -> float | None:
        """When so many units may start, if only the rate keeps them from it now."""
        if self.starts is None or self.refuses(units) != "rate":
            return None
        return self.starts.opens(units, self.held)

    def refuses(self, units: int, lane: str | None = None, *, spread: bool = False) -> Cause | None:
        """Why `units` cannot be taken now by `lane`, or None."""
        if self.paused:
            return "paused"
        if self.missing:
            return "missing"
        free = self.free()
        if free - self.left < units:
            if self.value == 0:
                return "zero"
            if units > self.most():
                return "too-wide"
            return "full" if self.starts is None else "rate"
        # A wide lane that waited too long gathers units here: others may take only what
        # is left beside its reservation, or it would never see enough of them at once.
        if self.reserved_for not in (None, lane) and free - units < self.reserved:
            return "reserved"
        if spread and self.share is not None and 0 < self.taken > self.share - units:
            return "share"
        return None

    def leave_to(self, workers: int, freed: int) -> None:
        """Share with `workers` that are about to ask too: what this one has just freed it may
        take again, of the rest an equal part (it asks again at once for more)."""
        if self.value is not None and workers > 1:
            self.share = freed + -(-max(0, self.free() - freed) // workers)

    def take(self, units: int) -> int:
        """Take so many; the number of the slot, if it is one that can be given back."""
        self.held += units
        self.taken += units
        if self.starts is not None:
            self.starts.add(units)
            return RATE_SLOT
        number = 0
        while number in self.numbers:
            number += 1
        self.numbers.add(number)
        return number


@dataclass(frozen=True, slots=True)
class Held:
    """One slot of a grant; or a start under a rate, which is nobody's to give back."""

    group: str
    slot: int
    units: int

    @property
    def given_back(self) -> bool:
        return self.slot != RATE_SLOT


@dataclass(frozen=True, slots=True)
class Grant:
    slots: tuple[Held, ...] = ()
    picked: tuple[str, ...] = ()


NOTHING = Grant()


@dataclass(frozen=True, slots=True)
class Block:
    """The first group that stands in the way."""

    group: str
    cause: Cause


class Room:
    """Free units, group by group, for the length of one claim."""

    def __init__(self, load: Callable[[str], Group], served: frozenset[str] | None = None) -> None:
        self._load = load
        self._served = served
        """The limits that may be picked from a one-of here; None: all of them."""
        self._groups: dict[str, Group] = {}

    def group(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = self._load(name)
        return group

    def serves(self, band: Band) -> bool:
        """May one of each one-of of this band be picked here?"""
        if self._served is None:
            return True
        return all(any(name in self._served for name, _, _ in m) for m in band.one_of)

    def picks(self, name: str) -> bool:
        """May this limit be picked from a one-of here?"""
        return self._served is None or name in self._served

    def is_full(self, name: str) -> bool:
        return self.group(name).free() <= 0

    def blocks_band(self, band: Band) -> Block | None:
        """Is the whole band shut, whatever the keys of its lanes?

        Reservations do not count here: the lane that holds one may be in this band.
        """
        for name, keyed, units in band.all:
            if not name:
                continue  # every job of the band names a group for itself
            group = self.group(name)
            if group.paused:
                return Block(name, "paused")
            if keyed and group.value == 0 and not group.some_key_open:
                return Block(name, "zero")
            if not keyed and (cause := group.refuses(units)) and cause not in PARTIAL:
                return Block(name, cause)
        for members in band.one_of:
            block = None
            for name, keyed, units in members:
                if not self.picks(name):
                    continue
                cause = None if keyed else self.group(name).refuses(units)
                if cause is None or cause in PARTIAL:
                    break
                block = Block(name, cause)
            else:
                return block
        return None

    def plan(self, needs: Needs, lane: str, *, spread: bool = False) -> Sequence[Need] | Block:
        """What a job of this lane would take now, one-ofs picked; or what stands in the way.

        Of a one-of the member with most free is picked, then by chance. `spread`: leave
        something to the other workers.
        """
        if not needs:
            return ()
        for need in needs.all:
            if cause := self.group(need.group).refuses(need.units, lane, spread=spread):
                return Block(need.group, cause)
        chosen: list[Need] = list(needs.all)
        for members in needs.one_of:
            best: Need | None = None
            best_rank: tuple[int, float] = (0, 0.0)
            block: Block | None = None
            for member in members:
                if not self.picks(member.limit):
                    continue
                group = self.group(member.group)
                if cause := group.refuses(member.units, lane, spread=spread):
                    block = block or Block(member.group, cause)
                    continue
                if any(other.group == member.group for other in chosen):
                    continue
                rank = (group.free(), random.random())
                if best is None or rank > best_rank:
                    best, best_rank = member, rank
            if best is None:
                return block or Block(members[0].group, "full")
            chosen.append(best)
        return chosen

    def grant(self, plan: Sequence[Need], picked_from: int) -> Grant:
        """Take all of a plan at once (I2). What follows `picked_from` was picked."""
        if not plan:
            return NOTHING
        return Grant(
            tuple(
                Held(need.group, self.group(need.group).take(need.units), need.units)
                for need in plan
            ),
            tuple(need.group for need in plan[picked_from:]),
        )

    def rated(self, groups: Iterable[str]) -> bool:
        """Is one of these a rate?"""
        return any(self.group(name).starts is not None for name in groups)

    def opens(self, needs: Iterable[tuple[str, int]]) -> float | None:
        """When the first of these (group, units) opens that only a rate keeps shut."""
        times = [self.group(name).opens(units) for name, units in needs]
        return min((at for at in times if at is not None), default=None)

    def started(self) -> list[tuple[Group, Starts]]:
        """The rates of which this claim has granted starts. Where there is no value nothing is
        counted."""
        return [
            (group, group.starts)
            for group in self._groups.values()
            if group.starts is not None and group.starts.new and group.value is not None
        ]

    def forget_reservation(self, lane: str) -> None:
        for group in self._groups.values():
            if group.reserved_for == lane:
                group.reserved_for, group.reserved = None, 0

    def to_reserve(self, needs: Needs, lane: str, *, rates: bool = False) -> list[tuple[str, int]]:
        """The groups that a starved lane reserves: all, and one member of each one-of, the
        freest that nobody else has reserved. Empty where gathering units is of no use, because
        something is shut: they would only lie idle.

        A rate and what is held at once are never gathered together: the one comes with time
        alone, and the other would lie idle until then. `rates` says which of them is wanted."""

        def hopeful(need: Need) -> bool:
            return self.group(need.group).refuses(need.units, lane) not in SHUT

        def rank(need: Need) -> tuple[bool, int]:
            group = self.group(need.group)
            return group.reserved_for in (None, lane), group.free()

        chosen = list(needs.all)
        for members in needs.one_of:
            here = [m for m in members if self.picks(m.limit)]
            chosen.append(max((m for m in here if hopeful(m)), key=rank, default=members[0]))
        if not all(map(hopeful, chosen)):
            return []
        return [(n.group, n.units) for n in chosen if self.rated([n.group]) == rates]

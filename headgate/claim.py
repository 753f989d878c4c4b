"""Whose turn is it, and is there room: decisions over plain data, without a store.

A store lists bands, turns and lanes in key order and loads the state of groups; what
follows from that is decided here, the same for every store.

- `Room` knows what is free and hands out whole grants (all groups or none).
- `Rotation` is the fairness: which key's turn comes next, kept in the worker's memory.
- `ClaimState` is all that a worker remembers between two claims.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
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
        if free < units:
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


@dataclass(slots=True)
class Rotation:
    """The turns of one queue and priority: who was served last, who is owed a turn.

    Rotating *is* the fairness; nothing about it is shared between workers.
    """

    cursor: str | None = None
    """The turn served last. None: not started yet."""
    owed: list[str] = field(default_factory=list[str])
    """Turns put back because others had fewer jobs running: they come first next time."""
    lanes: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Per turn, the (band, lane) served last."""
    under_way: tuple[str, int] | None = None
    """A turn that has not had all its weight yet, and how much it had."""
    barren_from: str | None = None
    """Where a search that found nothing began; met again, the circle is complete."""

    def line_up(
        self, window: Sequence[str], running: Mapping[str, int], weights: Mapping[str, int]
    ) -> list[str]:
        """The window in the order to serve it: owed turns first, then by the circle; among
        them those with fewer jobs running in this worker, for their weight, before others."""
        owed = [turn for turn in self.owed if turn in set(window)]
        line = [*owed, *(turn for turn in window if turn not in set(owed))]
        line.sort(key=lambda turn: running.get(turn, 0) / max(1, weights.get(turn, 1)))
        if self.under_way is not None and self.under_way[0] in line:
            line.remove(self.under_way[0])
            line.insert(0, self.under_way[0])
        return line

    def settle(self, circle: Sequence[str], tried: set[str]) -> None:
        """A round is over: go on after the furthest turn tried, owe those passed by."""
        furthest = max((i for i, turn in enumerate(circle) if turn in tried), default=-1)
        if furthest >= 0:
            self.cursor = circle[furthest]
        passed = [turn for turn in circle[: furthest + 1] if turn not in tried]
        kept = [turn for turn in self.owed if turn not in tried and turn not in set(passed)]
        self.owed = (kept + passed)[-256:]

    def forget(self, turn: str) -> None:
        """The turn has no ready jobs: nothing is owed to it."""
        if turn in self.owed:
            self.owed.remove(turn)

    def remember_lane(self, turn: str, band: str, lane: str) -> None:
        self.lanes.pop(turn, None)
        self.lanes[turn] = (band, lane)
        if len(self.lanes) > 1024:  # oldest out: such a turn merely starts at its first lane
            self.lanes.pop(next(iter(self.lanes)))


@dataclass(slots=True)
class ClaimState:
    """What a worker remembers from claim to claim. Losing it costs fairness for a moment,
    never exactness."""

    rotations: dict[tuple[str, int], Rotation] = field(
        default_factory=dict[tuple[str, int], Rotation]
    )
    queue_cursor: str | None = None
    """The queue served last."""
    queue_given: int = 0
    """How much of its weight that queue has had in this turn."""
    claims: int = 0
    unfinished: bool = False
    """The last claim's budget ended before its search did: the next one goes on."""
    barren: int = 0
    """How many such claims in a row found nothing to start."""
    passed_over: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    """Lanes met and not served: lane → (place of its head, since when)."""
    watched_at: float = 0.0
    """When it was last looked at which lanes do not move."""
    seen: object = None
    """What the store said about limits and pauses in the last claim; see `Exchanged.recall`."""
    wanted: int = 1
    """How many jobs the last claims asked for, at most."""
    refusals: int = 0
    """Claims in a row that others were quicker than."""
    opens: float | None = None
    """When the first rate opens that this search met shut, on the clock of its line."""
    gives_way: str | None = None
    """The chain of this worker that is to leave a place to somebody who comes before it."""
    view: object = None
    """What the store saw at the end of the last round trip; see `Claim.fresh`."""

    def copy(self) -> ClaimState:
        """As it is now, whatever a claim does to this one: for a store whose claims may be undone
        and tried again. What is in its dictionaries is never changed in place but the turns."""
        rotations = {
            key: replace(turns, owed=list(turns.owed), lanes=dict(turns.lanes))
            for key, turns in self.rotations.items()
        }
        return replace(self, rotations=rotations, passed_over=dict(self.passed_over))

    def restore(self, saved: ClaimState) -> None:
        again = saved.copy()
        for one in fields(self):
            setattr(self, one.name, getattr(again, one.name))

    def rotation(self, queue: str, priority: int) -> Rotation:
        return self.rotations.setdefault((queue, priority), Rotation())

    def waited(self, lane: str, head: int, now: float) -> tuple[float, float]:
        """For how long, and since when, this head of a lane has been passed over."""
        place, since = self.passed_over.get(lane, (head, now))
        if place != head:
            since = now
        self.passed_over[lane] = (head, since)
        if len(self.passed_over) > 4096:
            self.passed_over.pop(next(iter(self.passed_over)))
        return now - since, since


def share_out(
    room: int, weights: Sequence[int], first: int = 0, given: int = 0
) -> tuple[list[int], int, int]:
    """How many starts each queue gets in one round of a claim, beginning at `first`, which has
    had `given` of its weight before; then where that ends, for the next claim to go on.

    >>> share_out(5, [2, 1])
    ([4, 1], 0, 2)
    >>> share_out(1, [2, 1], first=1)
    ([0, 1], 1, 1)
    >>> share_out(1, [2, 1], first=0, given=1)
    ([1, 0], 0, 2)
    """
    shares = [0] * len(weights)
    i = first
    while True:
        part = min(max(1, weights[i] - given), room)
        shares[i] += part
        room -= part
        if room <= 0:
            return shares, i, given + part
        i, given = (i + 1) % len(weights), 0

"""How well was each limit used while work waited for it?

At every moment some of the waiting jobs could start: as many as fit together into what is
free, each with all that it needs. Use is units held, over units held plus units that those
jobs would take, while any job waited that needs the limit. So 7 units under jobs of 3 are
full at 6, and no limit is blamed for what another one holds back.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby

from headgate.checker.given import Job
from headgate.checker.log import Attempt
from headgate.checker.values import UNLIMITED, Values

END, VALUE, SUBMIT, START = range(4)
ENDLESS = 1 << 60


@dataclass(slots=True)
class Usage:
    """The use of one limit, over all its groups."""

    name: str
    groups: int = 0
    starts: int = 0
    contended: float = 0.0
    """Seconds, summed over its groups, in which work waited for it."""
    used: float = 0.0
    """Unit-seconds held in that time."""
    packable: float = 0.0
    """Unit-seconds that could have been held in that time."""
    peak: int = 0

    @property
    def ratio(self) -> float | None:
        """Used over packable; None if no work ever waited for it."""
        return self.used / self.packable if self.packable > 0 else None


@dataclass(slots=True, eq=False)
class _Group:
    name: str
    limit: int
    spare: int
    """Units that are neither held nor, while jobs are being packed, given to one of them."""
    since: float
    held: int = 0
    peak: int = 0
    starts: int = 0
    waiting: int = 0
    """Jobs that wait and need it."""
    missed: int = 0
    """Units that waiting jobs could take now."""
    contended: float = 0.0
    used: float = 0.0
    packable: float = 0.0

    def settle(self, t: float) -> None:
        """Add up the time since the last change."""
        span, self.since = t - self.since, t
        if self.waiting > 0 and self.limit < ENDLESS and math.isfinite(span):
            self.contended += span
            self.used += self.held * span
            self.packable += (self.held + self.missed) * span


@dataclass(slots=True, eq=False)
class _Lane:
    """Waiting jobs that need the same."""

    needs: list[tuple[_Group, int]]
    choices: list[list[tuple[_Group, int]]]
    """Of each of these it needs one."""
    waiting: int = 0
    groups: list[_Group] = field(init=False)

    def __post_init__(self) -> None:
        members = [group for choice in self.choices for group, _ in choice]
        self.groups = [*(group for group, _ in self.needs), *members]


def use(
    attempts: list[Attempt], values: Values, jobs: list[Job], room: int | None
) -> dict[str, Usage]:
    """The use of every limit by name. Without submit times only peaks and starts are known."""
    points: list[tuple[float, int, object]] = []
    first: dict[str, Attempt] = {}
    for attempt in sorted(attempts, key=lambda a: a.start):
        first.setdefault(attempt.job, attempt)
        for begin, end in attempt.spans:
            points += [(begin, START, attempt), (end, END, attempt)]
    points += [(t, VALUE, name) for t, name in values.all_changes()]
    run = _Use(values, room, min((t for t, _, _ in points), default=0.0))
    for job in jobs:
        own = first.get(job.job)
        if job.submitted is not None and (own is not None or job.groups is not None):
            lane = run.lane(job, own)
            points.append((job.submitted, SUBMIT, lane))
            if own is not None:
                run.first_start[own] = lane
    points.sort(key=lambda point: point[:2])
    for t, together in groupby(points, key=lambda point: point[0]):
        run.step(t, [(kind, what) for _, kind, what in together])
    return run.summary()


class _Use:
    def __init__(self, values: Values, room: int | None, begin: float) -> None:
        self.values = values
        self.begin = begin
        self.room = ENDLESS if room is None else room
        self.groups: dict[str, _Group] = {}
        self.lanes: dict[object, _Lane] = {}
        self.first_start: dict[Attempt, _Lane] = {}
        self.missing: list[_Group] = []
        """The groups of which units are missed now."""

    def group(self, name: str) -> _Group:
        if name not in self.groups:
            limit = self._value(name, self.begin)
            self.groups[name] = _Group(name, limit, spare=limit, since=self.begin)
        return self.groups[name]

    def _value(self, name: str, t: float) -> int:
        value = self.values.at(name, t)
        return ENDLESS if value is None or value == UNLIMITED else int(value)

    def lane(self, job: Job, own: Attempt | None) -> _Lane:
        groups = dict(job.groups if job.groups is not None else own.groups if own else {})
        key = (tuple(sorted(groups.items())), tuple(map(tuple, job.one_of)))
        if key not in self.lanes:
            members = {name for choice in job.one_of for name in choice}
            width = max((units for g, units in groups.items() if g in members), default=1)
            # Groups that many share come first: they are full most often, and one is enough
            # to pass over the lane.
            needs = sorted((g for g in groups if g not in members), key=lambda g: "/" in g)
            self.lanes[key] = _Lane(
                [(self.group(g), groups[g]) for g in needs],
                [[(self.group(g), width) for g in choice] for choice in job.one_of],
            )
        return self.lanes[key]

    def step(self, t: float, changes: list[tuple[int, object]]) -> None:
        """All that happened at one instant, and what could start after it."""
        for kind, what in changes:
            if isinstance(what, Attempt):
                self._hold(t, what, 1 if kind == START else -1)
            elif isinstance(what, _Lane):
                self._wait(t, what, 1)
            else:
                self._set(t, what)
        self._miss(t, self._pack())

    def _hold(self, t: float, attempt: Attempt, sign: int) -> None:
        self.room -= sign
        for name, units in attempt.groups.items():
            group = self.group(name)
            group.settle(t)
            group.held += sign * units
            group.spare -= sign * units
            group.peak = max(group.peak, group.held)
            group.starts += sign == 1
        if sign == 1 and (lane := self.first_start.pop(attempt, None)) is not None:
            self._wait(t, lane, -1)

    def _wait(self, t: float, lane: _Lane, sign: int) -> None:
        lane.waiting += sign
        for group in lane.groups:
            group.settle(t)
            group.waiting += sign

    def _set(self, t: float, limit: object) -> None:
        for name, group in self.groups.items():
            if limit in (name, name.partition("/")[0]):
                group.settle(t)
                group.limit = self._value(name, t)
                group.spare = group.limit - group.held

    def _pack(self) -> dict[_Group, int]:
        """Units of each group that waiting jobs could take now, all of them together."""
        packed: defaultdict[_Group, int] = defaultdict(int)
        room = self.room
        for lane in self.lanes.values():
            if room <= 0:
                break
            if lane.waiting <= 0:
                continue
            count = min(lane.waiting, room)
            for group, units in lane.needs:
                if group.spare < units:
                    count = 0
                    break
                count = min(count, group.spare // units)
            if not count:
                continue
            if lane.choices:
                count = _choose(lane, count, packed)
            for group, units in lane.needs:
                group.spare -= count * units
                packed[group] += count * units
            room -= count
        for group, units in packed.items():
            group.spare += units
        return packed

    def _miss(self, t: float, packed: dict[_Group, int]) -> None:
        for group in {*self.missing, *packed}:
            if group.missed != packed.get(group, 0):
                group.settle(t)
                group.missed = packed.get(group, 0)
        self.missing = list(packed)

    def summary(self) -> dict[str, Usage]:
        limits: dict[str, Usage] = {}
        for group in self.groups.values():
            name = group.name.partition("/")[0]
            usage = limits.setdefault(name, Usage(name))
            usage.groups += 1
            usage.starts += group.starts
            usage.contended += group.contended
            usage.used += group.used
            usage.packable += group.packable
            usage.peak = max(usage.peak, group.peak)
        return limits


def _choose(lane: _Lane, most: int, packed: defaultdict[_Group, int]) -> int:
    """How many jobs of the lane find a member in each of its one-ofs; takes those members."""
    for count in range(most):
        picks = [
            max((m for m in choice if m[0].spare >= m[1]), key=lambda m: m[0].spare, default=None)
            for choice in lane.choices
        ]
        found = [pick for pick in picks if pick is not None]
        if len(found) < len(picks):
            return count
        for group, units in found:
            group.spare -= units
            packed[group] += units
    return most

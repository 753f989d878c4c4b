"""How well was each limit used while work waited for it, and who got the starts?

At every moment a group holds some units, and the jobs that wait could fill some of what is
free: as many as fit by their own width and find room in all else that they need. Use is
units held, over units held plus units that could have been, while any job waited that needs
the group: 7 units under jobs of 3 are full at 6, and a group is not blamed for what another
one holds back.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass

from headgate.checker.given import Job
from headgate.checker.log import Attempt
from headgate.checker.values import UNLIMITED, Values

SUBMIT, START, END, VALUE = 2, 3, 0, 1


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
class _Lane:
    """Waiting jobs that need the same."""

    needs: tuple[tuple[str, int], ...]
    """What it must have in any case."""
    members: dict[str, int]
    """What it may pick from."""
    waiting: int = 0

    @property
    def names(self) -> list[str]:
        return [*(name for name, _ in self.needs), *self.members]

    def units_of(self, group: str) -> int:
        return self.members.get(group) or next(units for g, units in self.needs if g == group)


@dataclass(slots=True)
class _Group:
    name: str
    limit: float = UNLIMITED
    held: int = 0
    peak: int = 0
    starts: int = 0
    since: float = 0.0
    counts: bool = False
    free: int = 0
    """Units that waiting jobs could take now."""
    contended: float = 0.0
    used: float = 0.0
    packable: float = 0.0


def use(
    attempts: list[Attempt], values: Values, jobs: list[Job], room: int | None
) -> dict[str, Usage]:
    """The use of every limit by name. Without submit times only peaks and starts are known."""
    run = _Use(values, room)
    points: list[tuple[float, int, object]] = []
    first: dict[str, Attempt] = {}
    for attempt in sorted(attempts, key=lambda a: a.start):
        first.setdefault(attempt.job, attempt)
        for begin, end in attempt.spans:
            points += [(begin, START, attempt), (end, END, attempt)]
    for job in jobs:
        own = first.get(job.job)
        if job.submitted is None or (own is None and job.groups is None):
            continue
        lane = run.lane(job, own)
        points.append((job.submitted, SUBMIT, lane))
        if own is not None:
            run.first_start[own] = lane
    points += [(t, VALUE, name) for t, name in values.all_changes()]
    for t, kind, what in sorted(points, key=lambda point: point[:2]):
        run.step(t, kind, what)
    return run.summary()


class _Use:
    def __init__(self, values: Values, room: int | None) -> None:
        self.values = values
        self.room = math.inf if room is None else room
        self.running = 0
        self.groups: dict[str, _Group] = {}
        self.lanes: dict[tuple[object, ...], _Lane] = {}
        self.by_group: defaultdict[str, list[_Lane]] = defaultdict(list)
        self.first_start: dict[Attempt, _Lane] = {}

    def lane(self, job: Job, own: Attempt | None) -> _Lane:
        groups = dict(job.groups if job.groups is not None else own.groups if own else {})
        key = (tuple(sorted(groups.items())), tuple(map(tuple, job.one_of)))
        if key not in self.lanes:
            # The room of any member of a one-of is enough, so a full member holds the lane
            # back nowhere else: members count only where they are looked at themselves.
            picks = {
                name: max((groups.get(other, 1) for other in choice), default=1)
                for choice in job.one_of
                for name in choice
            }
            needs = tuple((g, u) for g, u in key[0] if g not in picks)
            lane = self.lanes[key] = _Lane(needs, picks)
            for group in lane.names:
                self.by_group[group].append(lane)
        return self.lanes[key]

    def group(self, name: str, t: float) -> _Group:
        if name not in self.groups:
            value = self.values.at(name, t)
            self.groups[name] = _Group(name, UNLIMITED if value is None else value, since=t)
        return self.groups[name]

    def step(self, t: float, kind: int, what: object) -> None:
        was_full = self.running >= self.room
        touched: set[str] = set()
        if isinstance(what, Attempt):
            sign = 1 if kind == START else -1
            self.running += sign
            for name, units in what.groups.items():
                self.group(name, t)
                self._settle(name, t)
                group = self.groups[name]
                group.held += sign * units
                group.peak = max(group.peak, group.held)
                group.starts += kind == START
                touched.add(name)
            lane = self.first_start.pop(what, None) if kind == START else None
            if lane is not None:
                lane.waiting -= 1
                touched.update(lane.names)
        elif isinstance(what, _Lane):
            what.waiting += 1
            touched.update(what.names)
        else:
            for name in list(self.groups):
                if what in (name, name.partition("/")[0]):
                    self._settle(name, t)
                    value = self.values.at(name, t)
                    self.groups[name].limit = UNLIMITED if value is None else value
                    touched.add(name)
        if was_full != (self.running >= self.room):
            touched.update(self.groups)
        # What a touched group holds also decides whether its lanes could run elsewhere.
        near = {
            name
            for group in touched
            for lane in self.by_group[group]
            if lane.waiting > 0
            for name in lane.names
        }
        for name in touched | near:
            self.group(name, t)
            self._settle(name, t)
            self._look(self.groups[name])

    def _settle(self, name: str, t: float) -> None:
        group = self.groups[name]
        span, group.since = t - group.since, t
        if group.counts and math.isfinite(span):
            group.contended += span
            group.used += group.held * span
            group.packable += (group.held + group.free) * span

    def _look(self, group: _Group) -> None:
        """Does work wait for this group, and how much of it would fit right now?"""
        group.counts, group.free = False, 0
        if group.limit == UNLIMITED:
            return
        room = int(group.limit) - group.held
        widths: Counter[int] = Counter()
        for lane in self.by_group[group.name]:
            if lane.waiting <= 0:
                continue
            group.counts = True
            units = lane.units_of(group.name)
            if units > room or self.running >= self.room:
                continue
            widths[units] += min(self._fits_elsewhere(lane, group.name), room // units)
            if widths[1] >= room:
                break
        group.free = _pack(widths, max(0, room))

    def _fits_elsewhere(self, lane: _Lane, but: str) -> int:
        fits = lane.waiting
        for name, units in lane.needs:
            if name == but:
                continue
            other = self.groups.get(name)
            if other is not None and other.limit != UNLIMITED:
                fits = min(fits, (int(other.limit) - other.held) // units)
        return max(0, fits)

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


def _pack(widths: Counter[int], room: int) -> int:
    """The most units of `room` that these can fill: sums reached, as bits of one number."""
    if set(widths) <= {1}:
        return min(room, widths[1])
    reached, mask = 1, (1 << (room + 1)) - 1
    for width, count in widths.items():
        left, step = min(count, room // width), 1
        while left > 0:
            taken = min(step, left)
            reached |= (reached << (width * taken)) & mask
            left, step = left - taken, step * 2
    return reached.bit_length() - 1


def shares(attempts: list[Attempt], jobs: list[Job]) -> dict[str, dict[str, int]]:
    """Starts by turn, for every limit that several turns shared, while all of them had work:
    from the last turn's first submit to the first turn's last start."""
    submitted = {job.job: job.submitted for job in jobs if job.submitted is not None}
    starts: defaultdict[str, defaultdict[str, list[Attempt]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for attempt in sorted(attempts, key=lambda a: a.start):
        for name in {group.partition("/")[0] for group in attempt.groups}:
            starts[name][attempt.turn].append(attempt)
    found: dict[str, dict[str, int]] = {}
    for name, turns in starts.items():
        if len(turns) < 2:
            continue
        begin = max(min(submitted.get(a.job, a.start) for a in own) for own in turns.values())
        end = min(own[-1].start for own in turns.values())
        found[name] = {
            turn: sum(begin <= a.start <= end for a in own) for turn, own in turns.items()
        }
    return found

"""The value of every group at every time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping

from headgate.checker.given import Change

UNLIMITED = math.inf


class Values:
    """A value for the very group counts before one for its limit's name."""

    def __init__(self, limits: Mapping[str, int | None], changes: Iterable[Change] = ()) -> None:
        self._times: dict[str, list[float]] = defaultdict(list)
        self._values: dict[str, list[float]] = defaultdict(list)
        beginning = [Change(-math.inf, name, value) for name, value in limits.items()]
        for change in sorted([*beginning, *changes], key=lambda change: change.t):
            self._times[change.name].append(change.t)
            self._values[change.name].append(UNLIMITED if change.value is None else change.value)

    def at(self, group: str, t: float) -> float | None:
        """The value in force at `t`; None where none is known."""
        for name in (group, group.partition("/")[0]):
            if name in self._times:
                place = bisect_right(self._times[name], t)
                if place:
                    return self._values[name][place - 1]
        return None

    def highest(self, group: str, t: float, seconds: float) -> float | None:
        """The highest value in force from `seconds` before `t` up to `t`."""
        found = [self.at(group, t - seconds), self.at(group, t)]
        found += [self.at(group, change) for change in self.changes(group, t - seconds, t)]
        return max((value for value in found if value is not None), default=None)

    def changes(self, group: str, after: float, until: float) -> list[float]:
        """When the value of the group may have changed in `(after, until]`."""
        names = {group, group.partition("/")[0]}
        return [
            t for name in names if name in self._times for t in self._times[name]
            if after < t <= until
        ]  # fmt: skip

    def all_changes(self) -> list[tuple[float, str]]:
        return sorted(
            (t, name) for name, times in self._times.items() for t in times if t != -math.inf
        )

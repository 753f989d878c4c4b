"""When a schedule is due: from its text and its zone to moments.

Two kinds of texts, and what each does when the clocks are changed:

- Times of the day (`30 2 * * *`, a weekly rule): each runs once a day. A time that the clocks skip
  runs at the first moment after the gap; one that comes twice runs the first time only.
- The clock as it runs (every hour of a day is named: `* * * * *`, `*/15 * * * *`, hourly rules):
  whenever a clock on the wall shows a time that fits, so in an hour that comes twice, twice.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Protocol

from headgate.errors import InvalidSchedule
from headgate.schedules.cron import Cron
from headgate.schedules.rrule import Recurrence
from headgate.schedules.zones import find_zone

_LATEST = datetime(9900, 1, 1, tzinfo=UTC).timestamp()
_DAY = 86400.0


class Walls(Protocol):
    """Times as a clock on the wall shows them, without a zone."""

    every_hour: bool

    def next(self, wall: datetime, *, inclusive: bool = False) -> datetime | None: ...


class Timetable:
    """The moments at which a schedule is due, in seconds since the epoch.

    >>> table = Timetable("30 2 * * *", "nightly", timezone="Europe/Berlin")
    >>> datetime.fromtimestamp(table.after(1_774_700_000.0), table.zone).isoformat()
    '2026-03-29T03:00:00+02:00'
    """

    def __init__(
        self,
        when: str,
        name: str,
        *,
        timezone: str = "UTC",
        start: float | None = None,
        end: float | None = None,
        jitter: float = 0.0,
    ) -> None:
        self.name = name
        self.zone = find_zone(timezone)
        self.start = start
        self.end = end
        self.jitter = jitter
        text = check_text(when)
        head = text[:8].upper()
        if head.startswith(("RRULE:", "DTSTART:", "DTSTART;")):
            rule = Recurrence(text, name, self.zone)
            self.zone = rule.zone
            self._walls: Walls = rule
        else:
            self._walls = Cron(text, name)

    def after(self, moment: float) -> float | None:
        """The first moment after this one at which it is due; None: it never is again."""
        # All its moments are whole seconds, so what is between two of them decides nothing.
        second = math.floor(max(moment, -1.0)) if moment < _LATEST else None
        if second is None:
            return None
        if self.start is not None:
            second = max(second, math.ceil(min(self.start, _LATEST)) - 1)
        moment = float(max(second, 0))
        found = self._running(moment) if self._walls.every_hour else self._of_the_day(moment)
        if found is None or found >= _LATEST or (self.end is not None and found > self.end):
            return None
        return found

    def between(self, low: float, high: float) -> Iterator[float]:
        """All moments after `low`, up to and including `high`, in order."""
        moment = self.after(low)
        while moment is not None and moment <= high:
            yield moment
            moment = self.after(moment)

    def spread(self, moment: float) -> float:
        """Seconds by which the run of this moment is put off: the same for all who ask."""
        if not self.jitter:
            return 0.0
        digest = hashlib.sha256(f"{self.name}\0{moment!r}".encode()).digest()
        return int.from_bytes(digest[:8]) / 2**64 * self.jitter

    # --- times of the day ------------------------------------------------------------------

    def _of_the_day(self, moment: float) -> float | None:
        # A later time on the wall is never an earlier moment, so the search may begin at what
        # the wall shows now, and ends at the first that lies after it.
        wall = self._walls.next(self._wall(moment))
        while wall is not None:
            found = self._moment(wall)
            if found > moment:
                return found
            wall = self._walls.next(wall)  # in an hour that comes twice: it ran the first time
        return None

    def _moment(self, wall: datetime) -> float:
        """When the wall first shows this; for what is skipped, when the gap ends."""
        # With fold=0: the first of two; and, in a gap, by the offset from before it, which lies
        # as far behind the gap's end as the time lies behind its beginning.
        first = wall.replace(tzinfo=self.zone).timestamp()
        if self._wall(first) == wall:
            return first
        return self._change(first - 2 * _DAY, first)

    # --- the clock as it runs --------------------------------------------------------------

    def _running(self, moment: float) -> float | None:
        inclusive = False
        while True:
            offset = self._offset(moment)
            wall = self._walls.next(self._wall(moment), inclusive=inclusive)
            if wall is None:
                return None
            found = (wall.replace(tzinfo=UTC) - offset).timestamp()
            # Are the clocks changed before that? Then the wall shows something else from then on.
            # Also where they are back by `found`: what is shown twice may be due twice.
            changed = next(
                (m for m in (min(found, moment + _DAY), found) if self._offset(m) != offset), None
            )
            if changed is None:
                return found
            moment, inclusive = self._change(moment, changed), True

    # --- zones -----------------------------------------------------------------------------

    def _wall(self, moment: float) -> datetime:
        return datetime.fromtimestamp(moment, self.zone).replace(tzinfo=None, fold=0)

    def _offset(self, moment: float) -> timedelta:
        return datetime.fromtimestamp(moment, self.zone).utcoffset() or timedelta()

    def _change(self, low: float, high: float) -> float:
        """The last moment up to `high` at which the clocks were changed, on a whole second, given
        that they were not the same at `low` and at `high`."""
        below, above = math.floor(max(low, 0.0)), math.ceil(high)
        after = self._offset(above)
        while above - below > 1:
            middle = (below + above) // 2
            if self._offset(middle) == after:
                above = middle
            else:
                below = middle
        return float(above)


def check_text(when: object) -> str:
    if not isinstance(when, str) or not when.strip():
        raise InvalidSchedule(
            f"a schedule is a text like '0 2 * * *', '@daily' or 'RRULE:…', got {when!r}"
        )
    if not when.isascii() or not all(c.isprintable() or c.isspace() for c in when):
        raise InvalidSchedule(f"{when!r} holds characters that no schedule has")
    return when.strip()

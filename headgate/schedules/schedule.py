"""A schedule as it is declared: when, in which zone, and what becomes of ticks that cannot run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, cast
from zoneinfo import ZoneInfo

from headgate.errors import DeclarationError, InvalidSchedule
from headgate.options import seconds
from headgate.schedules.timetable import Timetable, check_text
from headgate.schedules.zones import find_zone

Missed = Literal["skip", "one", "all"]
MISSED: tuple[Missed, ...] = ("skip", "one", "all")
DEFAULT_WINDOW = 86400.0
DEFAULT_LATE = 60.0
MAX_JITTER = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """When something runs.

    >>> Schedule("H 2 * * *", timezone="Europe/Berlin", missed="one").timezone
    'Europe/Berlin'

    `when`: cron with 5 fields, or 6 with seconds last (`H`, `H(a-b)`, `H/n`: a value that the
    schedule's name decides; `R` another one), `@daily` and its kin, or `RRULE:…`. `jitter`: each
    run is put off by up to so many seconds. `start`, `end`: nothing before and after. `missed`:
    what nobody was there to start is left out (`skip`), made up for once (`one`) or each (`all`),
    if it is no older than `missed_window` seconds; what is up to `late` seconds late is not missed
    (0: what was not ticked at its time is). `pile_up`: a tick that finds the run before it
    still waiting adds another one, instead of being merged into it. `skip_if_running`: one that
    finds a run that is not over is left out.
    """

    when: str
    timezone: str = "UTC"
    jitter: float | timedelta = 0.0
    start: datetime | float | None = None
    end: datetime | float | None = None
    missed: Missed = "skip"
    missed_window: float | timedelta = DEFAULT_WINDOW
    pile_up: bool = False
    skip_if_running: bool = False
    late: float | timedelta = DEFAULT_LATE

    def checked(self, name: str) -> Schedule:
        """All of it in plain form (seconds, moments), or `InvalidSchedule`."""
        try:
            zone = find_zone(_text(self.timezone, "timezone"))
            jitter = seconds(self.jitter, "jitter", above=False)
            window = seconds(self.missed_window, "missed_window", above=False)
            late = seconds(self.late, "late", above=False)
            if jitter > MAX_JITTER:
                raise InvalidSchedule(f"jitter must be at most 7 days, got {self.jitter!r}")
            if self.missed not in MISSED:
                raise InvalidSchedule(f"missed must be 'skip', 'one' or 'all', got {self.missed!r}")
            for what in ("pile_up", "skip_if_running"):
                if not isinstance(getattr(self, what), bool):
                    raise InvalidSchedule(f"{what} must be True or False")
            if self.pile_up and self.skip_if_running:
                raise InvalidSchedule("pile_up and skip_if_running exclude each other")
            start, end = _moment(self.start, "start", zone), _moment(self.end, "end", zone)
            if start is not None and end is not None and end < start:
                raise InvalidSchedule(f"it ends ({self.end!r}) before it starts ({self.start!r})")
            found = Schedule(
                check_text(self.when), self.timezone, jitter, start, end, self.missed, window,
                self.pile_up, self.skip_if_running, late,
            )  # fmt: skip
            found.timetable(name)
        except DeclarationError as error:
            kind = type(error) if isinstance(error, InvalidSchedule) else InvalidSchedule
            raise kind(f"schedule {name!r}: {error}") from None
        return found

    def timetable(self, name: str) -> Timetable:
        """Its moments; of a schedule that was checked."""
        return Timetable(
            self.when,
            name,
            timezone=self.timezone,
            start=cast("float | None", self.start),
            end=cast("float | None", self.end),
            jitter=cast("float", self.jitter),
        )


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidSchedule(f"{what} must be a text, got {value!r}")
    return value


def _moment(value: object, what: str, zone: ZoneInfo) -> float | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        # Without a zone it is meant as all else here: in that of the schedule.
        aware = value if value.tzinfo is not None else value.replace(tzinfo=zone)
        return aware.timestamp()
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise InvalidSchedule(f"{what} must be a datetime or seconds since the epoch, got {value!r}")

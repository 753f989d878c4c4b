"""iCalendar rules: the wall-clock times that an `RRULE:` names, one after the other.

    RRULE:FREQ=WEEKLY;BYDAY=MO,WE;BYHOUR=4
    DTSTART:20260105T090000 RRULE:FREQ=DAILY;INTERVAL=2
    DTSTART;TZID=Europe/Berlin:20260105T090000 RRULE:FREQ=DAILY

What a rule leaves open (the minute, the day of a monthly one) comes from DTSTART where it has
one, else from the schedule's name, like `H` in cron. All times are those of the schedule's zone,
or of the one that DTSTART names.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from headgate.errors import InvalidSchedule
from headgate.schedules.extra import library
from headgate.schedules.hashed import draw
from headgate.schedules.zones import find_zone

MAX_TEXT = 1000
HORIZON = timedelta(days=50 * 366)
"""A rule without a time in so long is taken to have none: some could be searched for ever."""
DAYS = 20_000
TRIES = 4_000
"""Days that are looked at, and looked through, for a rule that repeats by the day or faster."""
ANCHOR = datetime(1970, 1, 5)
"""A Monday. Where a rule has no DTSTART, every n-th week or day is counted from here."""

_FREQS = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
_STEPS = {
    "WEEKLY": timedelta(weeks=1),
    "DAILY": timedelta(days=1),
    "HOURLY": timedelta(hours=1),
    "MINUTELY": timedelta(minutes=1),
    "SECONDLY": timedelta(seconds=1),
}
_DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_KNOWN = {
    "FREQ", "INTERVAL", "UNTIL", "WKST", "BYSETPOS", "BYMONTH", "BYMONTHDAY", "BYYEARDAY",
    "BYWEEKNO", "BYDAY", "BYHOUR", "BYMINUTE", "BYSECOND",
}  # fmt: skip
_OF_DAYS = ("BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYDAY", "WKST")
_DAY = timedelta(days=1)
_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
"""What odd texts have brought out of the library."""
_STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d))?(Z?)")


class Recurrence:
    """The times of one rule. `every_hour`: it repeats by the hour or faster and names no hours.
    `zone`: the one in which they are meant."""

    def __init__(self, text: str, name: str, zone: ZoneInfo) -> None:
        self._text = text
        self.zone = zone
        parts, start = self._read(text)
        self._freq = parts["FREQ"]
        self._interval = self._whole(parts, "INTERVAL", 1)
        self._until = self._stamp("UNTIL", parts.pop("UNTIL")) if "UNTIL" in parts else None
        self._anchor = ANCHOR if start is None else start
        self._first = start
        # Every second hour is a list of times of the day, as `0 */2 * * *` is in cron.
        fast = self._freq in _FREQS[4:] and _STEPS[self._freq] * self._interval <= _STEPS["HOURLY"]
        self.every_hour = fast and "BYHOUR" not in parts
        self._fill(parts, start, name)
        if self._freq in ("YEARLY", "MONTHLY"):
            # All that the rule takes from its anchor but the month has been said above; the 1st
            # is a day of every month.
            self._anchor = self._anchor.replace(day=1)
        self._rule = _joined(parts)
        if self._freq in _FREQS[4:] and "BYSETPOS" in parts:
            raise InvalidSchedule(
                f"{text!r}: BYSETPOS picks from the times of a day, week, month or year: it cannot"
                f" be used with FREQ={self._freq}"
            )
        self._days = self._day_rule(parts)
        if self.next(start or datetime(2000, 1, 1), inclusive=True) is None and not self._until:
            raise InvalidSchedule(f"{text!r} never comes: no day is what its parts ask for")

    # --- reading ---------------------------------------------------------------------------

    def _read(self, text: str) -> tuple[dict[str, str], datetime | None]:
        if len(text) > MAX_TEXT:
            raise InvalidSchedule(f"an RRULE of {len(text)} characters is too long")
        start: datetime | None = None
        rule = ""
        for line in text.split():
            key, _, value = line.partition(":")
            what, *more = key.split(";")
            if what.upper() == "DTSTART" and all(map(self._takes, more)):
                start = self._stamp("DTSTART", value)
            elif key.upper() == "RRULE" and not rule:
                rule = value
            else:
                raise InvalidSchedule(
                    f"{text!r}: {line!r} cannot be used: a rule is RRULE:…, with DTSTART:… before"
                    " it if need be"
                )
        parts: dict[str, str] = {}
        for part in filter(None, rule.upper().split(";")):
            key, equals, value = part.partition("=")
            if key == "COUNT":
                raise InvalidSchedule(
                    f"{text!r}: COUNT is not kept, for nobody counts runs since the beginning: say"
                    " UNTIL=…, or give the schedule an end"
                )
            if key not in _KNOWN or not equals or not value or key in parts:
                raise InvalidSchedule(
                    f"{text!r}: part {part!r} is unknown, empty or there twice: known are"
                    f" {', '.join(sorted(_KNOWN))}"
                )
            parts[key] = value
        if parts.get("FREQ") not in _FREQS:
            raise InvalidSchedule(f"{text!r}: FREQ must be one of {', '.join(_FREQS)}")
        return parts, start

    def _takes(self, parameter: str) -> bool:
        """Of those that a DTSTART may have: its zone, and that it is a moment or a day."""
        name, _, value = parameter.partition("=")
        if name.upper() == "TZID":
            self.zone = find_zone(value)
            return True
        return name.upper() == "VALUE" and value.upper() in ("DATE", "DATE-TIME")

    def _stamp(self, what: str, value: str) -> datetime:
        found = _STAMP.fullmatch(value.upper())
        if found is None:
            raise InvalidSchedule(
                f"{self._text!r}: {what}: {value!r} is not a moment, as 20260131T060000 is one, or"
                " 20260131T060000Z for UTC"
            )
        year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
        try:
            stamp = datetime(year, month, day, hour, minute, second)
            if found[7]:
                stamp = stamp.replace(tzinfo=UTC).astimezone(self.zone).replace(tzinfo=None)
        except (ValueError, OverflowError) as error:
            raise InvalidSchedule(f"{self._text!r}: {what}: {value!r}: {error}") from None
        if not 1970 <= stamp.year <= 9000:
            raise InvalidSchedule(f"{self._text!r}: {what}: the year must be from 1970 to 9000")
        return stamp

    def _whole(self, parts: Mapping[str, str], key: str, default: int) -> int:
        value = parts.get(key, str(default))
        if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 1_000_000:
            raise InvalidSchedule(
                f"{self._text!r}: {key} must be a whole number from 1 to 1000000, got {value!r}"
            )
        return int(value)

    def _fill(self, parts: dict[str, str], start: datetime | None, name: str) -> None:
        """Say what the rule leaves open, so that nothing but the phase is left to its anchor."""

        def put(key: str, given: int | None, low: int, high: int) -> None:
            parts[key] = str(draw(name, key, low, high) if given is None else given)

        days = ("BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYDAY")
        if not any(key in parts for key in days):
            if self._freq == "YEARLY" and "BYMONTH" not in parts:
                put("BYMONTH", None if start is None else start.month, 1, 12)
            if self._freq in ("YEARLY", "MONTHLY"):
                put("BYMONTHDAY", None if start is None else start.day, 1, 28)
            if self._freq == "WEEKLY":
                chosen = draw(name, "BYDAY", 0, 6) if start is None else start.weekday()
                parts["BYDAY"] = _DAYS[chosen]
        order = _FREQS.index(self._freq)
        if order < 4 and "BYHOUR" not in parts:
            put("BYHOUR", None if start is None else start.hour, 0, 23)
        if order < 5 and "BYMINUTE" not in parts:
            put("BYMINUTE", None if start is None else start.minute, 0, 59)
        if order < 6 and "BYSECOND" not in parts:
            put("BYSECOND", None if start is None else start.second, 0, 59)

    # --- times -----------------------------------------------------------------------------

    def next(self, wall: datetime, *, inclusive: bool = False) -> datetime | None:
        """The first of its times after `wall` (or at it), both without a zone; None: none."""
        if self._first is not None and wall < self._first:
            wall, inclusive = self._first, True
        try:
            last = wall + HORIZON
        except OverflowError:
            return None
        if self._until is not None:
            last = min(last, self._until)
        if self._freq in _FREQS[3:]:
            return self._by_days(wall, inclusive, last)
        return self._find(self._rule, self._before(wall), wall, inclusive, last)

    def _day_rule(self, parts: Mapping[str, str]) -> str | None:
        """The days that fit, whatever the time and the phase; None: all."""
        days = {key: parts[key] for key in _OF_DAYS if key in parts}
        if not days or self._freq not in _FREQS[3:]:
            return None
        # A number before a day (2FR) counts in months and years only.
        days["BYDAY"] = re.sub(r"[+-]?\d+", "", days.get("BYDAY", ",".join(_DAYS)))
        midnight = {"BYHOUR": "0", "BYMINUTE": "0", "BYSECOND": "0"}
        return _joined({"FREQ": "YEARLY", **days, **midnight})

    def _by_days(self, wall: datetime, inclusive: bool, last: datetime) -> datetime | None:
        """Day by day: for a rule that never fits, the library would look at every second until
        the year 9999."""
        tries = 0
        for day in itertools.islice(self._fitting_days(wall), DAYS):
            if day > last or tries >= TRIES:
                return None
            if self._freq == "DAILY" and (day.date() - self._anchor.date()).days % self._interval:
                continue
            tries += 1
            begin = max(wall, day)
            end = min(last, day + _DAY - timedelta(seconds=1))
            here = inclusive or begin > wall
            found = self._find(self._rule, self._before(begin), begin, here, end)
            if found is not None:
                return found
        return None

    def _fitting_days(self, wall: datetime) -> Iterator[datetime]:
        """From the day of `wall` on."""
        first = wall.replace(hour=0, minute=0, second=0, microsecond=0)
        if self._days is None:
            return (first + n * _DAY for n in range((datetime.max - first).days))
        try:
            rule = library("dateutil.rrule").rrulestr(self._days, dtstart=first)
        except _ERRORS as error:
            raise self._unusable(error) from None
        return iter(rule)

    def _find(
        self, rule: str, anchor: datetime, wall: datetime, inclusive: bool, last: datetime
    ) -> datetime | None:
        if last < wall:
            return None
        rules = library("dateutil.rrule")
        try:
            return rules.rrulestr(rule, dtstart=anchor).replace(until=last).after(wall, inclusive)
        except _ERRORS as error:
            raise self._unusable(error) from None

    def _unusable(self, error: Exception) -> InvalidSchedule:
        return InvalidSchedule(f"{self._text!r} cannot be used ({' '.join(str(error).split())})")

    def _before(self, wall: datetime) -> datetime:
        """An anchor of the same phase shortly before `wall`: the library counts all the way from
        its anchor, which from 1970 on could be a billion seconds."""
        if self._freq in _STEPS:
            step = _STEPS[self._freq] * self._interval
            # By two rounds, so that all of the round in which `wall` lies is seen.
            rounds = max(0, (wall - self._anchor) // step - 2)
            return self._anchor + rounds * step
        months = self._interval * (12 if self._freq == "YEARLY" else 1)
        passed = (wall.year - self._anchor.year) * 12 + wall.month - self._anchor.month
        rounds = max(0, passed // months - 2)
        years, month = divmod(self._anchor.month - 1 + rounds * months, 12)
        return self._anchor.replace(year=self._anchor.year + years, month=month + 1)


def _joined(parts: Mapping[str, str]) -> str:
    return "RRULE:" + ";".join(f"{key}={value}" for key, value in parts.items())

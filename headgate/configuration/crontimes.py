"""The times of a crontab line, as they mean the same here.

cron joins day of month and day of week by *or*, as we do, but for one case: where one of the two
begins with `*`, as in `*/2`, a day must fit both. That is told by a rule of iCalendar.
"""

from __future__ import annotations

from typing import Any

from headgate.errors import InvalidSchedule
from headgate.schedules.cron import Cron

_DAYS = ("SU", "MO", "TU", "WE", "TH", "FR", "SA")
_SPANS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


def same_days(when: str) -> str:
    """The text of a schedule that is due on the days on which cron runs `when`; an
    `InvalidSchedule` where there is none.

    >>> same_days("30 4 */2 * MON")
    'RRULE:FREQ=DAILY;BYMONTHDAY=1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31;BYDAY=MO;BYHOUR=4;BYMINUTE=30;BYSECOND=0'
    >>> same_days("30 4 1 * MON"), same_days("30 4 */1 * MON")
    ('30 4 1 * MON', '30 4 * * MON')
    """
    fields = when.split()
    if len(fields) != 5 or not any(fields[n].startswith("*") for n in (2, 4)):
        return when
    for n in (2, 4):
        if fields[n].startswith("*") and _every(fields[n], n):
            fields[n] = "*"
    if "*" in (fields[2], fields[4]):
        return " ".join(fields)
    return _rule(when, fields)


def _every(field: str, index: int) -> bool:
    """Does a field that begins with `*` leave nothing out?"""
    found = _values(field, index)
    low, high = _SPANS[index]
    return found is None or found == list(range(low, high + 1))


def _values(field: str, index: int) -> list[int] | None:
    """All that a field names; None: everything."""
    if "*" in field.split(","):
        return None
    alone = ["*"] * 5
    alone[index] = field
    found: list[Any] = Cron(" ".join(alone), "crontab")._cron.expanded[index]
    if found == ["*"]:
        return None
    if not all(isinstance(value, int) for value in found):
        raise InvalidSchedule(f"{field!r} cannot be joined with another field")
    return sorted(found)


def _rule(when: str, fields: list[str]) -> str:
    if "(" in when:  # H(0-30), made of cron's 0~30: a rule has no such value
        raise InvalidSchedule(
            f"{when!r}: in cron its day of month and its day of week must both fit, which cannot be"
            " said together with a random time: give it a time"
        )
    minutes, hours, days, months, weekdays = (_values(f, n) for n, f in enumerate(fields))
    parts = {
        "BYMONTH": months,
        "BYMONTHDAY": days,
        "BYDAY": None if weekdays is None else [_DAYS[day] for day in weekdays],
        "BYHOUR": hours,
        "BYMINUTE": minutes if minutes is not None else list(range(60)),
        "BYSECOND": [0],
    }
    # Without hours it means the clock as it runs, as cron does when the clocks are changed.
    text = f"RRULE:FREQ={'HOURLY' if hours is None else 'DAILY'}"
    for key, values in parts.items():
        if values is not None:
            text += f";{key}={','.join(map(str, values))}"
    return text

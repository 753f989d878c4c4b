"""Cron expressions: the wall-clock times that one names, one after the other."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from headgate.errors import InvalidSchedule
from headgate.schedules.extra import library
from headgate.schedules.hashed import FIELDS, expand

if TYPE_CHECKING:
    from croniter import croniter

MAX_TEXT = 1000
ALIASES = {
    "@hourly": "H * * * *",
    "@daily": "H H * * *",
    "@midnight": "H H(0-2) * * *",
    "@weekly": "H H * * H",
    "@monthly": "H H H * *",
    "@yearly": "H H H H *",
    "@annually": "H H H H *",
}
_EVERY_HOUR = list(range(24))


class Cron:
    """The times of one expression. `every_hour`: it names all hours of its days, so it means the
    clock as it runs and not times of the day."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        fields = self._fields(text)
        expanded = [expand(text, index, field, name) for index, field in enumerate(fields)]
        self._cron = self._parse(expanded, fields)
        hours: list[Any] = self._cron.expanded[1]
        self.every_hour = hours == ["*"] or sorted(map(str, hours)) == sorted(map(str, _EVERY_HOUR))
        if self.next(datetime(2000, 1, 1)) is None:
            raise InvalidSchedule(
                f"{text!r} never comes: no day of any month is what its fields day of month and"
                " month ask for"
            )

    def _fields(self, text: str) -> list[str]:
        if len(text) > MAX_TEXT:
            raise InvalidSchedule(f"a cron expression of {len(text)} characters is too long")
        if text.startswith("@"):
            if text.lower() not in ALIASES:
                raise InvalidSchedule(f"{text!r} is not known: known are {', '.join(ALIASES)}")
            return ALIASES[text.lower()].split()
        fields = text.split()
        if len(fields) not in (5, 6):
            raise InvalidSchedule(
                f"{text!r} has {len(fields)} fields: a cron expression has 5 (minute, hour, day of"
                " month, month, day of week), or 6 with seconds last. Else it is one of"
                f" {', '.join(ALIASES)}, or begins with RRULE:"
            )
        return fields

    def _parse(self, fields: list[str], written: list[str]) -> croniter:
        try:
            return _croniter(" ".join(fields))
        except InvalidSchedule as whole:
            # Each field alone, to be able to say which one it is.
            for index, field in enumerate(fields):
                alone = ["*"] * len(fields)
                alone[index] = field
                try:
                    _croniter(" ".join(alone))
                except InvalidSchedule as error:
                    raise InvalidSchedule(
                        f"{self._text!r}: field {FIELDS[index]}: {written[index]!r} cannot be used"
                        f" ({error})"
                    ) from None
            raise InvalidSchedule(f"{self._text!r} cannot be used ({whole})") from None

    def next(self, wall: datetime, *, inclusive: bool = False) -> datetime | None:
        """The first of its times after `wall` (or at it), both without a zone; None: none comes
        in 50 years."""
        # Between whole seconds there is none of them, and the library is not made for it.
        start = wall.replace(microsecond=0)
        if inclusive and start == wall:
            start -= timedelta(seconds=1)
        errors = library("croniter")
        try:
            return self._cron.get_next(datetime, start_time=start)
        except (errors.CroniterBadDateError, OverflowError):
            return None


def _croniter(expression: str) -> croniter:
    library_ = library("croniter")
    try:
        return library_.croniter(expression, datetime(2000, 1, 1))
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        # Its own errors are ValueErrors; the others are what odd texts have brought out of it.
        raise InvalidSchedule(" ".join(str(error).split()) or type(error).__name__) from None

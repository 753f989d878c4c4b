"""Rates: at most so many starts in a period, instead of so many at once.

A *rate* is a limit whose units are not given back by who took them: each start counts for the
length of the period and then no more. What stands here is declared (`Rate`), told to stores
(`Pace`) and decided by (`Starts`), without a store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from headgate.errors import DeclarationError, IsARate
from headgate.limits import Key, Limit, check_value

STEPS = 1000
"""Starts that are this part of a period apart may be noted together, so that a group never has
many more notes than that, whatever its rate."""
SHORTEST, LONGEST = 0.001, 31 * 86400.0
RATE_SLOT = -2
"""Stands for the number of a slot where a job was granted a start: there is none to give back."""

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"\s*(\d+|unlimited)\s*/\s*(\d+(?:\.\d+)?)?\s*(s|min|m|h|d)\s*")


@dataclass(frozen=True, slots=True)
class Pace:
    """What makes a limit a rate: the period in seconds, and how many may start at once."""

    per: float
    burst: int | None = None

    @property
    def step(self) -> float:
        """Starts that are less than this apart may be noted as one, at the time of the last."""
        return self.per / STEPS

    def at_once(self, value: int) -> int:
        """How many units may start in one moment."""
        return value if self.burst is None else min(self.burst, value)

    def window(self, value: int) -> float:
        """The seconds in which no more than `at_once` may start: their part of the period."""
        return self.per * self.at_once(value) / value


class Starts:
    """The starts of one group that still count, as one claim sees them.

    No more than `value` in any `per` seconds, and no more than `burst` in its part of them:

    >>> starts = Starts(Pace(60, burst=2), 6, now=100.0)
    >>> starts.free(), starts.add(2), starts.free(), starts.opens(1)
    (2, None, 0, 120.0)

    A start counts from its moment, excluded, until `per` seconds later: the next may begin then.
    """

    __slots__ = ("_now", "_recent", "_rows", "_value", "new", "pace")

    def __init__(
        self, pace: Pace, value: int | None, now: float, rows: Iterable[tuple[float, int]] = ()
    ) -> None:
        """`rows`: (when it ends to count, units) of each that does not end by `now`."""
        self.pace = pace
        self.new = 0
        """Units started by this claim."""
        self._value = value
        self._now = now
        self._rows = sorted(rows)
        self._recent = sum(units for leaves, units in self._leaving() if leaves > now)

    @property
    def held(self) -> int:
        return sum(units for _, units in self._rows)

    def _leaving(self) -> list[tuple[float, int]]:
        """When each start leaves the window of the burst; empty where there is no such window."""
        value, pace = self._value, self.pace
        if not value or pace.at_once(value) == value:
            return []
        window = pace.window(value)
        return [(ends - pace.per + window, units) for ends, units in self._rows]

    def free(self, held: int | None = None) -> int:
        """How many units may start now; meaningless where there is no value."""
        value = self._value or 0
        free = value - (self.held if held is None else held)
        at_once = self.pace.at_once(value)
        return free if at_once == value else min(free, at_once - self._recent)

    def add(self, units: int) -> None:
        self.new += units
        self._recent += units
        self._rows.append((self._now + self.pace.per, units))

    def opens(self, units: int, held: int | None = None) -> float | None:
        """When so many units may start; None: the end of starts alone does not bring that."""
        value = self._value
        if not value or units > self.pace.at_once(value):
            return None
        held = self.held if held is None else held
        first = _reached(self._rows, held + units - value, self._now)
        leaving = [row for row in self._leaving() if row[0] > self._now]
        second = _reached(leaving, self._recent + units - self.pace.at_once(value), self._now)
        return None if first is None or second is None else max(first, second)


def _reached(rows: Iterable[tuple[float, int]], wanted: int, now: float) -> float | None:
    """When so many units of these have gone; rows come in the order of their ends."""
    if wanted <= 0:
        return now
    for at, units in rows:
        wanted -= units
        if wanted <= 0:
            return at
    return None


# --- declaring --------------------------------------------------------------------------------


class Rate(Limit):
    """At most `max` units of this name may start in any `per` seconds, everywhere.

    >>> api = Rate("payments-api", 100, per=60, burst=10)
    >>> api.pace
    Pace(per=60.0, burst=10)

    `burst`: how many of them may start at once (at most so many in their part of the period); 1
    spaces all starts evenly, None allows all at once.
    """

    __slots__ = ("pace",)

    def __init__(
        self,
        name: str,
        max: int | None,
        *,
        per: float | timedelta,
        key: Key = None,
        burst: int | None = None,
        units: int = 1,
    ) -> None:
        super().__init__(name, max, key=key, units=units)
        self.pace = check_pace(per, burst, name)

    def units(self, n: int) -> Rate:
        """The same rate, of which a job takes `n` units instead of one."""
        per, burst = self.pace.per, self.pace.burst
        return Rate(self.name, self.max, per=per, key=self.key, burst=burst, units=n)

    def __repr__(self) -> str:
        key = f", key={self.key!r}" if self.key is not None else ""
        burst = f", burst={self.pace.burst}" if self.pace.burst is not None else ""
        units = f", units={self.width}" if self.width != 1 else ""
        return f"Rate({self.name!r}, {self.max}, per={self.pace.per:g}{key}{burst}{units})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rate):
            return False if isinstance(other, Limit) else NotImplemented
        return super().__eq__(other) is True and self.pace == other.pace

    def __hash__(self) -> int:
        return hash((self.name, self.max, self.width, self.pace))


def pace_of(limit: Limit) -> Pace | None:
    return limit.pace if isinstance(limit, Rate) else None


def refuse_slots(pace: Pace | None, group: str) -> None:
    """Nobody holds a start: what is done with slots cannot be done with a rate."""
    if pace is not None:
        raise IsARate(
            f"{group!r} is a rate: it counts starts, and nobody holds them, so there is no slot to"
            " take or to give back. Put the code into a task with that rate among its limits, or"
            " use a limit (app.limit) for what is held"
        )


def check_pace(per: object, burst: object, name: str) -> Pace:
    length = per.total_seconds() if isinstance(per, timedelta) else per
    if isinstance(length, bool) or not isinstance(length, int | float):
        raise DeclarationError(f"rate {name!r}: per must be seconds or a timedelta, got {per!r}")
    if not SHORTEST <= length <= LONGEST:
        raise DeclarationError(
            f"rate {name!r}: per must be from {SHORTEST:g} s to {LONGEST / 86400:g} days,"
            f" got {length:g} s"
        )
    if burst is not None and (isinstance(burst, bool) or not isinstance(burst, int) or burst < 1):
        raise DeclarationError(
            f"rate {name!r}: burst must be a whole number from 1, or None for all at once,"
            f" got {burst!r}"
        )
    return Pace(float(length), burst)


def read_rate(name: str, value: object) -> Rate:
    """A rate as a configuration file says it.

    >>> read_rate("api", "100/60s"), read_rate("api", "5/s")
    (Rate('api', 100, per=60), Rate('api', 5, per=1))
    >>> read_rate("api", {"limit": 100, "per": "1m", "burst": 10})
    Rate('api', 100, per=60, burst=10)
    """
    if isinstance(value, str):
        return _from_text(name, value)
    if not isinstance(value, Mapping):
        raise DeclarationError(
            f'rate {name!r}: write "100/60s", or a table of limit, per and burst; got {value!r}'
        )
    table = dict(cast("Mapping[str, object]", value))
    if unknown := set(table) - {"limit", "per", "burst"}:
        raise DeclarationError(
            f"rate {name!r}: unknown {min(unknown)!r}; known are limit, per and burst"
        )
    if "limit" not in table or "per" not in table:
        raise DeclarationError(f"rate {name!r}: a table needs limit and per")
    most = None if table["limit"] == "unlimited" else check_value(table["limit"], name)
    per = table["per"]
    if isinstance(per, str):
        per = _from_text(name, f"1/{per}").pace.per
    pace = check_pace(per, table.get("burst"), name)
    return Rate(name, most, per=pace.per, burst=pace.burst)


def _from_text(name: str, text: str) -> Rate:
    match = _TEXT.fullmatch(text)
    if match is None:
        raise DeclarationError(
            f'rate {name!r}: a rate is written like "100/60s", "5/s" or "1000/1h", got {text!r}'
        )
    most = None if match[1] == "unlimited" else check_value(int(match[1]), name)
    return Rate(name, most, per=float(match[2] or 1) * _UNITS[match[3]])

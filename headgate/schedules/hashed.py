"""`H` and `R` in a cron expression: values that a schedule's name decides.

`H` is the same number for the same name, for ever and everywhere, so that a hundred jobs
"at night" do not all start at midnight. `R` is another draw: it depends on the whole text too,
so editing the expression rolls it anew. Neither differs between two processes, or between two
starts of one: all who tick must agree on when.
"""

from __future__ import annotations

import hashlib
import re
import zlib

from headgate.errors import InvalidSchedule

FIELDS = ("minute", "hour", "day of month", "month", "day of week", "second")

# What H may become where it stands alone. A day of the month that every month has, and each day
# of the week once (7 is Sunday again).
_SPANS = ((0, 59), (0, 23), (1, 28), (1, 12), (0, 6), (0, 59))
_LAST = (59, 23, 31, 12, 6, 59)
_TOKEN = re.compile(
    r"(?P<kind>[HR])(?:\((?P<low>\d{1,3})-(?P<high>\d{1,3})\))?(?:/(?P<step>\d{1,3}))?"
)


def expand(text: str, index: int, field: str, name: str) -> str:
    """A field of a cron expression with every `H` and `R` in it replaced by what they are.

    >>> expand("H H * * *", 0, "H/15", "nightly")
    '6-59/15'
    >>> expand("H H * * *", 1, "H(0-5)", "nightly")
    '3'
    """
    return ",".join(_part(text, index, part, name) for part in field.split(","))


def _part(text: str, index: int, part: str, name: str) -> str:
    if "H" not in part.upper() and "R" not in part.upper():
        return part
    found = _TOKEN.fullmatch(part.upper())
    if found is None:
        return part  # a name, as in MAR or THU; what is neither is refused by the parser
    low, high = _SPANS[index]
    bounded = found["low"] is not None
    if bounded:
        low, high = int(found["low"]), int(found["high"])
        first, last = min(_SPANS[index][0], 0 if index == 4 else 99), _LAST[index]
        if not first <= low <= high <= last:
            raise InvalidSchedule(
                f"{text!r}: field {FIELDS[index]}: {part!r} must name a range within {first}-{last}"
            )
    seed = _seed(found["kind"], name, text) >> index
    if found["step"] is None:
        return str(low + seed % (high - low + 1))
    step = int(found["step"])
    end = high if bounded else _LAST[index]
    if not 1 <= step <= end - low + 1:
        raise InvalidSchedule(
            f"{text!r}: field {FIELDS[index]}: the step of {part!r} must be from 1 to"
            f" {end - low + 1}"
        )
    # One of the first `step` values, so that no name loses its last one: with any of the others
    # there would be one run less in each round.
    begin = low + seed % step
    # A range of one value cannot have a step.
    return f"{begin}-{end}/{step}" if begin < end else str(begin)


def _seed(kind: str, name: str, text: str) -> int:
    if kind == "H":
        return zlib.crc32(name.encode())
    return int.from_bytes(hashlib.sha256(f"{name}\0{text}".encode()).digest()[:4])


def draw(name: str, what: str, low: int, high: int) -> int:
    """A number from `low` to `high` that the name decides, for what an RRULE leaves open."""
    digest = hashlib.sha256(f"{name}\0{what}".encode()).digest()
    return low + int.from_bytes(digest[:8]) % (high - low + 1)

"""Time zones by their names."""

from __future__ import annotations

import functools
from zoneinfo import ZoneInfo

from headgate.errors import InvalidSchedule


@functools.cache
def find_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise InvalidSchedule(
            f"time zone {name!r} is not known: use a name like Europe/Berlin or UTC"
        ) from None

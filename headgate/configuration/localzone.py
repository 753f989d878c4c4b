"""The time zone of this machine, by the name under which others know it too."""

from __future__ import annotations

import os
from pathlib import Path
from zoneinfo import ZoneInfo

_LOCALTIME = Path("/etc/localtime")
_TIMEZONE = Path("/etc/timezone")


def local_zone() -> str:
    """What cron would go by: `TZ`, else what the system is set to, else UTC.

    Schedules are kept by name of their zone: the offset of today would be wrong after the next
    change of the clocks.
    """
    for name in _candidates():
        try:
            return ZoneInfo(name).key
        except (KeyError, OSError, ValueError):
            continue
    return "UTC"


def _candidates() -> list[str]:
    found = [os.environ.get("TZ", "").removeprefix(":")]
    try:
        found.append(_TIMEZONE.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):
        pass  # not every system has this file
    try:
        found.append(str(_LOCALTIME.resolve()).rpartition("/zoneinfo/")[2])
    except OSError:
        pass  # nor this one
    return [name for name in found if name and not name.startswith("/")]

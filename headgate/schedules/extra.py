"""The libraries behind schedules, loaded when a schedule is first used."""

from __future__ import annotations

import importlib
from typing import Any

from headgate.errors import InvalidSchedule, how_to_install


class SchedulesMissing(InvalidSchedule):
    """Schedules need libraries that are not installed."""


def library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise SchedulesMissing(
            f"schedules need {error.name}, which is not installed here:"
            f" {how_to_install('schedules')}"
        ) from None

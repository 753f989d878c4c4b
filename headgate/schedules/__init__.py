"""Schedules: jobs that are submitted by the clock, each tick exactly once."""

from __future__ import annotations

from headgate.schedules.schedule import Missed, Schedule
from headgate.schedules.timetable import Timetable

__all__ = ["Missed", "Schedule", "Timetable"]

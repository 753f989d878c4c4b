"""Schedules: jobs that are submitted by the clock, each tick exactly once."""

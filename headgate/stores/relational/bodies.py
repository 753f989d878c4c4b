"""The body of a job as every relational store keeps it."""

from __future__ import annotations

from typing import Any

from headgate.jobs import NewJob
from headgate.limits import band_of, lane_of


def cells(job: NewJob) -> dict[str, Any]:
    """By the names of the columns. Who is not routed yet belongs to no queue and no band."""
    return {
        "task": job.task,
        "queue": job.queue if job.routed else "",
        "priority": job.priority,
        "band": band_of(job.task, job.needs, job.fair_limit) if job.routed else "",
        "turn": job.turn,
        "lane": lane_of(job.needs),
        "args": job.args,
        "options": job.options,
        "needs": job.needs.to_json(),
        "max_lost": job.max_lost,
    }

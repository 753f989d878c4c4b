"""The job that a schedule submits, as data: stamped when it is declared, made anew for each tick.

So any worker can tick any schedule, whether or not it has the code of the task.
"""

from __future__ import annotations

import json
from typing import Any, cast

from headgate.jobs import CapUse, NewJob, new_id
from headgate.limits import Needs

_PLAIN = ("task", "args", "queue", "priority", "turn", "fair_limit", "delay", "expires", "max_lost")

SCHEDULE, TICK = "schedule", "tick"
"""In the options of a job that a schedule submitted: whose it is, and of which tick."""


def to_text(job: NewJob) -> str:
    """What is kept of a job to make others like it; the same for the same declaration."""
    cells: dict[str, Any] = {name: getattr(job, name) for name in _PLAIN}
    cells |= {
        "needs": job.needs.to_json(),
        "options": job.options,
        "carried": job.carried,
        "caps": [
            [c.group, c.max_total, c.max_waiting, c.unique_for, c.when_full] for c in job.caps
        ],
    }
    return json.dumps(cells, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def task_of(text: str) -> str:
    return json.loads(text)["task"]


def to_job(text: str, schedule: str, tick: float, run_at: float | None) -> NewJob:
    """The job of one tick. A delay that the declaration asks for counts from the tick."""
    cells = cast("dict[str, Any]", json.loads(text))
    delay: float = cells["delay"]
    if delay:
        run_at = (tick if run_at is None else run_at) + delay
    options = {**json.loads(cells["options"]), SCHEDULE: schedule, TICK: tick}
    return NewJob(
        id=new_id(),
        **{name: cells[name] for name in _PLAIN if name != "delay"},
        needs=Needs.from_json(cells["needs"]),
        run_at=run_at,
        carried=tuple((group, value) for group, value in cells["carried"]),
        options=json.dumps(options, ensure_ascii=False, separators=(",", ":")),
        caps=tuple(CapUse(*cap) for cap in cells["caps"]),
    )


def tick_of(options: str) -> tuple[str, float] | None:
    """(schedule, tick) of a job, from its options; None for any other job."""
    if f'"{SCHEDULE}"' not in options:
        return None
    read = cast("dict[str, Any]", json.loads(options))
    return (read[SCHEDULE], read[TICK]) if SCHEDULE in read and TICK in read else None

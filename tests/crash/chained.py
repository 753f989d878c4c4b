"""Short jobs, one after the other through one slot, until one of them kills its worker."""

from __future__ import annotations

import os
import signal
import time

from headgate import App, Context
from headgate.jobs import JobFilter
from tests.worker.sample import trail

app = App()


def reserved() -> list[str]:
    """The jobs that the store shows as reserved at this moment."""
    ready = app.store.find(JobFilter(states=frozenset(("ready",))), limit=200)
    return [job.id for job in ready if "has it reserved" in app.store.why(job.id).detail]


@app.task(max_concurrent=1)
async def link(ctx: Context, kills: str = "") -> int:
    trail("ran", job=ctx.job_id, attempt=ctx.attempt)
    if kills and ctx.attempt == 1:
        # The store hears of what started here only later: none of it looks started from there.
        trail("reserved", jobs=[job for job in reserved() if job != ctx.job_id])
        os.kill(os.getppid() if kills == "keeper" else os.getpid(), signal.SIGKILL)
        time.sleep(600)
    return ctx.attempt

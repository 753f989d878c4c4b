"""The end of a `--burst` run: what is left, and why it was left."""

from __future__ import annotations

from collections import Counter

from headgate.jobs import JobFilter, JobRecord
from headgate.stores.protocol import Store

_LOOKED_AT = 200


def left_over(
    store: Store,
    tasks: frozenset[str],
    queues: tuple[str, ...] | None,
    closed: frozenset[str] = frozenset(),
) -> list[str]:
    """Lines for the user: the jobs that this worker did not run, by task and cause."""
    waiting = JobFilter(states=frozenset(("ready", "scheduled")))
    page = store.listing(waiting, limit=_LOOKED_AT)
    jobs = page.jobs
    if not jobs:
        return []
    causes = Counter((job.task, _cause(store, job, tasks, queues, closed)) for job in jobs)
    more = page.after is not None
    many = f"{'more than ' if more else ''}{len(jobs)} job{'' if len(jobs) == 1 else 's'}"
    lines = [f"left: {many} that could not run here"]
    lines += [f"left: {n} of task {task!r}: {why}" for (task, why), n in causes.most_common(20)]
    return lines


def _cause(
    store: Store,
    job: JobRecord,
    tasks: frozenset[str],
    queues: tuple[str, ...] | None,
    closed: frozenset[str],
) -> str:
    if job.task not in tasks:
        return "the task is not known here"
    if queues is not None and job.queue not in queues:
        return f"its queue {job.queue!r} is not one of ours"
    if job.queue in closed:
        return f"its queue {job.queue!r} is paused in the configuration"
    if job.state == "scheduled":
        return "it is due later"
    return {
        "queue-paused": f"its queue {job.queue!r} is paused",
        "limit-zero": "a limit it needs is 0",
        "limit-paused": "a limit it needs is paused",
        "limit-missing": "a limit it needs has no value",
        "too-wide": "it is wider than a limit it needs",
    }.get(store.why(job.id).code, "it waits (see headgate jobs why)")

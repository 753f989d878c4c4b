"""What a scheduler says when it is asked how things are: every run, every wait, every group."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from headgate.configuration.model import Scheduled
from headgate.configuration.removed import removed_runs
from headgate.jobs import JobFilter, JobRecord, State
from headgate.stores.protocol import Store
from headgate.why import age, ask

MOST = 200


def status(store: Store, scheduled: Scheduled) -> Iterator[str]:
    """Line by line: what runs, what waits and for what, the groups, and what comes next."""
    now = store.now()
    running = _of(store, "running", scheduled)
    waiting = _of(store, "ready", scheduled)
    later = _of(store, "scheduled", scheduled)
    yield (
        f"{len(scheduled.jobs)} jobs, {len(running)} running, {len(waiting)} waiting,"
        f" {len(later)} for later"
    )
    for run in running:
        since = now - (run.started_at or run.created_at)
        where = f" on {run.worker}" if run.worker else ""
        yield f"[{run.task} {run.id}] running for {age(since)}{where}{_in(run.groups)}"
    for run in waiting:
        waited = now - (run.ready_at or run.created_at)
        yield f"[{run.task} {run.id}] blocked for {age(waited)}: {ask(store, run.id)}"
    for run in later:
        yield f"[{run.task} {run.id}] due {_moment(run.run_at)}"
    for name, runs in removed_runs(store, scheduled.jobs).items():
        for run in reversed(runs):
            waited = now - (run.ready_at or run.created_at)
            yield (
                f"[{name} {run.id}] waiting for {age(waited)}: {name} was removed from the"
                " configuration; the run will be cancelled"
            )
    yield from _groups(store, scheduled)


def _of(store: Store, state: State, scheduled: Scheduled) -> list[JobRecord]:
    wanted = JobFilter(states=frozenset([state]))
    found = [job for job in store.find(wanted, limit=MOST) if job.task in scheduled.jobs]
    return sorted(found, key=lambda job: (job.task, job.id))


def _groups(store: Store, scheduled: Scheduled) -> Iterable[str]:
    for name, record in store.values(scheduled.groups).items():
        most = "unlimited" if record.value is None else str(record.value)
        shut = ", paused" if record.paused else ""
        yield f"concurrency group {name}: {record.held} out of {most}{shut}"


def _in(groups: tuple[str, ...]) -> str:
    return f" in {', '.join(groups)}" if groups else ""


def _moment(moment: float | None) -> str:
    return "soon" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))

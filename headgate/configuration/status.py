"""What a scheduler says when it is asked how things are: every run, every wait, every group."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator

from headgate.configuration.model import Scheduled
from headgate.configuration.removed import removed_runs
from headgate.jobs import JobFilter, JobRecord, State
from headgate.stores.protocol import Store
from headgate.why import age, ask

MOST = 5000
"""Runs of one state that are told."""
LOOKED = 50_000
"""Jobs of one state that are looked through for them: the store may hold others than ours."""
PAGE = 500
ASKED = 20
"""Runs of one job that are asked what they wait for: those behind them wait for these, too."""


def status(store: Store, scheduled: Scheduled) -> Iterator[str]:
    """Line by line: what runs, what waits and for what, the groups, and what comes next."""
    now = store.now()
    running, more_running = _of(store, "running", scheduled)
    waiting, more_waiting = _of(store, "ready", scheduled)
    later, more_later = _of(store, "scheduled", scheduled)
    yield (
        f"{len(scheduled.jobs)} jobs, {len(running)} running, {len(waiting)} waiting,"
        f" {len(later)} for later"
    )
    for run in running:
        since = now - (run.started_at or run.created_at)
        where = f" on {run.worker}" if run.worker else ""
        yield f"[{run.task} {run.id}] running for {age(since)}{where}{_in(run.groups)}"
    yield from more_running
    asked: Counter[str] = Counter()
    for run in waiting:
        waited = now - (run.ready_at or run.created_at)
        asked[run.task] += 1
        first = asked[run.task] <= ASKED
        why = ask(store, run.id) if first else f"behind the {ASKED} runs of {run.task} above"
        yield f"[{run.task} {run.id}] blocked for {age(waited)}: {why}"
    yield from more_waiting
    for run in later:
        yield f"[{run.task} {run.id}] due {_moment(run.run_at)}"
    yield from more_later
    for name, runs in removed_runs(store, scheduled.jobs).items():
        for run in reversed(runs):
            waited = now - (run.ready_at or run.created_at)
            yield (
                f"[{name} {run.id}] waiting for {age(waited)}: {name} was removed from the"
                " configuration; the run will be cancelled"
            )
    yield from _groups(store, scheduled)


def _of(
    store: Store, state: State, scheduled: Scheduled
) -> tuple[list[JobRecord], tuple[str, ...]]:
    """Runs in this state, and a line about those that are not among them."""
    wanted = JobFilter(states=frozenset([state]))
    found: list[JobRecord] = []
    after: str | None = None
    looked = 0
    while len(found) <= MOST and looked < LOOKED:
        page = store.browse(wanted, limit=PAGE, after=after)
        found += [job for job in page.jobs if job.task in scheduled.jobs]
        looked += len(page.jobs)
        after = page.after
        if after is None:
            break
    told = found[:MOST]
    whole = len(told) == len(found) and looked < LOOKED
    more = () if whole else (f"there may be more: see headgate jobs ls --state {state}",)
    return sorted(told, key=lambda job: (job.task, job.id)), more


def _groups(store: Store, scheduled: Scheduled) -> Iterable[str]:
    for name, record in store.values(scheduled.groups).items():
        most = "unlimited" if record.value is None else str(record.value)
        shut = ", paused" if record.paused else ""
        yield f"concurrency group {name}: {record.held} out of {most}{shut}"


def _in(groups: tuple[str, ...]) -> str:
    return f" in {', '.join(groups)}" if groups else ""


def _moment(moment: float | None) -> str:
    return "soon" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))

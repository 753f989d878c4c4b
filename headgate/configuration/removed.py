"""Runs that wait for a job which is in no configuration any more: renamed, or taken out.

They are shown and told of from the first moment; the store cancels them after its grace.
"""

from __future__ import annotations

from collections.abc import Collection

from headgate.jobs import JobFilter, JobRecord
from headgate.stores.protocol import Store

MOST = 200


def removed_runs(store: Store, jobs: Collection[str]) -> dict[str, list[JobRecord]]:
    """What waits of jobs that neither this configuration nor any worker that is there has."""
    names = {spec.name for spec in store.tasks() if spec.source == "file"} - set(jobs)
    if not names:
        return {}
    # Another machine may have it still, and will run it.
    names -= {task for one in store.workers() if one.state != "dead" for task in one.tasks}
    waiting = frozenset(("ready", "scheduled"))
    found = {
        name: list(store.listing(JobFilter(task=name, states=waiting), limit=MOST).jobs)
        for name in sorted(names)
    }
    return {name: runs for name, runs in found.items() if runs}

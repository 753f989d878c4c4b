"""Runs of jobs that are in no configuration any more.

A job of a configuration file that was renamed or taken out is known to nobody: its runs that wait
would wait for ever. They are cancelled when no registered worker has known the task for
`GONE_AFTER` seconds, so that a restart, or another machine that still has it, loses nothing. Tasks
that programs declare are left alone: their next release may bring them back.
"""

from __future__ import annotations

import json

import msgspec

from headgate.jobs import JobFilter
from headgate.stores.protocol import TaskSpec
from headgate.stores.relational import inspecting, orphans, searching
from headgate.stores.relational.events import record
from headgate.stores.relational.transaction import Transaction

REASON = "removed from the configuration"
AT_ONCE = 500
"""Runs that are cancelled in one transaction; the next look takes the rest."""


def waited_for(tx: Transaction) -> list[str]:
    """Tasks of files that nobody has known for long, of which something may wait."""
    before = {"before": tx.now - orphans.GONE_AFTER}
    gone = [
        row["name"]
        for row in tx.rows(tx.sql.orphans.long_gone, before)
        if msgspec.json.decode(row["spec"], type=TaskSpec).source == "file"
    ]
    if not gone:
        return []
    # Somebody may have come back since it was noted that nobody is there.
    known = {task for row in tx.rows(tx.sql.workers.every) for task in json.loads(row["tasks"])}
    _, needed = orphans.needed(tx)
    return sorted((set(gone) - known) & needed)


def cancel(tx: Transaction) -> list[tuple[str, int]]:
    """Cancel what waits of such tasks: how many runs of which."""
    done: list[tuple[str, int]] = []
    for task in waited_for(tx):
        wanted = JobFilter(task=task, states=frozenset(("ready", "scheduled")))
        runs = searching.listing(tx, wanted, AT_ONCE, None).jobs
        for run in runs:
            inspecting.cancel(tx, run.id, "headgate", REASON)
        if runs:
            record(tx, "runs_removed", task, "headgate", reason=REASON, runs=len(runs))
            done.append((task, len(runs)))
    return done

"""The sweeper: takes back what dead workers held, and ends what has expired.

Nothing waits for it: every claim counts only what lives. It tidies up behind.
"""

from __future__ import annotations

import logging

from headgate.stores.protocol import Store

log = logging.getLogger("headgate.worker")

EVERY = 1.0
COMPACT_EVERY = 0.1
"""Seconds; the store itself knows when there may be something to do."""


def sweep(store: Store) -> None:
    found = store.sweep()
    if found.lost_workers:
        log.warning(
            "%d dead workers were taken away; %d attempts were lost with them",
            *(len(found.lost_workers), found.lost_attempts),
        )
    for task, runs in found.removed:
        log.warning("%d waiting runs of %s were cancelled: removed from the configuration",
                    runs, task)  # fmt: skip

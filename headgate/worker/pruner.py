"""The pruner: forgets jobs that ended long ago, a few at a time."""

from __future__ import annotations

import logging

from headgate.jobs import Retention
from headgate.stores.protocol import Store

log = logging.getLogger("headgate.worker")

EVERY = 60.0
CHUNK = 500
_MOST_CHUNKS = 100


def prune(store: Store, retention: Retention) -> None:
    """Small transactions, so that claims get their turn in between; what is left after a
    good number of them waits for the next time."""
    total = 0
    for _ in range(_MOST_CHUNKS):
        pruned = store.prune(retention, CHUNK)
        total += pruned
        if pruned < CHUNK:
            break
    if total:
        log.info("%d old jobs were pruned", total)

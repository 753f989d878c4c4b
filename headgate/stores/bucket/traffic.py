"""How many requests the machines have sent, and how many jobs ended meanwhile: each process adds
what it sent to a table of the store, along with a write that it makes anyway."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from headgate.clock import Clock
from headgate.stores.bucket.objects import Objects
from headgate.stores.sqlite.transaction import Transaction

TABLE = (
    "CREATE TABLE IF NOT EXISTS traffic (day TEXT NOT NULL, kind TEXT NOT NULL,"
    " count INTEGER NOT NULL, PRIMARY KEY (day, kind)) STRICT, WITHOUT ROWID"
)
EVERY = 60.0
"""Seconds between two times that a process adds what it sent."""
KEPT = 31
"""Days."""
JOBS = "jobs"

Tell = Callable[[Transaction], None]


class Meter:
    """Of one process; any thread may use it."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._clock = Clock()
        self._fresh()

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._jobs = 0
        self._told: Counter[str] = Counter()
        self._at = float("-inf")

    def ended(self, jobs: int) -> None:
        self._jobs += jobs

    @contextmanager
    def telling(self) -> Generator[Tell | None]:
        """Around a commit that writes anyway: what to do within it, if it is time to."""
        if self._pid != os.getpid():  # the requests of the parent are the parent's to tell
            self._fresh()
            self._told = Counter(self._objects.requests())
        now = self._clock.boot()
        # One thread at a time: two would both tell what neither has told yet.
        if now - self._at < EVERY or not self._guard.acquire(blocking=False):
            yield None
            return
        try:
            seen = Counter(self._objects.requests())
            seen[JOBS] = self._jobs
            yield lambda tx: _add(tx, seen - self._told)
            # Only now: what was undone has told nothing.
            self._told, self._at = seen, now
        finally:
            self._guard.release()


def _add(tx: Transaction, counts: Counter[str]) -> None:
    day = datetime.fromtimestamp(tx.now, UTC)
    tx.many(
        "INSERT INTO traffic (day, kind, count) VALUES (?, ?, ?)"
        " ON CONFLICT (day, kind) DO UPDATE SET count = count + excluded.count",
        [(day.date().isoformat(), kind, count) for kind, count in sorted(counts.items())],
    )
    oldest = (day - timedelta(days=KEPT)).date().isoformat()
    tx.run("DELETE FROM traffic WHERE day < ?", (oldest,))


def measured(tx: Transaction) -> tuple[int, Counter[str]]:
    """How many days, and what they saw."""
    rows = tx.rows("SELECT kind, sum(count) AS count FROM traffic GROUP BY kind")
    days = int(tx.value("SELECT count(DISTINCT day) FROM traffic"))
    return days, Counter({row["kind"]: int(row["count"]) for row in rows})

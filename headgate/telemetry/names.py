"""Every metric: its kind, its labels, what it says. Pages, rules and tests go by this list.

`own`: counted by those who did it; add them up. `store`: how the store is, the same whoever is
asked; of several that tell it take the greatest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "histogram", "gauge"]

SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""The buckets of waits and runs."""
MOMENTS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""The buckets of what should take no time."""


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    """Without the `_total` that a counter is shown with."""
    kind: Kind
    labels: tuple[str, ...]
    """The first may have many values, and is bounded; the others have few."""
    scope: Literal["own", "store"]
    text: str
    buckets: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        return f"{self.name}_total" if self.kind == "counter" else self.name


ACQUISITION = Family(
    "headgate_concurrency_acquisition",
    "counter",
    ("group", "result"),
    "own",
    "Slots acquired, by jobs that started and by hand, and what was rejected: submissions by a"
    " cap, slots by hand for lack of room.",
)
WAIT = Family(
    "headgate_concurrency_wait_seconds",
    "histogram",
    ("group",),
    "own",
    "From ready to start, of jobs that need the group.",
    SECONDS,
)
QUEUE_WAIT = Family(
    "headgate_queue_wait_seconds",
    "histogram",
    ("queue",),
    "own",
    "From ready to start, of all jobs of the queue.",
    SECONDS,
)
ENDED = Family(
    "headgate_jobs_ended",
    "counter",
    ("task", "outcome"),
    "own",
    "Jobs that an attempt brought to their end: succeeded, failed or cancelled.",
)
ATTEMPTS = Family(
    "headgate_attempts",
    "counter",
    ("task", "outcome"),
    "own",
    "Attempts that ended: as jobs do, or by retry, snoozed, interrupted, returned, lost.",
)
DURATION = Family(
    "headgate_job_duration_seconds",
    "histogram",
    ("task",),
    "own",
    "How long attempts ran.",
    SECONDS,
)
SUBMITTED = Family(
    "headgate_jobs_submitted",
    "counter",
    ("task", "result"),
    "own",
    "Submissions: stored, existing (nothing new was stored) or refused.",
)
CLAIM = Family(
    "headgate_claim_duration_seconds",
    "histogram",
    ("result",),
    "own",
    "Round trips to the store: claimed, empty, or failed.",
    MOMENTS,
)
RENEWALS = Family(
    "headgate_lease_renewals",
    "counter",
    ("result",),
    "own",
    "Leases of worker processes: renewed, failed (tried again), or ended (too late).",
)
PROCESSES_LOST = Family(
    "headgate_worker_processes_lost",
    "counter",
    (),
    "own",
    "Worker processes that died or were killed.",
)
PROCESSES = Family(
    "headgate_worker_processes", "gauge", ("state",), "own", "Worker processes by state."
)
RUNNING = Family("headgate_worker_running", "gauge", (), "own", "Attempts that run here.")
EVENTS = Family(
    "headgate_events",
    "counter",
    ("kind",),
    "store",
    "What happened since this process began to look: worker_lost, attempt_overran, cap_refused, …",
)
ACTIVE = Family(
    "headgate_concurrency_slots_active", "gauge", ("group",), "store", "Units held now."
)
LIMIT = Family(
    "headgate_concurrency_slots_limit",
    "gauge",
    ("group",),
    "store",
    "The limit in force, of each key where it is keyed; absent: unlimited.",
)
WAITING = Family(
    "headgate_concurrency_waiting",
    "gauge",
    ("group",),
    "store",
    "Jobs in line that need it, counted up to a bound.",
)
OLDEST_WAIT = Family(
    "headgate_concurrency_oldest_seconds",
    "gauge",
    ("group",),
    "store",
    "How long one of those has waited.",
)
KEYED = Family(
    "headgate_concurrency_keyed",
    "gauge",
    ("group",),
    "store",
    "1 where the limit is for each key: then what is held, over all keys, may be more.",
)
PAUSED = Family(
    "headgate_concurrency_paused", "gauge", ("group",), "store", "1 while it is paused."
)
QUEUE_JOBS = Family(
    "headgate_queue_jobs",
    "gauge",
    ("queue", "state"),
    "store",
    "Jobs of a queue: ready (counted up to a bound), running, scheduled.",
)
QUEUE_OLDEST = Family(
    "headgate_queue_oldest_seconds",
    "gauge",
    ("queue",),
    "store",
    "How long the oldest has waited; 0: nothing waits.",
)
QUEUE_PAUSED = Family("headgate_queue_paused", "gauge", ("queue",), "store", "1 while paused.")
WORKERS = Family("headgate_workers", "gauge", ("state",), "store", "Worker processes by state.")
ROOM = Family(
    "headgate_worker_room", "gauge", (), "store", "Jobs that live workers can run at once."
)
LAG = Family(
    "headgate_schedule_lag_seconds",
    "gauge",
    ("schedule",),
    "store",
    "How long the tick that is due has waited for somebody to tick it.",
)
UP = Family("headgate_store_up", "gauge", (), "store", "1 if the store could be looked at.")

FAMILIES = (
    ACTIVE, LIMIT, ACQUISITION, WAIT,
    WAITING, OLDEST_WAIT, KEYED, PAUSED,
    QUEUE_JOBS, QUEUE_OLDEST, QUEUE_WAIT, QUEUE_PAUSED,
    SUBMITTED, ENDED, ATTEMPTS, DURATION,
    WORKERS, ROOM, PROCESSES, RUNNING, PROCESSES_LOST,
    CLAIM, RENEWALS, EVENTS, LAG, UP,
)  # fmt: skip

BY_NAME = {family.name: family for family in FAMILIES}

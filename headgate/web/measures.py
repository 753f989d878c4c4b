"""What Prometheus is told. Labels are bounded: a keyed limit is one `group`, unless it is asked
for key by key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from headgate.limits import split_group

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from headgate.stores.protocol import EndRecord, Store
    from headgate.web.sampler import Sample

BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
GROUPS = 500
"""Labels of groups at most; what comes beyond counts as `(other)`."""
TASKS = 300
KEYS = 1000


class Metrics:
    """Counts what this dashboard sees end; gauges are read when they are asked for."""

    def __init__(self, keyed: frozenset[str]) -> None:
        self.keyed = keyed
        self._groups: set[str] = set()
        self._tasks: set[str] = set()
        self.registry = CollectorRegistry()
        self._acquired = Counter(
            "headgate_concurrency_acquisition",
            "Slots acquired by jobs that ended, and submissions that a cap rejected.",
            ("group", "result"),
            registry=self.registry,
        )
        self._waited = Histogram(
            "headgate_concurrency_wait_seconds",
            "From ready to start, of jobs that ended.",
            ("group",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._ended = Counter(
            "headgate_jobs_ended",
            "Jobs that ended, by task and outcome.",
            ("task", "outcome"),
            registry=self.registry,
        )
        self._ran = Histogram(
            "headgate_job_duration_seconds",
            "How long the last attempt of a job ran.",
            ("task",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._events = Counter(
            "headgate_events",
            "What happened, by kind: lost workers, over-runs, refusals, changes.",
            ("kind",),
            registry=self.registry,
        )
        self._seen_event: int | None = None

    def count(self, ends: Sequence[EndRecord]) -> None:
        for end in ends:
            task = _bounded(end.task, self._tasks, TASKS)
            self._ended.labels(task, end.state).inc()
            if end.started_at is None:
                continue
            self._ran.labels(task).observe(max(0.0, end.at - end.started_at))
            waited = max(0.0, end.started_at - end.due_at)
            for group, _ in end.groups:
                label = self.label(group)
                self._acquired.labels(label, "acquired").inc()
                self._waited.labels(label).observe(waited)

    def label(self, group: str) -> str:
        """The limit's name; the whole group where its keys are told apart."""
        name, key = split_group(group)
        told = group if key is not None and name in self.keyed else name
        return _bounded(told, self._groups, GROUPS + (KEYS if self.keyed else 0))

    def note_events(self, store: Store) -> None:
        """Events since the last look; those before this dashboard are not counted."""
        events = store.past_events(limit=500)
        last = self._seen_event
        if last is not None:
            for event in events:
                if event.seq <= last:
                    break
                self._events.labels(event.kind).inc()
                if event.kind == "cap_refused":
                    count = int(event.data.get("count", 1))
                    self._acquired.labels(self.label(event.subject), "rejected").inc(count)
        self._seen_event = events[0].seq if events else 0

    def text(self, sample: Sample, store: Store) -> bytes:
        self.note_events(store)
        now = CollectorRegistry()
        now.register(_Now(self, sample, store))
        return generate_latest(self.registry) + generate_latest(now)


def _bounded(label: str, known: set[str], most: int) -> str:
    if label in known:
        return label
    if len(known) >= most:
        return "(other)"
    known.add(label)
    return label


class _Now(Collector):
    """The gauges, from one sample."""

    def __init__(self, metrics: Metrics, sample: Sample, store: Store) -> None:
        self._metrics = metrics
        self._sample = sample
        self._store = store

    def collect(self) -> Iterable[Metric]:
        yield from self._limits()
        yield from self._queues()
        yield from self._workers()
        yield from self._schedules()

    def _limits(self) -> Iterable[Metric]:
        active = GaugeMetricFamily(
            "headgate_concurrency_slots_active", "Units held now.", labels=["group"]
        )
        limit = GaugeMetricFamily(
            "headgate_concurrency_slots_limit",
            "The limit in force; of each key, where it is keyed.",
            labels=["group"],
        )
        waiting = GaugeMetricFamily(
            "headgate_concurrency_waiting",
            "Jobs in line that need it (counted up to 1,000 a lane of tasks).",
            labels=["group"],
        )
        paused = GaugeMetricFamily(
            "headgate_concurrency_paused", "1 while it is paused.", labels=["group"]
        )
        seen: set[str] = set()
        for load in self._sample.loads:
            record = load.limit
            name, key = split_group(record.group)
            if (key is not None and name not in self._metrics.keyed) or len(seen) >= GROUPS:
                continue
            seen.add(record.group)
            labels = [record.group]
            active.add_metric(labels, load.held)
            waiting.add_metric(labels, load.waiting)
            paused.add_metric(labels, int(record.paused))
            if record.value is not None:
                limit.add_metric(labels, record.value)
        for name in sorted(self._metrics.keyed):
            for group in self._store.held_groups(f"{name}/", limit=KEYS).groups:
                if group.group not in seen:
                    active.add_metric([group.group], group.held)
        yield from (active, limit, waiting, paused)

    def _queues(self) -> Iterable[Metric]:
        jobs = GaugeMetricFamily(
            "headgate_queue_jobs",
            "Jobs of a queue by state (waiting ones counted up to 10,000).",
            labels=["queue", "state"],
        )
        age = GaugeMetricFamily(
            "headgate_queue_oldest_seconds", "How long the oldest has waited.", labels=["queue"]
        )
        paused = GaugeMetricFamily("headgate_queue_paused", "1 while paused.", labels=["queue"])
        for queue in self._sample.queues[:GROUPS]:
            jobs.add_metric([queue.name, "ready"], queue.waiting)
            jobs.add_metric([queue.name, "running"], queue.running)
            jobs.add_metric([queue.name, "scheduled"], queue.scheduled)
            paused.add_metric([queue.name], int(queue.paused))
            if queue.oldest_ready_at is not None:
                waited = max(0.0, self._sample.at - queue.oldest_ready_at)
                age.add_metric([queue.name], waited)
        yield from (jobs, age, paused)

    def _workers(self) -> Iterable[Metric]:
        workers = GaugeMetricFamily("headgate_workers", "Workers by state.", labels=["state"])
        states: dict[str, int] = dict.fromkeys(("alive", "stalled", "stopping", "dead"), 0)
        for worker in self._sample.workers:
            states[worker.state] = states.get(worker.state, 0) + 1
        for state, count in states.items():
            workers.add_metric([state], count)
        room = sum(w.concurrency for w in self._sample.workers if w.state == "alive")
        yield workers
        yield GaugeMetricFamily(
            "headgate_worker_room", "Jobs that live workers can run at once.", value=room
        )

    def _schedules(self) -> Iterable[Metric]:
        lag = GaugeMetricFamily(
            "headgate_schedule_lag_seconds",
            "How long the tick that is due has waited for somebody to tick it.",
            labels=["schedule"],
        )
        for one in self._store.schedules()[:GROUPS]:
            if one.planned and one.next_at is not None and not one.paused:
                late = max(0.0, self._sample.at - one.next_at)
                lag.add_metric([one.spec.name], late)
        yield lag

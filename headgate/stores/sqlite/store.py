"""The embedded store: each operation of the protocol is one transaction on one file."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

from headgate.clock import Clock
from headgate.errors import JobNotFound, StoreError
from headgate.jobs import (
    AttemptRecord,
    JobFilter,
    JobRecord,
    NewJob,
    Retention,
    Routing,
    Submitted,
    Unrouted,
)
from headgate.limits import check_group
from headgate.stores.protocol import (
    Bell,
    Capabilities,
    EventRecord,
    Exchange,
    Exchanged,
    LimitChange,
    LimitRecord,
    NewWorker,
    Publication,
    QueueRecord,
    Registration,
    SlotRecord,
    SlotRequest,
    Sweep,
    TaskSpec,
    Trouble,
    Why,
    WorkerRecord,
)
from headgate.stores.sqlite import (
    cataloguing,
    doctoring,
    events,
    exchanging,
    holding,
    inspecting,
    looking,
    moves,
    registry,
    submitting,
    values,
)
from headgate.stores.sqlite.bell import Bells
from headgate.stores.sqlite.database import BUSY_TIMEOUT, Database, Transaction
from headgate.stores.sqlite.liveness import Liveness
from headgate.stores.sqlite.schema import migrate

SUBMIT_CHUNK = 1000


class SQLiteStore:
    """One SQLite file, shared by many processes of one machine."""

    capabilities = Capabilities(leases=False, local=True)

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.url = url
        self._db = Database(url, clock)
        folder = None if self._db.path is None else Path(f"{self._db.path}.run")
        self._bells = Bells(folder)
        self._liveness = Liveness(folder)
        self._words: values.Words | None = None
        migrate(self._db)

    def close(self) -> None:
        self._liveness.close()
        self._db.close()

    def now(self) -> float:
        return self._db.clock.now()

    @contextmanager
    def _write(self, timeout: float = BUSY_TIMEOUT) -> Generator[Transaction]:
        with self._db.write(timeout) as tx:
            yield tx
        # Only what is committed can be found, so only then is anybody woken.
        if tx.freed:
            tx.ring("work", "room")
        for bell in tx.rings:
            self._bells.ring(bell)

    # --- declare ---------------------------------------------------------------------------

    def publish(self, publication: Publication) -> None:
        with self._write() as tx:
            cataloguing.publish(tx, publication)

    def task(self, name: str) -> TaskSpec | None:
        with self._db.read() as tx:
            return cataloguing.find(tx, name)

    def tasks(self) -> list[TaskSpec]:
        with self._db.read() as tx:
            return cataloguing.every(tx)

    def values(self, groups: Iterable[str]) -> dict[str, LimitRecord]:
        with self._db.read() as tx:
            return values.limit_records(tx, groups)

    # --- submit ----------------------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        if len(jobs) > SUBMIT_CHUNK:
            raise StoreError(
                f"at most {SUBMIT_CHUNK} jobs go into one submit, so that nobody waits long for"
                f" the write lock; got {len(jobs)}"
            )
        with self._write() as tx:
            return submitting.submit(tx, jobs)

    def unrouted(self, tasks: frozenset[str], limit: int = 100) -> list[Unrouted]:
        with self._db.read() as tx:
            return submitting.unrouted(tx, tasks, limit)

    def route(self, routings: Sequence[Routing]) -> int:
        with self._write() as tx:
            return submitting.route(tx, routings)

    # --- work --------------------------------------------------------------------------------

    def register(self, worker: NewWorker) -> Registration:
        fds = self._liveness.take(worker.id)
        try:
            with self._write() as tx:
                registry.register(tx, worker)
        except BaseException:
            for fd in fds:
                os.close(fd)
            self._liveness.forget(worker.id)
            raise
        return Registration(worker.id, fds)

    def renew(self, worker: str) -> bool:
        with self._db.read() as tx:
            return registry.known(tx, worker) is not None

    def mark(self, worker: str, state: str) -> None:
        with self._write() as tx:
            tx.run("UPDATE workers SET state = ? WHERE id = ?", (state, worker))
            events.record(tx, f"worker_{state}", registry.known(tx, worker) or worker, worker)

    def unregister(self, worker: str) -> None:
        with self._write() as tx:
            registry.unregister(tx, worker)
        self._liveness.forget(worker)

    def declare_dead(
        self, worker: str, reason: str, started: frozenset[int] | None = None
    ) -> None:
        with self._write() as tx:
            registry.declare_dead(tx, worker, reason, started)
        self._liveness.forget(worker)

    def exchange(self, exchange: Exchange) -> Exchanged:
        words = values.WordsCache(self._words)
        with self._write() as tx:
            result, lost = exchanging.exchange(tx, exchange, self._liveness, words)
        # Remembered only after the commit: what was read may have been said in a transaction
        # that is undone, and its version is then given to other words.
        self._words = words.words
        for worker in lost:
            self._liveness.forget(worker)
        return result

    def extend(self, token: int, seconds: float) -> bool:
        with self._write() as tx:
            return holding.extend(tx, token, seconds)

    def release_groups(self, token: int) -> bool:
        with self._write() as tx:
            return holding.release(tx, token)

    def retake_groups(self, token: int, waited: float = 0.0) -> bool:
        with self._write() as tx:
            return holding.retake(tx, token, waited)

    def overdue(self, token: int, reason: str) -> None:
        with self._write() as tx:
            tx.run("UPDATE running SET overdue = ? WHERE token = ?", (reason, token))
            events.record(tx, "attempt_overdue", str(token), reason=reason)

    def sweep(self) -> Sweep:
        if not self._due_for_sweep():
            return Sweep()
        with self._write() as tx:
            before = tx.value("SELECT count(*) FROM running")
            lost = registry.reap(tx, self._liveness, registry.names(tx))
            sweep = Sweep(
                lost_workers=tuple(lost),
                lost_attempts=before - tx.value("SELECT count(*) FROM running"),
                expired_jobs=inspecting.expire(tx),
                expired_slots=holding.expire(tx),
            )
            moves.promote(tx)
            for worker in self._liveness.strays(
                {r["id"] for r in tx.rows("SELECT id FROM workers")}
            ):
                self._liveness.forget(worker)
        for worker in lost:
            self._liveness.forget(worker)
        return sweep

    def _due_for_sweep(self) -> bool:
        """Is there anything to sweep? Asked without the write lock: idle costs nothing."""
        with self._db.read() as tx:
            workers = {row["id"] for row in tx.rows("SELECT id FROM workers")}
            self._liveness.keep_only(workers)
            return (
                any(not self._liveness.alive(worker) for worker in workers)
                or tx.row(inspecting.Q.expiring, {"now": tx.now, "limit": 1}) is not None
                or tx.row(
                    "SELECT 1 FROM slots WHERE worker IS NULL AND (boot <> ? OR ends <= ?) LIMIT 1",
                    (tx.boot_id, tx.boot),
                ) is not None
                or bool(self._liveness.strays(workers))
            )  # fmt: skip

    def prune(self, retention: Retention, limit: int = 1000) -> int:
        with self._write() as tx:
            return inspecting.prune(tx, retention, limit)

    # --- slots by hand ------------------------------------------------------------------------

    def take_slot(self, request: SlotRequest) -> SlotRecord | None:
        with self._write() as tx:
            lost = registry.reap(tx, self._liveness, registry.names(tx))
            slot = holding.take(tx, request)
        for worker in lost:
            self._liveness.forget(worker)
        return slot

    def drop_slot(self, group: str, slot: int, token: int | None, by: str = "") -> bool:
        with self._write() as tx:
            return holding.drop(tx, group, slot, token, by)

    def extend_slot(self, group: str, slot: int, token: int, seconds: float) -> float | None:
        with self._write() as tx:
            return holding.extend_slot(tx, group, slot, token, seconds)

    def expire_slots(self, group: str) -> int:
        with self._write() as tx:
            return holding.expire(tx, group)

    # --- operate --------------------------------------------------------------------------------

    def change_limit(self, change: LimitChange) -> LimitRecord:
        group = check_group(change.group)
        with self._write() as tx:
            values.change(tx, change)
            return values.limit_records(tx, [group])[group]

    def limits(self) -> list[LimitRecord]:
        with self._db.read() as tx:
            return looking.limits(tx)

    def group(self, group: str) -> tuple[LimitRecord, list[SlotRecord]]:
        group = check_group(group)
        with self._db.read() as tx:
            return values.limit_records(tx, [group])[group], values.slot_records(tx, group)

    def groups(self) -> list[str]:
        with self._db.read() as tx:
            return looking.groups(tx)

    def queues(self) -> list[QueueRecord]:
        with self._db.read() as tx:
            return looking.queues(tx)

    def pause_queue(self, queue: str, paused: bool, by: str = "", reason: str = "") -> None:
        with self._write() as tx:
            tx.run(
                "INSERT INTO queues (name, paused, who, reason, at) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET paused = excluded.paused, who = excluded.who,"
                " reason = excluded.reason, at = excluded.at",
                (queue, int(paused), by, reason, tx.now),
            )
            kind = "queue_paused" if paused else "queue_resumed"
            events.record(tx, kind, queue, by, reason=reason)
            tx.ring("work")

    def workers(self) -> list[WorkerRecord]:
        with self._db.read() as tx:
            return registry.records(tx, self._liveness)

    def events(self, kind: str | None = None, limit: int = 100) -> list[EventRecord]:
        with self._db.read() as tx:
            return events.last(tx, kind, limit)

    def job(self, id: str) -> JobRecord | None:
        with self._db.read() as tx:
            try:
                return inspecting.to_record(inspecting.job_row(tx, id))
            except JobNotFound:
                return None

    def attempts(self, id: str) -> list[AttemptRecord]:
        with self._db.read() as tx:
            return inspecting.attempts(tx, id)

    def find(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> list[JobRecord]:
        with self._db.read() as tx:
            return inspecting.find(tx, filter, limit, after)

    def count(self, filter: JobFilter, limit: int = 10_000) -> int:
        with self._db.read() as tx:
            return inspecting.count(tx, filter, limit)

    def cancel(self, id: str, by: str = "", reason: str = "") -> JobRecord:
        with self._write() as tx:
            return inspecting.cancel(tx, id, by, reason)

    def retry(self, id: str, by: str = "") -> JobRecord:
        with self._write() as tx:
            return inspecting.retry(tx, id, by)

    def why(self, id: str) -> Why:
        with self._db.read() as tx:
            return looking.why(tx, self._liveness, id)

    def remaining(
        self,
        tasks: frozenset[str],
        queues: tuple[str, ...] | None,
        closed: frozenset[str] = frozenset(),
    ) -> int:
        with self._db.read() as tx:
            return looking.remaining(tx, tasks, queues, closed)

    def doctor(self, repair: bool = False) -> list[Trouble]:
        if repair:
            with self._write() as tx:
                return doctoring.examine(tx, self._liveness, repair=True)
        with self._db.read() as tx:
            return doctoring.examine(tx, self._liveness, repair=False)

    # --- wake-ups ---------------------------------------------------------------------------------

    def bell(self, what: str) -> Bell:
        return self._bells.listen(what)

    def ring(self, what: str) -> None:
        self._bells.ring(what)

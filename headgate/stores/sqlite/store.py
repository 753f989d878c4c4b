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
from headgate.stores.relational import (
    cataloguing,
    events,
    holding,
    inspecting,
    looking,
    moves,
    queueing,
    registry,
    routing,
    values,
)
from headgate.stores.relational.transaction import Row
from headgate.stores.relational.transaction import Transaction as AnyTransaction
from headgate.stores.sqlite import doctoring, exchanging, submitting
from headgate.stores.sqlite.bell import Bells
from headgate.stores.sqlite.database import BUSY_TIMEOUT, Database, Transaction
from headgate.stores.sqlite.liveness import Liveness, reap
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
            return routing.unrouted(tx, tasks, limit)

    def route(self, routings: Sequence[Routing]) -> int:
        with self._write() as tx:
            return routing.route(tx, routings)

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
            registry.mark(tx, worker, state)

    def unregister(self, worker: str) -> None:
        with self._write() as tx:
            registry.unregister(tx, worker)
        self._liveness.forget(worker)

    def declare_dead(self, worker: str, reason: str, started: frozenset[int] | None = None) -> None:
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
            holding.overdue(tx, token, reason)

    def sweep(self) -> Sweep:
        if not self._due_for_sweep():
            return Sweep()
        with self._write() as tx:
            before = tx.value("SELECT count(*) FROM running")
            lost = reap(tx, self._liveness, registry.names(tx))
            sweep = Sweep(
                lost_workers=tuple(lost),
                lost_attempts=before - tx.value("SELECT count(*) FROM running"),
                expired_jobs=inspecting.expire(tx),
                expired_slots=holding.expire(tx),
            )
            moves.promote(tx)
            for worker in self._liveness.strays(set(registry.names(tx))):
                self._liveness.forget(worker)
        for worker in lost:
            self._liveness.forget(worker)
        return sweep

    def _due_for_sweep(self) -> bool:
        """Is there anything to sweep? Asked without the write lock: idle costs nothing."""
        with self._db.read() as tx:
            workers = set(registry.names(tx))
            ended = {"boot_id": tx.boot_id, "boot": tx.boot}
            self._liveness.keep_only(workers)
            return (
                any(not self._liveness.alive(worker) for worker in workers)
                or tx.row(tx.sql.jobs.expiring, {"now": tx.now, "limit": 1}) is not None
                or tx.row(tx.sql.slots.some_expired, ended) is not None
                or bool(self._liveness.strays(workers))
            )

    def prune(self, retention: Retention, limit: int = 1000) -> int:
        with self._write() as tx:
            return inspecting.prune(tx, retention, limit)

    # --- slots by hand ------------------------------------------------------------------------

    def take_slot(self, request: SlotRequest) -> SlotRecord | None:
        with self._write() as tx:
            lost = reap(tx, self._liveness, registry.names(tx))
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
            queueing.pause(tx, queue, paused, by, reason)

    def workers(self) -> list[WorkerRecord]:
        with self._db.read() as tx:
            return self._workers(tx)

    def _workers(self, tx: AnyTransaction) -> list[WorkerRecord]:
        def alive(row: Row) -> bool:
            return self._liveness.alive(row["id"])

        return registry.records(tx, alive)

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
            return looking.why(tx, self._workers, id)

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

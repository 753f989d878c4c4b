"""The operations on a SQLite database, whatever makes it one that others share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

from headgate.errors import WrongConnection
from headgate.jobs import NewJob, Submitted
from headgate.limits import check_group
from headgate.stores.protocol import (
    Exchange,
    Exchanged,
    LimitChange,
    LimitRecord,
    Publication,
    SlotRecord,
    SlotRequest,
    Sweep,
    Trouble,
)
from headgate.stores.relational import (
    cataloguing,
    holding,
    inspecting,
    moves,
    orphans,
    overriding,
    registry,
    removed,
    scheduling,
    values,
)
from headgate.stores.relational.store import RelationalStore, check_chunk
from headgate.stores.relational.tally import Tally
from headgate.stores.relational.ticking import Submit
from headgate.stores.relational.transaction import Row
from headgate.stores.sqlite import doctoring, exchanging, submitting
from headgate.stores.sqlite.database import BUSY_TIMEOUT
from headgate.stores.sqlite.liveness import Living, reap
from headgate.stores.sqlite.transaction import Transaction

T = TypeVar("T")


class EmbeddedStore(RelationalStore):
    """A store adds how a transaction begins, who is alive, and how others are woken."""

    url: str

    def __init__(self, living: Living) -> None:
        self._living = living
        self._words: values.Words | None = None
        self._tally = Tally(self._do)
        self._orphans_at = 0.0

    @abstractmethod
    def _write(self, timeout: float = BUSY_TIMEOUT) -> AbstractContextManager[Transaction]: ...

    @abstractmethod
    def _read(self) -> AbstractContextManager[Transaction]: ...

    def _do(self, work: Callable[[Transaction], T]) -> T:
        with self._write() as tx:
            return work(tx)

    def _alive(self, worker: Row) -> bool:
        return self._living.alive(worker["id"])

    # --- declare ---------------------------------------------------------------------------

    def publish(self, publication: Publication) -> None:
        with self._write() as tx:
            cataloguing.publish(tx, publication)

    # --- submit ----------------------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        check_chunk(jobs)
        done = self._put_in(jobs)
        self._tally.add(jobs, done)
        return done

    def _put_in(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        with self._write() as tx:
            return submitting.submit(tx, jobs)

    def submit_with(self, conn: object, jobs: Sequence[NewJob]) -> list[Submitted]:
        raise WrongConnection(
            f"conn= is for jobs that live in the database of your own transactions; those of"
            f" {self.url} live in a file of their own. Submit without conn=, after your commit, or"
            " use a store on PostgreSQL"
        )

    async def asubmit_with(self, conn: object, jobs: Sequence[NewJob]) -> list[Submitted]:
        return self.submit_with(conn, jobs)

    # --- work --------------------------------------------------------------------------------

    def unregister(self, worker: str) -> None:
        with self._write() as tx:
            registry.unregister(tx, worker)
        self._living.forget(worker)

    def declare_dead(self, worker: str, reason: str, started: frozenset[int] | None = None) -> None:
        with self._write() as tx:
            registry.declare_dead(tx, worker, reason, started)
        self._living.forget(worker)

    def exchange(self, exchange: Exchange) -> Exchanged:
        words = values.WordsCache(self._words)
        with self._write() as tx:
            result, lost = exchanging.exchange(tx, exchange, self._living, words)
        # Remembered only after the commit: what was read may have been said in a transaction
        # that is undone, and its version is then given to other words.
        self._words = words.words
        for worker in lost:
            self._living.forget(worker)
        return result

    def retake_groups(self, token: int, waited: float = 0.0) -> bool:
        with self._write() as tx:
            return holding.retake(tx, token, waited)

    def sweep(self) -> Sweep:
        if not self._due_for_sweep():
            return Sweep()
        with self._write() as tx:
            before = tx.value("SELECT count(*) FROM running")
            lost = reap(tx, self._living, registry.names(tx))
            sweep = Sweep(
                lost_workers=tuple(lost),
                lost_attempts=before - tx.value("SELECT count(*) FROM running"),
                expired_jobs=inspecting.expire(tx),
                expired_slots=holding.expire(tx),
            )
            overriding.end(tx)
            if orphans.mark(tx):
                orphans.forget(tx)
            scheduling.forget(tx)
            sweep = replace(sweep, removed=tuple(removed.cancel(tx)))
            moves.promote(tx)
            for worker in self._living.strays(set(registry.names(tx))):
                self._living.forget(worker)
        for worker in lost:
            self._living.forget(worker)
        return sweep

    def _due_for_sweep(self) -> bool:
        """Is there anything to sweep? Asked without the write lock: idle costs nothing."""
        with self._read() as tx:
            workers = set(registry.names(tx))
            ended = {"boot_id": tx.boot_id, "boot": tx.boot}
            self._living.keep_only(workers)
            return (
                any(not self._living.alive(worker) for worker in workers)
                or tx.row(tx.sql.jobs.expiring, {"now": tx.now, "limit": 1}) is not None
                or tx.row(tx.sql.slots.some_expired, ended) is not None
                or tx.row(tx.sql.limits.some_ended, {"now": tx.now}) is not None
                or self._due_for_orphans(tx)
                or bool(self._living.strays(workers))
            )

    def _due_for_orphans(self, tx: Transaction) -> bool:
        if abs(tx.now - self._orphans_at) < orphans.LOOK_EVERY:
            return False
        self._orphans_at = tx.now
        return orphans.mark(tx) or bool(scheduling.stale(tx)) or bool(removed.waited_for(tx))

    def compact(self) -> None:
        """Nothing to do: the engine removes dead rows, whoever reads."""

    # --- slots by hand ------------------------------------------------------------------------

    def take_slot(self, request: SlotRequest) -> SlotRecord | None:
        with self._write() as tx:
            lost = reap(tx, self._living, registry.names(tx))
            slot = holding.take(tx, request)
        for worker in lost:
            self._living.forget(worker)
        return slot

    # --- operate --------------------------------------------------------------------------------

    def change_limits(self, changes: Sequence[LimitChange]) -> list[LimitRecord]:
        groups = [check_group(change.group) for change in changes]
        with self._write() as tx:
            overriding.change(tx, changes)
            records = values.limit_records(tx, groups)
        return [records[group] for group in groups]

    def doctor(self, repair: bool = False) -> list[Trouble]:
        if repair:
            with self._write() as tx:
                return doctoring.examine(tx, self._living, repair=True)
        with self._read() as tx:
            return doctoring.examine(tx, self._living, repair=False)

    def _ticked(self, work: Callable[[Transaction, Submit[Any]], T]) -> T:
        with self._write() as tx:
            return work(tx, submitting.submit)

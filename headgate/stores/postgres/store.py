"""The store on PostgreSQL: each operation of the protocol is one transaction on the server."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

from headgate.clock import Clock
from headgate.errors import StoreBusy, StoreError
from headgate.jobs import NewJob, Submitted
from headgate.limits import check_group
from headgate.stores.postgres import byhand, callers, capping, doctoring, leases, schema, submitting
from headgate.stores.postgres.bell import Bells
from headgate.stores.postgres.compacting import Compactor
from headgate.stores.postgres.connection import LOCK_TIMEOUT
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.exchanging import Exchanger
from headgate.stores.postgres.transaction import Transaction
from headgate.stores.postgres.words import OwnWords
from headgate.stores.protocol import (
    Bell,
    Capabilities,
    Exchange,
    Exchanged,
    LimitChange,
    LimitRecord,
    NewWorker,
    Publication,
    Registration,
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
    removed,
    scheduling,
    values,
)
from headgate.stores.relational.doctoring import Findings, examine
from headgate.stores.relational.store import RelationalStore, check_chunk
from headgate.stores.relational.tally import Tally
from headgate.stores.relational.ticking import Submit
from headgate.stores.relational.transaction import Row
from headgate.threads import in_thread

T = TypeVar("T")
log = logging.getLogger("headgate.store")

SLICE = 0.2
"""Seconds for which a change of a limit may keep all grants waiting in one go."""
SLOTS_EVERY = 10.0
"""Seconds between two sweeps over the rows of all slots."""
IDLE_SLOTS = 3600.0
"""Seconds after which the row of a slot that nobody holds is deleted."""
IDLE_GROUPS_AT_ONCE = 100
OLD_MARKS = 60.0
"""Seconds after which it is forgotten that somebody was in want of a group: every look reads all
that is remembered."""
DECISIONS = 20
"""How often a submit is decided again because what it was to replace has started meanwhile."""


class PostgresStore(RelationalStore):
    """One schema of a PostgreSQL database, shared by any number of machines."""

    capabilities = Capabilities(leases=True, local=False, callers=True, compacts=True)

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._db = Database(url, clock)
        self.url = self._db.url
        self._bells = Bells(self._db)
        self._exchanger = Exchanger(self._db)
        self._compactor = Compactor(self._db)
        self._words: values.Words | None = None
        self._slots_swept = 0.0
        self._tally = Tally(self._do)
        schema.settle(self._db)

    def close(self) -> None:
        self._tally.flush()
        self._bells.close()
        self._db.close()

    def now(self) -> float:
        return self._db.now()

    @contextmanager
    def _write(self, timeout: float = LOCK_TIMEOUT) -> Generator[Transaction]:
        with self._db.write(timeout) as tx:
            yield tx
            if tx.freed:
                tx.ring("work", "room")

    def _do(self, work: Callable[[Transaction], T]) -> T:
        with self._write() as tx:
            return work(tx)

    def _read(self) -> AbstractContextManager[Transaction]:
        return self._db.read()

    def _look(self) -> AbstractContextManager[Transaction]:
        return self._db.read(by_keys=True)

    def _alive(self, worker: Row) -> bool:
        return worker["alive"]

    # --- declare ---------------------------------------------------------------------------

    def publish(self, publication: Publication) -> None:
        self._alone_with_limits(lambda tx: cataloguing.publish(tx, publication))

    def _alone_with_limits(self, change: Callable[[Transaction], T]) -> T:
        """Change what limits are while nobody grants by them.

        All who grant share a lock. Who waits to have it alone keeps those who come later from
        sharing it, so with a claim that does not end the whole fleet would stand still: we wait
        in short pieces, and let the others go on in between.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                with self._write(timeout=SLICE) as tx:
                    leases.lock_limits(tx)
                    return change(tx)
            except StoreBusy as error:
                if time.monotonic() > deadline:
                    raise StoreBusy(
                        f"{self.url}: the limits were in use by transactions that did not end for"
                        f" {LOCK_TIMEOUT:g} s; nothing was changed. Try again, and look for"
                        " transactions of workers left open (pg_stat_activity)"
                    ) from error
            time.sleep(random.uniform(0.01, 0.05))

    # --- submit ----------------------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        check_chunk(jobs)
        done = self._submit(jobs)
        carried = {group: value for job in reversed(jobs) for group, value in job.carried}
        if carried:
            self._record_carried(carried)
        return done

    def _submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        if capping.has_caps(jobs):
            return self._submit_capped(jobs)
        if submitting.copies(jobs):
            try:
                with self._write() as tx:
                    return submitting.copy_all(tx, jobs)
            except submitting.AlreadyStored:
                pass  # the function below tells which of them
        return submitting.submit_now(self._db, jobs)

    def _submit_capped(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        for _ in range(DECISIONS):
            try:
                with self._write() as tx:
                    done = capping.submit(tx, jobs, again=True)
            except capping.StartedMeanwhile:
                continue
            self._tally.add(jobs, done)
            return done
        raise StoreBusy(
            f"{self.url}: nothing was submitted: what was to be replaced under a cap started or"
            f" changed while it was being replaced, {DECISIONS} times. Try again"
        )

    def _record_carried(self, carried: Mapping[str, int | None]) -> None:
        """Record the values that jobs carry, so that they are seen before the first claim.

        By a transaction of its own after the commit, short as it is: two submits that carry a
        value for the same group then wait for each other's record at most, never for a submit.
        What is committed must not look refused: if this fails, the first claim does it.
        """
        try:
            with self._write() as tx:
                for group in sorted(carried):  # in one order, so that no two wait in a circle
                    values.carry(tx, group, carried[group])
        except StoreError as error:
            log.warning("values carried by jobs are recorded by the first claim (%s)", error)

    def submit_with(self, conn: object, jobs: Sequence[NewJob]) -> list[Submitted]:
        done = callers.submit(conn, self._db.schema, jobs)
        self._tally.add(jobs, done)
        return done

    async def asubmit_with(self, conn: object, jobs: Sequence[NewJob]) -> list[Submitted]:
        done = await callers.asubmit(conn, self._db.schema, jobs)
        if capping.has_caps(jobs):
            await in_thread(self._tally.add, jobs, done)
        return done

    # --- work --------------------------------------------------------------------------------

    def register(self, worker: NewWorker) -> Registration:
        with self._write() as tx:
            leases.register(tx, worker)
        return Registration(worker.id)

    def renew(self, worker: str) -> bool:
        with self._write() as tx:
            return leases.renew(tx, worker)

    def unregister(self, worker: str) -> None:
        with self._write() as tx:
            leases.unregister(tx, worker)

    def declare_dead(self, worker: str, reason: str, started: frozenset[int] | None = None) -> None:
        with self._write() as tx:
            leases.declare_dead(tx, worker, reason, started)

    def exchange(self, exchange: Exchange) -> Exchanged:
        return self._exchanger.exchange(exchange)

    def retake_groups(self, token: int, waited: float = 0.0) -> bool:
        with self._write() as tx:
            leases.lock_groups(tx, holding.groups_of(tx, token))
            leases.reap(tx)
            return holding.retake(tx, token, waited)

    def sweep(self) -> Sweep:
        due, slots_due = self._due_for_sweep()
        lost: dict[str, int] = {}
        expired_jobs = expired_slots = 0
        if due:
            with self._write() as tx:
                lost = leases.reap_counting(tx)
                tx.run(tx.sql.leases.forget, {"before": tx.now - leases.REMEMBERED})
            with self._write() as tx:
                expired_jobs = inspecting.expire(tx)
                moves.promote(tx)
        if slots_due:
            expired_slots = self._sweep_slots()
            self._sweep_words()
        return Sweep(
            *(tuple(lost), sum(lost.values()), expired_jobs, expired_slots),
            tuple(self._sweep_removed()) if slots_due else (),
        )

    def _due_for_sweep(self) -> tuple[bool, bool]:
        """Is there anything to sweep, and are the slots to be looked through again? Asked
        without a lock: idle costs next to nothing."""
        with self._read() as tx:
            slots_due = abs(tx.now - self._slots_swept) >= SLOTS_EVERY
            if slots_due:
                self._slots_swept = tx.now
            times = {"now": tx.now, "forgotten": tx.now - leases.REMEMBERED}
            return tx.value(tx.sql.leases.due_for_sweep, times), slots_due

    def _sweep_slots(self) -> int:
        """Free the slots that have ended and delete rows that are long idle, and the marks of
        groups of which nobody is in want any more. Seldom, for it reads all rows; nothing depends
        on it."""
        with self._write() as tx:
            expired = holding.expire(tx)
            tx.run(tx.sql.line.forget_refused, {"before": tx.now - OLD_MARKS})
        with self._write() as tx:
            idle = {"before": tx.now - IDLE_SLOTS}
            for row in tx.rows(tx.sql.slots.idle_groups, {**idle, "limit": IDLE_GROUPS_AT_ONCE}):
                # The lock of the group is ours by now: what the look above saw as free may have
                # been taken since, so what is free is read anew.
                tx.run(tx.sql.slots.delete_idle, {**idle, "grp": row["grp"]})
        return expired

    def _sweep_words(self) -> None:
        """Take back what operators said until a time that has passed; note who of those that
        declare limits and tasks is gone, and forget what nobody declares."""
        with self._read() as tx:
            ended = tx.row(tx.sql.limits.some_ended, {"now": tx.now}) is not None
            due = orphans.mark(tx)
            schedules = bool(scheduling.stale(tx))
        if due:
            with self._write() as tx:
                due = orphans.mark(tx)
        if schedules or due:
            with self._write() as tx:
                scheduling.forget(tx)
        if due or ended:

            def tidy(tx: Transaction) -> None:
                overriding.end(tx)
                orphans.forget(tx)

            self._alone_with_limits(tidy)

    def _sweep_removed(self) -> list[tuple[str, int]]:
        with self._read() as tx:
            if not removed.waited_for(tx):
                return []
        with self._write() as tx:
            return removed.cancel(tx)

    def compact(self) -> None:
        self._compactor.run()

    # --- slots by hand ------------------------------------------------------------------------

    def take_slot(self, request: SlotRequest) -> SlotRecord | None:
        group = check_group(request.group)
        words = OwnWords(self._words)
        if words.words is not None:
            with suppress(byhand.Undecided):
                return byhand.take(self._db, group, request, words.words)
        with self._write() as tx:
            leases.lock_groups(tx, [group])
            leases.reap(tx)
            slot = holding.take(tx, request, words)
        # Remembered only after the commit: see the embedded store.
        self._words = words.words
        return slot

    def drop_slot(self, group: str, slot: int, token: int | None, by: str = "") -> bool:
        if token is None or by:
            return super().drop_slot(group, slot, token, by)  # it is recorded, too
        return byhand.drop(self._db, group, slot, token)

    def extend_slot(self, group: str, slot: int, token: int, seconds: float) -> float | None:
        return byhand.extend(self._db, group, slot, token, seconds)

    # --- operate --------------------------------------------------------------------------------

    def change_limits(self, changes: Sequence[LimitChange]) -> list[LimitRecord]:
        groups = [check_group(change.group) for change in changes]

        def apply(tx: Transaction) -> dict[str, LimitRecord]:
            overriding.change(tx, changes)
            return values.limit_records(tx, groups)

        records = self._alone_with_limits(apply)
        return [records[group] for group in groups]

    def doctor(self, repair: bool = False) -> list[Trouble]:
        found = Findings(repair=repair)
        if repair:
            with self._write() as tx:
                doctoring.alone(tx)
                doctoring.count_dead(tx, found)
        with self._write() as tx:
            # Compacting empties tables for everybody who looks at an earlier moment: it rests
            # while we look, and our look begins only now.
            tx.run(tx.sql.compact.lock)
            if repair:
                doctoring.take_time(tx)
                doctoring.alone(tx)
                examine(tx, found)
            else:
                with self._read() as still:
                    doctoring.take_time(still)
                    doctoring.count_dead(still, found)
                    examine(still, found)
        return found.troubles

    def _ticked(self, work: Callable[[Transaction, Submit[Any]], T]) -> T:
        with self._write() as tx:
            return work(tx, _submit_in)

    # --- wake-ups ---------------------------------------------------------------------------------

    def bell(self, what: str) -> Bell:
        return self._bells.listen(what)

    def ring(self, what: str) -> None:
        self._bells.ring(what)


def _submit_in(tx: Transaction, jobs: Sequence[NewJob]) -> list[Submitted]:
    """Store jobs that follow from what this transaction does."""
    if capping.has_caps(jobs):
        return capping.submit(tx, jobs, again=False)
    return submitting.submit_all(tx, jobs)

"""The store in a bucket: the operations of the embedded store on this machine's copy, made true by
replacing the ledger."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

from headgate.clock import Clock
from headgate.jobs import Claimed, JobFilter, JobRecord, NewJob, State, Submitted, Unrouted
from headgate.stores.bucket import costs, leases, probe, unheard
from headgate.stores.bucket.clock import BucketClock
from headgate.stores.bucket.commits import Commits
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.objects import Objects
from headgate.stores.bucket.patience import patiently
from headgate.stores.bucket.poller import Poller
from headgate.stores.bucket.replica import Replica, folder_of
from headgate.stores.bucket.s3 import S3
from headgate.stores.bucket.traffic import Meter, Tell
from headgate.stores.bucket.unheard import Unheard
from headgate.stores.bucket.url import parse
from headgate.stores.glances import TEXTS
from headgate.stores.protocol import (
    Bell,
    Capabilities,
    Costs,
    Due,
    Exchange,
    Exchanged,
    JobPage,
    NewWorker,
    Output,
    OutputRecord,
    Registration,
    Ticking,
    TickRecord,
    Trouble,
    Why,
    WorkerRecord,
)
from headgate.stores.relational import overruns, registry
from headgate.stores.relational.handing import Handed
from headgate.stores.relational.store import check_chunk
from headgate.stores.relational.transaction import Row
from headgate.stores.sqlite.bell import Bells
from headgate.stores.sqlite.database import BUSY_TIMEOUT
from headgate.stores.sqlite.embedded import EmbeddedStore
from headgate.stores.sqlite.transaction import Transaction

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _latest(operation: F) -> F:
    """An operation that looks before it writes: a copy that others have left behind costs it no
    write in vain, and what it refuses needs no second look. Two round trips, unless somebody
    writes between them; one, if it changes nothing."""

    @functools.wraps(operation)
    def carried_out(self: BucketStore, *args: Any, **kwargs: Any) -> Any:
        self._commits.refresh()
        return self._commits.run(lambda: operation(self, *args, **kwargs), verify=False)

    return cast(F, carried_out)


def _whole(operation: F, *, verify: bool = True) -> F:
    """An operation that writes, as something that is carried out whole, again if need be. Without
    `verify`, that there was nothing to do may be a little out of date."""

    @functools.wraps(operation)
    def carried_out(self: BucketStore, *args: Any, **kwargs: Any) -> Any:
        return self._commits.run(lambda: operation(self, *args, **kwargs), verify=verify)

    return cast(F, carried_out)


class BucketStore(EmbeddedStore):
    """A prefix of a bucket, shared by any number of machines."""

    capabilities = Capabilities(leases=True, local=False, ahead=0.25)

    def __init__(
        self, url: str, *, clock: Clock | None = None, objects: Objects | None = None
    ) -> None:
        address = parse(url)
        self.url = address.shown
        self._objects = objects or S3(address)
        self._clock = BucketClock(self._objects, None if type(clock) is Clock else clock)
        folder = folder_of(address)
        layout = Layout(address.prefix)
        probe.check(self._objects, layout, folder, self.url)
        self._replica = Replica(folder, self._clock)
        self._bells = Bells(folder)
        self._commits = Commits(
            self._objects, layout, self._replica, self._clock, self._bells.ring, self.url
        )
        self._bodies = self._commits.bodies
        self._meter = Meter(self._objects)
        self._poll = address.poll
        super().__init__(leases.Leases(self._commits.current))
        self._poller = Poller(folder, self._commits.following.look, address.poll)
        self._unheard = Unheard()
        self._handed = Handed()
        self._commits.refresh()

    def close(self) -> None:
        self._tally.flush()
        self._poller.close()
        self._commits.keeper.close()
        self._replica.close()
        self._objects.close()

    def now(self) -> float:
        return self._clock.now()

    # --- transactions ---------------------------------------------------------------------------

    @contextmanager
    def _write(self, timeout: float = BUSY_TIMEOUT) -> Generator[Transaction]:
        with self._commits.transaction() as tx:
            yield tx
            if tx.freed:
                tx.ring("work", "room")

    def _read(self) -> AbstractContextManager[Transaction]:
        return self._commits.looking()

    def _do(self, work: Callable[[Transaction], T]) -> T:
        return self._commits.run(lambda: EmbeddedStore._do(self, work))

    publish = _whole(EmbeddedStore.publish)
    route = _whole(EmbeddedStore.route, verify=False)
    mark = _whole(EmbeddedStore.mark, verify=False)
    extend = _whole(EmbeddedStore.extend)
    release_groups = _whole(EmbeddedStore.release_groups)
    retake_groups = _whole(EmbeddedStore.retake_groups)
    overdue = _whole(EmbeddedStore.overdue, verify=False)
    _put_output = _whole(EmbeddedStore.put_output)
    prune = _whole(EmbeddedStore.prune, verify=False)
    take_slot = _latest(EmbeddedStore.take_slot)
    drop_slot = _latest(EmbeddedStore.drop_slot)
    extend_slot = _latest(EmbeddedStore.extend_slot)
    expire_slots = _latest(EmbeddedStore.expire_slots)
    change_limits = _whole(EmbeddedStore.change_limits)
    pause_queue = _whole(EmbeddedStore.pause_queue)
    declare_schedules = _whole(EmbeddedStore.declare_schedules)
    _tick = _whole(EmbeddedStore.tick)
    _run_now = _whole(EmbeddedStore.run_now)
    pause_schedule = _whole(EmbeddedStore.pause_schedule)
    _cancel = _whole(EmbeddedStore.cancel)
    _retry = _whole(EmbeddedStore.retry)
    _relocate = _whole(EmbeddedStore.relocate)
    _doctor = _whole(EmbeddedStore.doctor)
    sweep = _whole(EmbeddedStore.sweep, verify=False)

    # --- large texts ------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        check_chunk(jobs)
        self._bodies.ahead(job.args for job in jobs)
        with self._meter.telling() as tell:

            def put() -> list[Submitted]:
                done = self._put_in(jobs)
                if tell is not None:
                    EmbeddedStore._do(self, tell)
                return done

            done = self._commits.run(put)
        # Only now: what was refused in a try that was undone is refused once, not once a try.
        self._tally.add(jobs, done)
        return done

    def put_output(self, told: Sequence[Output]) -> frozenset[int]:
        self._bodies.ahead(piece.data for output in told for piece in output.pieces)
        return self._put_output(told)

    def tick(self, tickings: Sequence[Ticking]) -> list[TickRecord]:
        self._bodies.ahead(tick.job.args for one in tickings for tick in one.ticks if tick.job)
        return self._tick(tickings)

    def run_now(self, name: str, job: NewJob, by: str = "") -> TickRecord:
        self._bodies.ahead([job.args])
        return self._run_now(name, job, by)

    def unrouted(self, tasks: frozenset[str], limit: int = 100) -> list[Unrouted]:
        return self._bodies.unrouted(super().unrouted(tasks, limit))

    def job(self, id: str) -> JobRecord | None:
        found = super().job(id)
        return None if found is None else self._bodies.records([found], strict=True)[0]

    def find(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> list[JobRecord]:
        return self._bodies.records(super().find(filter, limit, after))

    def browse(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> JobPage:
        page = super().browse(filter, limit, after)
        if not TEXTS.get():
            return replace(page, jobs=tuple(self._bodies.without(page.jobs)))
        return replace(page, jobs=tuple(self._bodies.records(page.jobs)))

    def listing(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> JobPage:
        page = super().listing(filter, limit, after)
        return replace(page, jobs=tuple(self._bodies.records(page.jobs)))

    def latest(self, task: str, state: State, look: int = 10_000) -> JobRecord | None:
        found = super().latest(task, state, look)
        return None if found is None else self._bodies.records([found])[0]

    def output(
        self, id: str, after: tuple[int, int] = (0, -1), limit: int = 100
    ) -> list[OutputRecord]:
        return self._bodies.outputs(super().output(id, after, limit))

    def last_output(
        self, id: str, before: tuple[int, int] | None = None, limit: int = 100
    ) -> list[OutputRecord]:
        return self._bodies.outputs(super().last_output(id, before, limit))

    def cancel(self, id: str, by: str = "", reason: str = "") -> JobRecord:
        return self._bodies.records([self._cancel(id, by, reason)])[0]

    def retry(self, id: str, by: str = "") -> JobRecord:
        return self._bodies.records([self._retry(id, by)])[0]

    def relocate(
        self, id: str, *, queue: str | None = None, priority: int | None = None, by: str = ""
    ) -> JobRecord:
        moved = self._relocate(id, queue=queue, priority=priority, by=by)
        return self._bodies.records([moved])[0]

    def doctor(self, repair: bool = False) -> list[Trouble]:
        return [*self._doctor(repair), *self._missing()]

    def costs(self) -> Costs:
        return costs.measure(self._commits, self._poll)

    def _due_for_sweep(self) -> bool:
        with self._glancing():
            return super()._due_for_sweep()

    def due_schedules(self, limit: int = 100, without: frozenset[str] = frozenset()) -> Due:
        with self._glancing():
            return super().due_schedules(limit, without)

    def _glancing(self) -> AbstractContextManager[None]:
        """For what workers ask every second: where somebody listens, the poller keeps the copy as
        new as it needs to be, and whatever then follows is a write that finds out."""
        return self._commits.glancing(1.5 * self._poll if self._poller.runs else 0.0)

    def _missing(self) -> list[Trouble]:
        with self._read() as tx:
            needed = self._bodies.needed(tx.connection)
        if not needed:
            return []
        there = {one.key for one in self._objects.list(self._commits.layout.bodies)}
        gone = {(job, key) for job, key in needed if key not in there}
        if gone:
            # It may have been pruned, and cleaned up, since we looked.
            with self._read() as tx:
                gone &= self._bodies.needed(tx.connection)
        told = "job {} needs the object {}, which was deleted: put it back, or cancel the job"
        return [Trouble("missing body", told.format(*one)) for one in sorted(gone)]

    # --- workers --------------------------------------------------------------------------------

    def _alive(self, worker: Row) -> bool:
        return self._living.alive(worker["id"])

    def register(self, worker: NewWorker) -> Registration:
        def enter(tx: Transaction) -> None:
            registry.register(tx, worker)
            leases.begin(tx, worker)

        self._do(enter)
        return Registration(worker.id)

    def renew(self, worker: str) -> bool:
        with self._meter.telling() as tell:

            def renewed(tx: Transaction) -> bool:
                if tell is not None:
                    tell(tx)
                return leases.renew(tx, worker)

            return self._do(renewed)

    def unregister(self, worker: str) -> None:
        def leave(tx: Transaction) -> None:
            registry.unregister(tx, worker)
            leases.tidy(tx)

        self._do(leave)

    def declare_dead(self, worker: str, reason: str, started: frozenset[int] | None = None) -> None:
        def bury(tx: Transaction) -> None:
            registry.declare_dead(tx, worker, reason, started)
            leases.tidy(tx)

        self._do(bury)

    def over_ran(self, job: str, token: int, worker: str, ago: float = 0.0) -> bool:
        ended = overruns.since(ago)
        return self._do(lambda tx: overruns.over_ran(tx, job, token, worker, ended))

    def workers(self) -> list[WorkerRecord]:
        with self._read() as tx:
            ends = leases.ends(tx)
            found = registry.records(tx, self._alive)
        return [replace(worker, lease_ends=ends.get(worker.id)) for worker in found]

    def why(self, id: str) -> Why:
        with self._read() as tx:
            ends = leases.ends(tx)
            why = super().why(id)
        holders = tuple(
            slot
            if slot.lease_ends is not None or slot.worker_id is None
            else replace(slot, lease_ends=ends.get(slot.worker_id))
            for slot in why.holders
        )
        return replace(why, job=self._bodies.records([why.job])[0], holders=holders)

    # --- round trips ----------------------------------------------------------------------------

    def exchange(self, exchange: Exchange) -> Exchanged:
        if exchange.finishes:
            self._bodies.ahead(finish.result for finish in exchange.finishes)
            self._meter.ended(len(exchange.finishes))
            with self._meter.telling() as tell:
                return self._exchange(exchange, tell)
        return self._exchange(exchange, None)

    def _exchange(self, exchange: Exchange, tell: Tell | None) -> Exchanged:
        worker = exchange.worker
        state = None if exchange.claim is None else exchange.claim.state
        before = None if state is None else state.copy()
        answer: Exchanged | None = None
        tried = False
        told = exchange
        looked: tuple[Claimed, ...] = ()

        def once() -> Exchanged:
            nonlocal answer, tried, told, looked
            if tried:
                # Tried before, and undone: so is whose turn it was.
                self._words = None
                if state is not None and before is not None:
                    state.restore(before)
            tried = True
            looked = self._unheard.of(worker)
            found: tuple[Claimed, ...] = ()
            if looked:
                room = 0 if exchange.claim is None else exchange.claim.room
                found = self._do(lambda tx: unheard.take_up(tx, worker, looked, room))
            asked = replace(exchange, claim=None) if found else exchange
            if self._handed.concerns(asked):
                passed = self._do(lambda tx: self._handed.owned_now(tx, asked))
                asked = replace(asked, passed=passed)
            told = asked
            answer = EmbeddedStore.exchange(self, asked)
            if tell is not None:
                EmbeddedStore._do(self, tell)
            if found:
                answer = replace(answer, claimed=found, more=True)
            return answer

        try:
            # After one in doubt it matters what the ledger says, though nothing is asked for: what
            # was granted then would else be held by this worker for ever, and known to nobody.
            done = self._commits.run(once, verify=bool(self._unheard.of(worker)))
            done = replace(done, claimed=self._bodies.claimed(done.claimed))
        except Exception:
            # Not told what it was granted, or not the arguments of it: next time.
            self._words = None  # they may have been read in what was undone
            if state is not None and before is not None:
                state.restore(before)  # else nobody is told that a limit changed (`recall`)
            if answer is not None:
                self._unheard.add(worker, answer.claimed)
            self._handed.unheard(told)
            raise
        self._unheard.settle(worker, looked)
        self._handed.heard(exchange)
        return done

    # --- wake-ups ---------------------------------------------------------------------------------

    def bell(self, what: str) -> Bell:
        self._poller.start()
        return self._bells.listen(what)

    def ring(self, what: str) -> None:
        self._bells.ring(what)


def exists(url: str) -> bool:
    """Is there a ledger? Who only looks makes none."""
    address = parse(url)
    if (folder_of(address) / "replica.db").exists():
        return True  # this machine has used it before; opening it finds out the rest
    objects = S3(address)
    try:
        layout = Layout(address.prefix)
        return any(patiently(lambda k=k: objects.get(k)) for k in (layout.ledger, layout.shards))
    finally:
        objects.close()

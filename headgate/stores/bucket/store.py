"""The store in a bucket: the operations of the embedded store on this machine's copy, made true by
replacing the ledger."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

from headgate.claim import ClaimState
from headgate.clock import Clock
from headgate.errors import StoreInDoubt
from headgate.jobs import Claimed, Finish
from headgate.stores.bucket import leases, probe
from headgate.stores.bucket.clock import BucketClock
from headgate.stores.bucket.commits import Commits
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.objects import Objects
from headgate.stores.bucket.poller import Poller
from headgate.stores.bucket.replica import Replica, folder_of
from headgate.stores.bucket.s3 import S3
from headgate.stores.bucket.url import parse
from headgate.stores.protocol import (
    Bell,
    Capabilities,
    Exchange,
    Exchanged,
    NewWorker,
    Registration,
    Why,
    WorkerRecord,
)
from headgate.stores.relational import finishing, registry
from headgate.stores.relational.transaction import Row
from headgate.stores.sqlite.bell import Bells
from headgate.stores.sqlite.database import BUSY_TIMEOUT, Transaction
from headgate.stores.sqlite.embedded import EmbeddedStore

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _whole(operation: F) -> F:
    """An operation that writes, as something that is carried out whole, again if need be."""

    @functools.wraps(operation)
    def carried_out(self: BucketStore, *args: Any, **kwargs: Any) -> Any:
        return self._commits.run(lambda: operation(self, *args, **kwargs))

    return cast(F, carried_out)


class BucketStore(EmbeddedStore):
    """A prefix of a bucket, shared by any number of machines."""

    capabilities = Capabilities(leases=True, local=False)

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
        super().__init__(leases.Leases(self._commits.current))
        self._poller = Poller(folder, self._commits.look, address.poll)
        self._unheard: dict[str, tuple[Claimed, ...]] = {}
        self._commits.refresh()

    def close(self) -> None:
        self._tally.flush()
        self._poller.close()
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
    submit = _whole(EmbeddedStore.submit)
    route = _whole(EmbeddedStore.route)
    mark = _whole(EmbeddedStore.mark)
    extend = _whole(EmbeddedStore.extend)
    release_groups = _whole(EmbeddedStore.release_groups)
    retake_groups = _whole(EmbeddedStore.retake_groups)
    overdue = _whole(EmbeddedStore.overdue)
    over_ran = _whole(EmbeddedStore.over_ran)
    put_output = _whole(EmbeddedStore.put_output)
    prune = _whole(EmbeddedStore.prune)
    take_slot = _whole(EmbeddedStore.take_slot)
    drop_slot = _whole(EmbeddedStore.drop_slot)
    extend_slot = _whole(EmbeddedStore.extend_slot)
    expire_slots = _whole(EmbeddedStore.expire_slots)
    change_limits = _whole(EmbeddedStore.change_limits)
    pause_queue = _whole(EmbeddedStore.pause_queue)
    declare_schedules = _whole(EmbeddedStore.declare_schedules)
    tick = _whole(EmbeddedStore.tick)
    run_now = _whole(EmbeddedStore.run_now)
    pause_schedule = _whole(EmbeddedStore.pause_schedule)
    cancel = _whole(EmbeddedStore.cancel)
    retry = _whole(EmbeddedStore.retry)
    relocate = _whole(EmbeddedStore.relocate)
    doctor = _whole(EmbeddedStore.doctor)
    sweep = _whole(EmbeddedStore.sweep)

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
        return self._do(lambda tx: leases.renew(tx, worker))

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
        return replace(why, holders=holders)

    # --- round trips ----------------------------------------------------------------------------

    def exchange(self, exchange: Exchange) -> Exchanged:
        state = None if exchange.claim is None else exchange.claim.state
        before = copy.deepcopy(state)
        answer: Exchanged | None = None

        def once() -> Exchanged:
            nonlocal answer
            if answer is not None and state is not None:
                # Tried before, and undone: so is whose turn it was.
                _restore(state, before)
                self._words = None
            found = self._find_unheard(exchange)
            asked = replace(exchange, claim=None) if found else exchange
            answer = EmbeddedStore.exchange(self, asked)
            if found:
                answer = replace(answer, claimed=found, more=True)
            return answer

        try:
            # After one in doubt it matters what the ledger says, though nothing is asked for: what
            # was granted then would else be held by this worker for ever, and known to nobody.
            done = self._commits.run(once, verify=exchange.worker in self._unheard)
        except StoreInDoubt:
            if answer is not None and answer.claimed:
                self._unheard[exchange.worker] = answer.claimed
            raise
        self._unheard.pop(exchange.worker, None)
        return done

    def _find_unheard(self, exchange: Exchange) -> tuple[Claimed, ...]:
        """What a round trip granted of which nobody could tell whether it was carried out."""
        unheard = self._unheard.get(exchange.worker, ())
        if not unheard:
            return ()
        room = 0 if exchange.claim is None else exchange.claim.room
        with self._write() as tx:
            granted = [one for one in unheard if _is_granted(tx, one, exchange.worker)]
            # What was to follow others is given back, and what there is no room for any more.
            kept = [one for one in granted if not one.reserved][:room]
            back = [Finish(one.token, "returned") for one in granted if one not in kept]
            finishing.finish_all(tx, exchange.worker, "", back, lambda _, jobs: [])
            if back:
                tx.ring("work", "room")
        return tuple(kept)

    # --- wake-ups ---------------------------------------------------------------------------------

    def bell(self, what: str) -> Bell:
        self._poller.start()
        return self._bells.listen(what)

    def ring(self, what: str) -> None:
        self._bells.ring(what)


def _is_granted(tx: Transaction, claimed: Claimed, worker: str) -> bool:
    row = tx.row(
        "SELECT 1 FROM running r JOIN jobs j ON j.n = r.job"
        " WHERE r.token = ? AND r.worker = ? AND j.id = ?",
        (claimed.token, worker, claimed.job),
    )
    return row is not None


def _restore(state: ClaimState, before: ClaimState | None) -> None:
    saved = copy.deepcopy(before)
    for one in fields(ClaimState):
        setattr(state, one.name, getattr(saved, one.name))

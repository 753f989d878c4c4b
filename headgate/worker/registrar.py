"""The keeper's books: each worker process is entered in the store, and taken out after its end."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from headgate.clock import Clock
from headgate.errors import HeadgateError, StoreError
from headgate.stores import open_store
from headgate.stores.protocol import NewWorker, Registration, Store
from headgate.worker import burst
from headgate.worker.board import Board
from headgate.worker.channel import Channel
from headgate.worker.clerk import Clerk
from headgate.worker.lease import Lease, Renewer
from headgate.worker.place import Place
from headgate.worker.runs import Run

log = logging.getLogger("headgate.worker")


class Registrar:
    """All that the keeper says to the store. Nothing here waits for it."""

    def __init__(
        self,
        guard: Channel,
        board: Board,
        places: Sequence[Place],
        clerk: Clerk,
        clock: Clock,
        refused: Callable[[Place | None, str], None],
        *,
        count_renewal: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._guard = guard
        self._board = board
        self._places = places
        self._clerk = clerk
        self._clock = clock
        self._refused = refused
        """Called with the reason when a worker could not be entered; None: it is gone already."""
        self._count_renewal = count_renewal
        """Called with how each ended, in the renewer's thread."""
        self._store: Store | None = None
        self._renewer: Renewer | None = None
        self._rows = threading.Lock()
        self._tasks: frozenset[str] = frozenset()
        self._queues: tuple[str, ...] | None = None
        self._closed: frozenset[str] = frozenset()

    # --- enter ---------------------------------------------------------------------------

    def enter(self, place: Place, hello: dict[str, Any]) -> None:
        """Register the worker process that introduced itself, then have the guard hold its
        files; the guard's answer is what lets it claim."""
        worker = NewWorker(
            id=place.worker,
            name=hello["name"],
            keeper=f"{socket.gethostname()}:{os.getpid()}",
            host=socket.gethostname(),
            pid=place.pid,
            queues=tuple(hello["queues"]),
            tasks=tuple(hello["tasks"]),
            concurrency=hello["concurrency"],
            lease=hello["lease"],
            serves=None if hello["serves"] is None else tuple(hello["serves"]),
        )
        place.name = worker.name
        self._tasks, self._queues = frozenset(worker.tasks), worker.queues or None
        self._closed = frozenset(hello["closed"])

        def register() -> tuple[Registration, float]:
            if self._store is None:
                self._store = open_store(hello["url"])
            # Read before the call: the lease may begin at any moment after this line.
            sent = self._clock.boot()
            return self._store.register(worker), sent

        self._clerk.ask(register, lambda result: self._entered(place, worker, result))

    def _entered(
        self, place: Place, worker: NewWorker, result: tuple[Registration, float] | Exception
    ) -> None:
        if isinstance(result, Exception):
            if not isinstance(result, HeadgateError):
                raise result
            # Another may have been started in its place meanwhile, which is not to blame.
            self._refused(place if place.worker == worker.id else None, str(result))
            return
        registration, sent = result
        if place.worker != worker.id or not place.living:
            # It died while the store was writing its row: nobody will use it.
            self.take_out(
                worker.id, registration.fds, "died while starting", lambda: None, frozenset()
            )
            return
        place.registered = True
        place.fds = registration.fds
        assert self._store is not None
        if self._store.capabilities.leases:
            place.lease = Lease(worker.id, worker.lease, sent)
            self._board.lease(place.index, worker.lease, sent)
            self._renew(place.lease)
        # The worker may claim only after the guard holds its files too: were we both killed
        # before that, its slots would be free while children of its jobs still run.
        self._guard.send({"hold": worker.id}, registration.fds)

    def _renew(self, lease: Lease) -> None:
        assert self._store is not None
        if self._renewer is None:
            self._renewer = Renewer(
                *(self._store, self._clock, self._renewed),
                failed=lambda _: self._count_renewal("failed"),
            )
            self._renewer.start()
        self._renewer.add(lease)

    def _renewed(self, lease: Lease) -> None:
        """In the renewer's thread."""
        self._count_renewal("ended" if lease.dead else "renewed")
        for place in self._places:
            # The worker may be gone since: a lease written to the row of a place that was
            # cleared would never be renewed, and the guard would end everything for it.
            with self._rows:
                if place.lease is lease and not lease.dead:
                    self._board.lease(place.index, lease.seconds, lease.sent)

    # --- show ----------------------------------------------------------------------------

    def show(self, place: Place, state: str) -> None:
        """Have others see how it is. A worker that froze in the middle of a write may hold
        up the store itself, so what could not be told is told again with a later look."""
        if place.shown == state or place.telling or self._store is None:
            return
        store, worker = self._store, place.worker
        place.telling = True

        def told(result: Exception | None) -> None:
            if place.worker != worker:
                return
            place.telling = False
            if result is None:
                place.shown = state
            else:
                log.warning("worker %s could not be shown as %s: %s", worker, state, result)

        self._clerk.ask(lambda: store.mark(worker, state), told)

    # --- take out ------------------------------------------------------------------------

    def end_lease(self, place: Place) -> None:
        """Nothing of this worker runs any more: the guard need not watch its lease."""
        if self._renewer is not None:
            self._renewer.remove(place.worker)
        if place.lease is not None:
            seen = max(place.seen, self._board.row(place.index).outlived)
            runs = self._board.runs(place.index).all()
            place.overran = place.lease.outlived_by(runs, seen)
            if place.overran:
                log.error(
                    "worker process %d outlived its lease, with %d attempts",
                    *(place.pid, len(place.overran)),
                )
        with self._rows:
            place.lease = None
            self._board.clear(place.index)

    def take_out(
        self,
        worker: str,
        fds: Sequence[int],
        reason: str,
        then: Callable[[], None],
        started: frozenset[int],
        name: str = "",
        overran: Sequence[tuple[Run, float]] = (),
    ) -> None:
        """Tell the store that this worker is gone; with a `reason` it is dead, and what it
        ran is lost, but for what was reserved ahead and is not among the `started`. Only
        called when none of its processes is left."""
        store = self._store
        assert store is not None

        def report() -> None:
            if reason:
                store.declare_dead(worker, reason, started)
            else:
                store.unregister(worker)
            self._report_overruns(store, name, overran)

        def close() -> None:
            for fd in fds:
                os.close(fd)
            self._guard.send({"drop": worker})
            then()

        self._clerk.insist(f"reporting the end of worker {worker}", report, close)

    def _report_overruns(
        self, store: Store, name: str, overran: Sequence[tuple[Run, float]]
    ) -> None:
        """Report what a killed process ran after its lease. The store decides for each attempt
        whether it was lost while its code still ran."""
        for run, at in overran:
            if store.over_ran(run.job, run.token, name, self._clock.boot() - at):
                log.error("job %s ran on after the lease of its worker was lost", run.job)

    def last_word(self, reason: str, seconds: float) -> None:
        """Report all workers dead here and now, as far as that is possible in this time."""
        deadline = self._clock.boot() + seconds
        for place in self._places:
            self.end_lease(place)
            if place.registered and self._store is not None and self._clock.boot() < deadline:
                try:
                    started = self._board.started(place.index)
                    self._store.declare_dead(place.worker, reason, started)
                    self._report_overruns(self._store, place.name, place.overran)
                except StoreError as error:
                    # Its files close with us, and the store sees that by itself.
                    log.warning("worker %s could not be reported dead: %s", place.worker, error)

    def left_over(self) -> list[str]:
        """What a burst leaves, in words."""
        if self._store is None:
            return []
        return burst.left_over(self._store, self._tasks, self._queues, self._closed)

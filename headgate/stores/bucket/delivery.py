"""Jobs on their way from the outbox of one shard to another, where they live."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from headgate.clock import Clock
from headgate.stores.bucket.shard import Shard
from headgate.stores.bucket.together import Together

log = logging.getLogger("headgate.store")


class Delivery:
    def __init__(self, shards: Sequence[Shard], together: Together, where: str) -> None:
        self._shards = shards
        self._together = together
        self._where = where
        self._fresh()

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._moving: Future[None] | None = None
        self._to_move = False

    def deliver(self) -> int:
        """Move what waits in the outboxes to where it lives; how many jobs."""
        count = 0
        for shard in self._shards:
            if not shard.outgoing():
                continue
            # As it is now: what an old copy shows may have come elsewhere so long ago that this is
            # noted there no more.
            seen_at = Clock().boot()
            for home, jobs in shard.outbox().items():
                # There first, then gone from here: who dies in between has lost nothing, and who
                # does it again finds it noted there that the job has come.
                left = shard.outgoing_ids()
                if self._shards[home].take_in(shard.number, jobs, left, seen_at):
                    shard.arrived(jobs)
                    count += len(jobs)
        return count

    def begin(self) -> None:
        """Deliver beside what this process does else; one thread at a time."""
        if self._pid != os.getpid():
            self._fresh()
        pool = self._together.pool()
        with self._guard:
            # Who is about to end must see this first, or it would be left lying.
            self._to_move = True
            if self._moving is None:
                self._moving = pool.submit(self._deliver_all)

    def _deliver_all(self) -> None:
        while True:
            with self._guard:
                if not self._to_move:
                    self._moving = None
                    return
                self._to_move = False
            try:
                while self.deliver():
                    continue
            except Exception as error:  # whoever sweeps next tries again
                log.warning("%s: jobs for another shard wait: %s", self._where, error)

    def begin_from(self, *shards: Shard) -> None:
        """Something ended there without its code: who is to be told may live elsewhere."""
        if any(shard.outgoing() for shard in shards):
            self.begin()

    def wait(self) -> None:
        """Whoever looks sees what this process did before, also what is on its way."""
        moving = self._moving if self._pid == os.getpid() else None
        if moving is not None:
            moving.result()

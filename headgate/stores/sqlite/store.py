"""The embedded store: each operation of the protocol is one transaction on one file."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from headgate.clock import Clock
from headgate.stores.protocol import Bell, Capabilities, NewWorker, Registration
from headgate.stores.relational import registry
from headgate.stores.sqlite.bell import Bells
from headgate.stores.sqlite.database import BUSY_TIMEOUT, Database
from headgate.stores.sqlite.embedded import EmbeddedStore
from headgate.stores.sqlite.liveness import Liveness
from headgate.stores.sqlite.schema import migrate
from headgate.stores.sqlite.transaction import Transaction


class SQLiteStore(EmbeddedStore):
    """One SQLite file, shared by many processes of one machine."""

    capabilities = Capabilities(leases=False, local=True)

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.url = url
        self._db = Database(url, clock)
        folder = None if self._db.path is None else Path(f"{self._db.path}.run")
        self._bells = Bells(folder)
        self._liveness = Liveness(folder)
        super().__init__(self._liveness)
        migrate(self._db)

    def close(self) -> None:
        self._tally.flush()
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

    def _read(self) -> AbstractContextManager[Transaction]:
        return self._db.read()

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

    # --- wake-ups ---------------------------------------------------------------------------------

    def bell(self, what: str) -> Bell:
        return self._bells.listen(what)

    def ring(self, what: str) -> None:
        self._bells.ring(what)

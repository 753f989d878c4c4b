"""Machines that share a bucket: stores of one place, each with a copy of its own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headgate.jobs import Claimed, Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores.bucket.ledger import Ledger, read
from headgate.stores.bucket.objects import Lost, Objects, Trouble
from headgate.stores.bucket.store import BucketStore
from headgate.stores.protocol import Claim, Exchange, NewWorker, Publication
from headgate.turns import ClaimState
from tests.bucket.memory import MemoryObjects

LEDGER = "all/ledger.json"


class Faulty(MemoryObjects):
    """`faults` tells of each write to the ledger, in turn, what becomes of it: None is fine;
    `cut` is carried out and not answered; `dead` is neither; `late` is carried out before the
    next request of anybody; 404, 409, 412 and 500 are answers of a server that did nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: Iterator[str | int | None] = iter(())
        self.before_answer: Callable[[], None] | None = None
        self._late: tuple[str, bytes, str] | None = None

    def _arrive(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            try:
                super().replace(*late)
            except Lost:
                return

    def get(self, key: str, known: str | None = None) -> Any:
        found = super().get(key, known)
        self._arrive()
        return found

    def replace(self, key: str, body: bytes, known: str) -> str:
        fault = next(self.faults, None) if key == LEDGER else None
        if fault in (404, 409, 412):
            raise Lost(str(fault))
        if fault == 500:
            raise Trouble("500", maybe=True)
        if fault == "dead":
            raise Trouble("no answer", maybe=True)
        if fault == "late":
            self._late = (key, body, known)
            raise Trouble("no answer", maybe=True)
        etag = super().replace(key, body, known)
        if fault == "cut":
            if self.before_answer is not None:
                self.before_answer()
            raise Trouble("no answer", maybe=True)
        return etag


class Machine(BucketStore):
    """A store with a copy in a folder of its own."""

    def __init__(self, folder: Path, objects: Objects, name: str = "a", **options: Any) -> None:
        self.name = name
        super().__init__(
            f"s3://tests/all?cache={folder / name}&poll=0.05", objects=objects, **options
        )

    @property
    def copy(self) -> Path:
        return self._replica.folder

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table, as the bucket has it now."""
        self._commits.refresh()
        with self._replica.db.read() as tx:
            return {
                name: sorted(
                    (tuple(row) for row in tx.connection.execute(f"SELECT * FROM {name}")),
                    key=repr,
                )
                for name in self._replica.tables
            }

    def ledger(self) -> Ledger:
        got = self._objects.get(LEDGER)
        assert got is not None
        return read(got.body, "test")

    def kept(self) -> None:
        """Until what is done beside the commits is done."""
        keeper = self._commits.keeper
        with keeper._busy:
            return

    def worker(self, name: str = "w", **fields: Any) -> str:
        id = f"{name}-{uuid.uuid4().hex[:8]}"
        self.register(NewWorker(id, name, pid=os.getpid(), tasks=("task",), **fields))
        return id

    def claim(self, worker: str, room: int = 100, finishes: Any = ()) -> list[Claimed]:
        claim = Claim(room, frozenset(("task",)), ClaimState())
        return list(self.exchange(Exchange(worker, finishes, claim=claim)).claimed)

    def finish(self, worker: str, claimed: list[Claimed]) -> tuple[int, ...]:
        finishes = [Finish(one.token, "succeeded") for one in claimed]
        return tuple(self.exchange(Exchange(worker, finishes)).stale)

    def add(self, count: int = 1, **fields: Any) -> list[str]:
        return [one.id for one in self.submit([NewJob("task", **fields) for _ in range(count)])]

    def limit(self, name: str, value: int) -> None:
        self.publish(Publication("test", code={name: value}))


def need(name: str, key: str | None = None) -> Needs:
    return Needs((Need(name, key, 1),))


def same(*machines: Machine) -> None:
    """All of them hold the same rows."""
    first, *others = [machine.tables() for machine in machines]
    for machine, other in zip(machines[1:], others, strict=True):
        for name, rows in first.items():
            assert rows == other[name], f"{name} differs on machine {machine.name}"


@contextmanager
def opened(folder: Path, objects: Objects, *names: str) -> Iterator[list[Machine]]:
    machines = [Machine(folder, objects, name) for name in names]
    try:
        yield machines
    finally:
        for machine in machines:
            machine.close()

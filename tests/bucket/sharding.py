"""Stores of several shards for tests, and a worker that is driven by hand."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headgate.jobs import Claimed, Finish
from headgate.limits import Need, Needs
from headgate.stores.bucket.objects import Objects, Trouble
from headgate.stores.bucket.sharded import ShardedStore
from headgate.stores.protocol import (
    Claim,
    Exchange,
    Exchanged,
    LimitUse,
    NewWorker,
    Publication,
    TaskSpec,
)
from headgate.turns import ClaimState
from tests.bucket.memory import MemoryObjects

TASKS = frozenset(("a", "b", "c", "d"))


def url(folder: Path, name: str = "m", shards: int | None = 2) -> str:
    asked = "" if shards is None else f"&shards={shards}"
    return f"s3://tests/all?cache={folder / name}&poll=0.05{asked}"


@contextmanager
def opened(
    folder: Path, *names: str, objects: Objects | None = None, shards: int = 2
) -> Generator[list[ShardedStore]]:
    objects = objects or MemoryObjects()
    stores = [ShardedStore(url(folder, name, shards), objects=objects) for name in names]
    try:
        yield stores
    finally:
        for store in stores:
            store.close()


def task(name: str, *limits: str, **fields: Any) -> TaskSpec:
    return TaskSpec(name, limits=tuple(LimitUse(limit) for limit in limits), **fields)


def publish(store: ShardedStore, *tasks: TaskSpec, **values: int) -> None:
    store.publish(Publication("test", tasks=tasks, code=values))


def needs(*names: str) -> Needs:
    return Needs(tuple(Need(name) for name in names))


class Hand:
    """A worker driven by hand."""

    def __init__(self, store: ShardedStore) -> None:
        self.store = store
        self.id = f"w-{uuid.uuid4().hex[:8]}"
        self.state = ClaimState()
        store.register(NewWorker(self.id, "w", pid=os.getpid(), tasks=tuple(TASKS)))

    def ask(self, room: int = 100, finishes: Any = (), **options: Any) -> Exchanged:
        claim = Claim(room, TASKS, self.state, **options)
        return self.store.exchange(Exchange(self.id, finishes, claim=claim))

    def claim(self, room: int = 100) -> list[Claimed]:
        found: list[Claimed] = []
        while True:
            got = self.ask(room - len(found))
            found += got.claimed
            if not got.more or len(found) >= room:
                return found


def done(*claimed: Claimed, **fields: Any) -> list[Finish]:
    return [Finish(one.token, "succeeded", **fields) for one in claimed]


def at_once(*works: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


class Failing(MemoryObjects):
    """Whose second shard cannot be written while `broken`."""

    broken = False

    def replace(self, key: str, body: bytes, known: str) -> str:
        if self.broken and "shard-1/" in key:
            raise Trouble("500")
        return super().replace(key, body, known)

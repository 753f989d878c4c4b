"""A worker by hand: claims and finishes through the store, without running any code."""

from __future__ import annotations

import os
import uuid

from headgate.jobs import Claimed, Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores.protocol import Claim, Exchange, NewWorker, Publication, Store, TaskSpec
from headgate.turns import ClaimState


class Hands:
    def __init__(self, store: Store, *tasks: str, name: str = "web-1") -> None:
        self.store = store
        self.id = uuid.uuid4().hex
        self.tasks = frozenset(tasks)
        self.state = ClaimState()
        self.registration = store.register(
            NewWorker(self.id, name, host="here", pid=os.getpid(), tasks=tasks, concurrency=5)
        )

    def claim(self, room: int = 5) -> list[Claimed]:
        claim = Claim(room=room, tasks=self.tasks, state=self.state)
        return list(self.store.exchange(Exchange(self.id, claim=claim)).claimed)

    def finish(self, *finishes: Finish) -> None:
        assert not self.store.exchange(Exchange(self.id, finishes=finishes)).stale


def publish(store: Store, **limits: int | None) -> None:
    """Declare two tasks and the limits."""
    tasks = (TaskSpec("mail"), TaskSpec("resize"))
    store.publish(Publication("hands", tasks=tasks, code=limits))


def job(task: str = "mail", *groups: str, **more: object) -> NewJob:
    needs = Needs(tuple(Need(*_split(group)) for group in groups))
    return NewJob(task, needs=needs, **more)  # type: ignore[arg-type]


def _split(group: str) -> tuple[str, str | None]:
    name, slash, key = group.partition("/")
    return name, key if slash else None

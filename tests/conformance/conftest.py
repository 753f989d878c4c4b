"""One suite for every store: add a store to `STORES` and it must keep every promise here."""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import Clock
from headgate.jobs import Claimed, Failure, Finish, NewJob, Progress
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.bucket.store import BucketStore
from headgate.stores.protocol import (
    Claim,
    Exchange,
    Exchanged,
    LimitChange,
    NewWorker,
    Publication,
    QueueShare,
    Store,
)
from headgate.turns import ClaimState
from tests.bucket.memory import MemoryObjects
from tests.stores import store_url


class HandClock(Clock):
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0
        self.jumped = 0.0

    def now(self) -> float:
        return self.time + self.jumped

    def boot(self) -> float:
        return self.time - 1_700_000_000.0

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock; no time passes."""
        self.jumped += seconds

    def advance(self, seconds: float) -> None:
        self.time += seconds


STORES: dict[str, Callable[[Path], str]] = {
    store: functools.partial(store_url, store, quick=True)
    for store in ("bucket", "sqlite", "postgres")
}
LIMITS = {"test_limits", "test_slots", "test_caps", "test_rates"}
# The same code by another way, or on another version of the server: a part of the suite each.
ALSO = {
    "memory": {"test_life", "test_from_outside", "test_ahead", "test_slots", "test_turns"},
    "pgbouncer": {"test_life", "test_from_outside", "test_queues", "test_ahead", "test_listings"}
    | LIMITS,
    "postgres-system": {"test_life", "test_turns"} | LIMITS,
    "bucket-server": {"test_slots", "test_queues"},
}

LEFT_OUT: dict[str, Mapping[str, str]] = {
    "pgbouncer": {
        "test_room_that_no_job_wants_wakes_only_who_waits_by_hand": "who cannot hear looks always",
    },
}
LONG = {"test_thousands_of_groups_named_by_their_jobs_hide_nobody"}
"""In the short form on each kind of store once."""


class Hand:
    """A worker driven by hand."""

    def __init__(self, rig: Rig, name: str, tasks: Sequence[str]) -> None:
        self.rig = rig
        self.id = f"{name}-{uuid.uuid4().hex[:6]}"
        self.name = name
        self.tasks = frozenset(tasks)
        self.state = ClaimState()
        self.running: dict[int, Claimed] = {}
        registration = rig.store.register(
            # A lease, where there are any, that outlives every test: it is not what is tested.
            NewWorker(
                self.id, name, pid=os.getpid(), tasks=tuple(tasks), concurrency=100, lease=1e6
            )
        )
        self.fds = list(registration.fds)

    def exchange(
        self, finishes: Sequence[Finish] = (), room: int = 100, **options: Any
    ) -> Exchanged:
        by_turn: dict[str, int] = {}
        for claimed in self.running.values():
            by_turn[claimed.turn] = by_turn.get(claimed.turn, 0) + 1
        progress: Sequence[Progress] = options.pop("progress", ())
        tasks = options.pop("tasks", self.tasks)
        claim = Claim(room, frozenset(tasks), self.state, running=by_turn, **options)
        got = self.rig.store.exchange(Exchange(self.id, finishes, progress, claim=claim))
        for finish in finishes:
            self.running.pop(finish.token, None)
        self.running.update({claimed.token: claimed for claimed in got.claimed})
        return got

    def claim(self, room: int = 100, **options: Any) -> list[Claimed]:
        """Ask until there is no more to look at."""
        found: list[Claimed] = []
        while True:
            got = self.exchange(room=room - len(found), **options)
            found += got.claimed
            if not got.more or len(found) >= room:
                return found

    def end(self, claimed: Claimed, outcome: str = "succeeded", **fields: Any) -> bool:
        """Finish one attempt; True unless it was stale."""
        if outcome in ("failed", "retry"):
            fields.setdefault("error", Failure("ValueError", "no"))
        finish = Finish(claimed.token, outcome, **fields)  # type: ignore[arg-type]
        got = self.rig.store.exchange(Exchange(self.id, [finish]))
        self.running.pop(claimed.token, None)
        return claimed.token not in got.stale

    def end_all(self) -> None:
        for claimed in list(self.running.values()):
            self.end(claimed)

    def die(self) -> None:
        """Everything that belonged to this worker is gone."""
        if self.fds:
            for fd in self.fds:
                os.close(fd)
            self.fds = []
        else:
            self.rig.store.declare_dead(self.id, "killed by the test")

    def leave(self) -> None:
        self.rig.store.unregister(self.id)
        for fd in self.fds:
            os.close(fd)
        self.fds = []


class Rig:
    def __init__(self, store: Store, clock: HandClock) -> None:
        self.store = store
        self.clock = clock
        self.hands: list[Hand] = []

    def hand(self, name: str = "w", tasks: Sequence[str] = ("task", "other", "wide")) -> Hand:
        hand = Hand(self, name, tasks)
        self.hands.append(hand)
        return hand

    def declare(self, **limits: int | None) -> None:
        code = {name.replace("_", "-"): value for name, value in limits.items()}
        self.store.publish(Publication("test", code=code))

    def submit(self, count: int = 1, **fields: Any) -> list[str]:
        task = fields.pop("task", "task")
        jobs = [NewJob(task, **fields) for _ in range(count)]
        return [submitted.id for submitted in self.store.submit(jobs)]

    def tenant(self, key: str, count: int = 1, *also: Need, **fields: Any) -> list[str]:
        """Jobs under a limit keyed by tenant, the tenant's turn."""
        needs = Needs((*also, Need("tenant", key)))
        return self.submit(count, needs=needs, turn=key, fair_limit="tenant", **fields)

    def set_limit(self, group: str, value: int | None, reason: str = "test") -> None:
        change = LimitChange(group, value, set_value=True, by="operator", reason=reason)
        self.store.change_limit(change)

    def pause(self, group: str, paused: bool = True) -> None:
        self.store.change_limit(LimitChange(group, paused=paused, by="operator", reason="test"))

    def held(self, group: str) -> int:
        return self.store.group(group)[0].held

    def state(self, id: str) -> str:
        record = self.store.job(id)
        return "gone" if record is None else record.state


def need(name: str, key: str | None = None, units: int = 1) -> Needs:
    return Needs((Need(name, key, units),))


def one_of(*names: str, units: int = 1) -> Needs:
    return Needs((), (tuple(Need(name, None, units) for name in names),))


def share(name: str, room: int = 100, weight: int = 1) -> QueueShare:
    return QueueShare(name, room, weight)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "rig" in metafunc.fixturenames:
        module = metafunc.module.__name__.rpartition(".")[2]
        name = metafunc.function.__name__
        also = [store for store, modules in ALSO.items() if module in modules and name not in LONG]
        if os.environ.get("HEADGATE_PROOF") == "full":
            also += [store for store in ALSO if store not in also and store != "bucket-server"]
        also = [store for store in also if name not in LEFT_OUT.get(store, ())]
        metafunc.parametrize("rig", [*sorted(STORES), *also], indirect=True)


def _opened(store: str, folder: Path, clock: Clock) -> Store:
    if store == "bucket":  # in the memory of this process; `bucket-server` is a server
        return BucketStore(f"s3://tests/all?cache={folder}", clock=clock, objects=MemoryObjects())
    return open_store(store_url(store, folder, quick=True), clock=clock)


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """A store with a clock in hand. After every test nothing may be left behind: what was
    claimed ends, and then no slot is held, no attempt runs, no job is nowhere."""
    clock = HandClock()
    rig = Rig(_opened(request.param, tmp_path, clock), clock)
    store = rig.store
    yield rig
    for hand in rig.hands:
        hand.end_all()
        hand.leave()
    clock.advance(100_000)
    store.sweep()
    left = {group: rig.held(group) for group in store.groups() if rig.held(group)}
    assert left == {}, f"slots left behind: {left}"
    assert store.workers() == []
    assert store.doctor() == []
    store.close()
    locks = list(tmp_path.glob("*.run/*.lock"))
    assert locks == [], f"lock files left behind: {locks}"

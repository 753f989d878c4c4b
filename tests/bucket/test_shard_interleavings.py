"""What others do, or what fails, between two lines of ours, where there are several shards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import ConfigError, StoreError, StoreInDoubt, StoreUnavailable
from headgate.jobs import JobFilter, NewJob
from headgate.limits import Need, Needs
from headgate.stores.bucket import patience
from headgate.stores.bucket.objects import Got, Trouble
from headgate.stores.bucket.sharded import ShardedStore
from headgate.stores.bucket.shards import Joined
from headgate.stores.bucket.store import BucketStore
from headgate.stores.protocol import Exchange
from tests.bucket.memory import MemoryObjects
from tests.bucket.sharding import (
    Failing,
    Hand,
    done,
    opened,
    publish,
    task,
    url,
)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 0.2)


class Held(MemoryObjects):
    """One read of the directory is answered late."""

    def __init__(self) -> None:
        super().__init__()
        self.hold: threading.Thread | None = None
        self.read, self.go = threading.Event(), threading.Event()

    def get(self, key: str, known: str | None = None) -> Got | None:
        got = super().get(key, known)
        if threading.current_thread() is self.hold:
            self.hold = None
            self.read.set()
            assert self.go.wait(20)
        return got


def test_a_late_look_at_the_directory_takes_no_home_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread reads it, another gives a home, then the first remembers what it read."""
    objects = Held()
    with opened(tmp_path, "x", "y", objects=objects) as (store, other):
        store.submit([NewJob("a")])  # in shard 0
        other.submit([NewJob("b")])  # in shard 1; of which the first store has not heard
        directory = store.directory
        looks = threading.Thread(target=directory.refresh)
        objects.hold = looks
        looks.start()
        assert objects.read.wait(20)
        original, given = directory._assign, 0

        def assign(joined: list[Joined]) -> None:
            nonlocal given
            original(joined)
            given += 1
            if given == 1:
                objects.go.set()
                looks.join(20)

        monkeypatch.setattr(directory, "_assign", assign)
        jobs = store.submit([NewJob("c"), NewJob("b"), NewJob("a")])
        homes = directory.homes.tasks
        for job, name in zip(jobs, "cba", strict=True):
            assert store.shards[homes[name]].has_now(job.id), name


@pytest.mark.parametrize("applied", [False, True])
def test_what_is_to_be_given_back_is_given_back_though_that_fails_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 0.0)
    objects = Failing()
    with opened(tmp_path, "x", objects=objects) as (store,):
        publish(store, task("a"), task("b"))
        store.submit([NewJob(name) for name in "abab"])
        hand = Hand(store)
        first = hand.claim(2)
        objects.broken = True
        with pytest.raises(StoreError):
            hand.ask(2, done(*first))
        objects.broken = False
        shard = store.shards[0]
        original = shard.exchange

        def fail(exchange: Exchange) -> Any:
            monkeypatch.setattr(shard, "exchange", original)
            if applied:
                original(exchange)
            raise StoreInDoubt("no answer")

        monkeypatch.setattr(shard, "exchange", fail)
        with pytest.raises(StoreInDoubt):
            hand.ask(0, done(*first))  # it has no room any more for what it was granted
        got = hand.ask(2, done(*first))
        assert not got.stale
        rest = [*got.claimed, *hand.claim(2 - len(got.claimed))]
        assert {one.task for one in rest} == {"a", "b"}
        assert not hand.ask(0, done(*rest)).stale
        assert store.count(JobFilter(states=frozenset(("succeeded",)))) == 4


def test_what_the_shards_granted_is_told_though_the_last_look_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, "x") as (store,):
        store.submit([NewJob("a"), NewJob("b")])
        hand = Hand(store)

        def fail(older: float = 0.0) -> bool:
            raise StoreUnavailable("disk I/O error")

        with monkeypatch.context() as patched:
            patched.setattr(store.shards[0], "outgoing", fail)
            with pytest.raises(StoreUnavailable):
                hand.ask(2)
        assert {one.task for one in hand.claim(2)} == {"a", "b"}


def test_a_group_that_a_submission_named_for_itself_is_seen_where_it_counts(tmp_path: Path) -> None:
    with opened(tmp_path, "x", "y") as stores:
        store = stores[0]
        publish(store, task("a"), task("b"))
        store.submit([NewJob("b", needs=Needs((Need.named("own"),)), carried=(("own", 1),))])
        assert len(Hand(store).claim()) == 1
        for one in stores:
            record, slots = one.group("own")
            assert (record.value, record.held, len(slots)) == (1, 1, 1)
            assert one.values(["own"])["own"].held == 1


class Founders(MemoryObjects):
    """The answer to who makes this object is lost, and `meanwhile` happens before it is made."""

    lost = ""
    meanwhile: Callable[[], None] | None = None

    def create(self, key: str, body: bytes) -> str:
        cut = bool(self.lost) and key.endswith(self.lost)
        if cut:
            self.lost = ""
            if self.meanwhile is not None:
                self.meanwhile()
        etag = super().create(key, body)
        if cut:
            raise Trouble("no answer", maybe=True)
        return etag


@pytest.mark.parametrize("lost", ["all/ledger.json", "all/shards.json"])
def test_two_kinds_of_store_are_never_made_in_one_place(tmp_path: Path, lost: str) -> None:
    """Each looks for the other again when it has made its own, also when no answer came."""
    objects = Founders()
    plain = lambda: BucketStore(url(tmp_path, "p", None), objects=objects)  # noqa: E731
    several = lambda: ShardedStore(url(tmp_path, "s", 2), objects=objects)  # noqa: E731
    late, first = (plain, several) if "ledger" in lost else (several, plain)
    objects.lost, objects.meanwhile = lost, lambda: first().close()
    with pytest.raises(ConfigError):
        late()
    assert len({"all/ledger.json", "all/shards.json"} & objects.held.keys()) == 1

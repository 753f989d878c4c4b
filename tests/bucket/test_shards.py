"""Several shards as one store: a home for every name, and nothing that spans two."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.errors import ConfigError, DeclarationError, StoreError
from headgate.jobs import Claimed, JobFilter, NewJob
from headgate.limits import Need, Needs
from headgate.stores.bucket.objects import Lost, Trouble
from headgate.stores.bucket.sharded import ShardedStore, open_bucket
from headgate.stores.bucket.shards import shard_of
from headgate.stores.bucket.store import BucketStore
from headgate.stores.protocol import (
    CapSpec,
    LimitUse,
    QueueShare,
    SlotRequest,
    TaskSpec,
)
from tests.bucket.memory import MemoryObjects
from tests.bucket.sharding import (
    Failing,
    Hand,
    at_once,
    done,
    needs,
    opened,
    publish,
    task,
    url,
)

# --- homes ----------------------------------------------------------------------------------------


def test_what_a_limit_joins_has_one_home_and_the_rest_is_spread(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with opened(tmp_path, "x", "y", objects=objects) as (store, other):
        publish(
            store, task("a", "db"), task("b", "gpu"), task("c", "db", "net"),
            task("d", caps=(CapSpec("news", max_total=1),), aliases=("dd",)),
        )  # fmt: skip
        homes = store.directory.homes
        assert homes.tasks["a"] == homes.tasks["c"] == homes.limits["db"] == homes.limits["net"]
        assert homes.tasks["b"] == homes.limits["gpu"] != homes.tasks["a"]
        assert homes.tasks["d"] == homes.tasks["dd"] == homes.caps["news"]
        other.submit([NewJob("a"), NewJob("b")])
        assert other.directory.homes.tasks == homes.tasks
        assert [shard.count(JobFilter()) for shard in other.shards] == [1, 1]


def test_a_declaration_that_joins_two_shards_is_refused_by_name(tmp_path: Path) -> None:
    with opened(tmp_path, "x") as (store,):
        publish(store, task("a", "db"), task("b", "gpu"))
        before = store.directory.homes
        # Not by itself: only through the limit that a third task shares with both.
        with pytest.raises(DeclarationError, match="two shards") as refused:
            publish(store, task("c", "net"), task("d", "net", "db", "gpu"))
        for told in ("task 'd'", "limit 'db'", "shard 0", "limit 'gpu'", "shard 1"):
            assert told in str(refused.value)
        with pytest.raises(DeclarationError, match="two shards"):
            store.submit([NewJob("a", needs=needs("gpu"))])
        one_of = (LimitUse("db"), LimitUse("gpu"))
        with pytest.raises(DeclarationError, match="two shards"):
            publish(store, TaskSpec("e", one_of=(one_of,)))
        store.directory.refresh()
        assert store.directory.homes == before, "what is refused gives nobody a home"
        assert store.count(JobFilter()) == 0


def test_machines_that_give_homes_at_once_agree(tmp_path: Path) -> None:
    names = [f"t{i}" for i in range(12)]
    objects = MemoryObjects()
    with opened(tmp_path, "x", "y", objects=objects) as stores:

        def work(store: ShardedStore, order: list[str]) -> Callable[[], None]:
            def submit() -> None:
                for name in order:
                    store.submit([NewJob(name, needs=needs(f"limit-{name[-1]}"))])

            return submit

        at_once(*(work(s, order) for s in stores for order in (names, names[::-1])))
        for store in stores:
            store.directory.refresh()
        x, y = stores
        assert x.directory.homes == y.directory.homes
        for name in names:
            counts = [shard.count(JobFilter(task=name)) for shard in x.shards]
            assert sorted(counts) == [0, 4], "all its jobs are in one shard"
            assert counts.index(4) == x.directory.homes.limits[f"limit-{name[-1]}"]


def test_who_gives_a_home_too_late_takes_the_one_that_is_there(tmp_path: Path) -> None:
    class Overtaken(MemoryObjects):
        """Somebody else writes the directory between our look and our write."""

        before: Callable[[], object] | None = None

        def replace(self, key: str, body: bytes, known: str) -> str:
            before, self.before = self.before, None if "shards.json" in key else self.before
            if before is not None and "shards.json" in key:
                before()
            return super().replace(key, body, known)

    objects = Overtaken()
    with opened(tmp_path, "x", "y", objects=objects) as (store, other):
        # Each alone would put its first task into shard 0, and `b` with `db` beside it.
        objects.before = lambda: other.submit([NewJob("b"), NewJob("a", needs=needs("db"))])
        store.submit([NewJob("a"), NewJob("b")])
        other.directory.refresh()
        assert store.directory.homes == other.directory.homes
        homes = store.directory.homes
        assert homes.tasks["a"] == homes.limits["db"] != homes.tasks["b"] == 0
        for name in "ab":
            counts = [shard.count(JobFilter(task=name)) for shard in store.shards]
            assert counts[homes.tasks[name]] == 2


def test_groups_that_submissions_name_for_themselves_are_counted_together(tmp_path: Path) -> None:
    def own(task: str, group: str) -> NewJob:
        return NewJob(task, needs=Needs((Need.named(group),)), carried=((group, 1),))

    with opened(tmp_path, "x") as (store,):
        publish(store, task("a"), task("b"))
        store.submit([own("b", "user-7")])
        with pytest.raises(DeclarationError, match="name/key"):
            store.submit([own("a", "user-8")])
        store.submit([own("a", "user/8")])
        with pytest.raises(DeclarationError, match="two shards"):
            store.submit([own("b", "user/9")])
        # A slot by hand meets them too, and so does who declares the name later.
        hand = Hand(store)
        assert len(hand.claim()) == 2
        assert store.take_slot(SlotRequest("user-7", "me", "me", 60, 1, carries_limit=True)) is None
        with pytest.raises(DeclarationError, match="two shards"):
            store.submit([NewJob("a", needs=needs("user-7"))])


# --- how many -------------------------------------------------------------------------------------


def test_the_number_of_shards_is_fixed_and_found(tmp_path: Path) -> None:
    objects = MemoryObjects()
    ShardedStore(url(tmp_path, "x", 3), objects=objects).close()
    found = open_bucket(url(tmp_path, "y", None), objects=objects)
    assert isinstance(found, ShardedStore)
    assert len(found.shards) == 3
    found.close()
    with pytest.raises(ConfigError, match="3 shards"):
        ShardedStore(url(tmp_path, "y", 2), objects=objects)
    with pytest.raises(ConfigError, match="asks for one"):
        open_bucket(url(tmp_path, "z", 1), objects=objects)
    with pytest.raises(ConfigError, match="1 to 16"):
        open_bucket(url(tmp_path, "z", 17), objects=objects)


def test_a_store_without_shards_has_nothing_of_them(tmp_path: Path) -> None:
    objects = MemoryObjects()
    asked: list[str] = []
    get = objects.get
    objects.get = lambda key, known=None: (asked.append(key), get(key, known))[1]  # type: ignore[method-assign]
    plain = open_bucket(url(tmp_path, "x", None), objects=objects)
    assert isinstance(plain, BucketStore)
    plain.submit([NewJob("a")])
    asked.clear()
    open_bucket(url(tmp_path, "y", None), objects=objects).close()
    assert set(asked) - {key for key in asked if "probes/" in key} == {"all/ledger.json"}
    assert [key for key in objects.held if "shard" in key] == []
    with pytest.raises(ConfigError, match="without shards"):
        ShardedStore(url(tmp_path, "z", 2), objects=objects)
    plain.close()


# --- work -----------------------------------------------------------------------------------------


def test_a_token_tells_its_shard_and_finishes_go_there(tmp_path: Path) -> None:
    with opened(tmp_path, "x") as (store,):
        ids = [one.id for one in store.submit([NewJob(name) for name in "abab"])]
        assert [store.job(id).task for id in ids] == list("abab")  # type: ignore[union-attr]
        hand = Hand(store)
        claimed = hand.claim()
        assert {one.task: shard_of(one.token) for one in claimed} == store.directory.homes.tasks
        assert all(one.token < 2**53 for one in claimed)
        got = hand.ask(0, done(*claimed, claimed[0]))
        assert got.stale == {claimed[0].token}
        assert store.count(JobFilter(states=frozenset(("succeeded",)))) == 4


def test_room_is_divided_and_none_is_left_while_somebody_has_more(tmp_path: Path) -> None:
    with opened(tmp_path, "x") as (store,):
        publish(store, task("a", "none"), task("b"), none=0)
        store.submit([NewJob("a", needs=needs("none")) for _ in range(20)])
        store.submit([NewJob("b") for _ in range(30)])
        hand = Hand(store)
        assert len(hand.claim(1)) == 1, "one place, and the first shard has no use for it"
        assert len(hand.claim(9)) == 9
        shares = (QueueShare("default", 3),)
        assert len(hand.ask(10, queues=shares).claimed) <= 3
        publish(store, none=100)
        got = hand.claim(6)
        assert {one.task for one in got} == {"a", "b"}
        assert len(got) == 6


def test_a_limit_holds_over_machines(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with opened(tmp_path, "x", "y", objects=objects) as stores:
        publish(stores[0], task("a", "two"), task("b", "three"), two=2, three=3)
        for name, limit in (("a", "two"), ("b", "three")):
            stores[0].submit([NewJob(name, needs=needs(limit)) for _ in range(30)])
        most = {"two": 0, "three": 0}
        held = {"two": 0, "three": 0}
        ran: list[str] = []
        lock = threading.Lock()

        def work(store: ShardedStore) -> None:
            hand, mine = Hand(store), list[Claimed]()
            while len(ran) < 60:
                with lock:
                    for one in mine:
                        held[one.groups[0][0]] -= 1
                        ran.append(one.job)
                mine = list(hand.ask(4, done(*mine)).claimed)
                with lock:
                    for one in mine:
                        held[one.groups[0][0]] += 1
                        group = one.groups[0][0]
                        most[group] = max(most[group], held[group])
                if not mine:
                    store.bell("work").wait(0.05)

        at_once(*(lambda store=store: work(store) for store in stores for _ in range(2)))
        assert len(set(ran)) == len(ran) == 60
        assert most["two"] <= 2
        assert most["three"] <= 3
        assert stores[0].group("two")[0].held == stores[0].group("three")[0].held == 0


def test_what_one_shard_granted_is_not_lost_when_another_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.stores.bucket.patience.PATIENCE", 0.0)
    objects = Failing()
    with opened(tmp_path, "x", objects=objects) as (store,):
        store.submit([NewJob(name) for name in "abab"])
        hand = Hand(store)
        first = hand.claim(2)
        assert {one.task for one in first} == {"a", "b"}
        objects.broken = True
        with pytest.raises(StoreError):
            hand.ask(2, done(*first))
        objects.broken = False
        got = hand.ask(2, done(*first))
        assert not got.stale, "the one that was told before is not told again"
        rest = [*got.claimed, *hand.claim(2 - len(got.claimed))]
        assert {one.task for one in rest} == {"a", "b"}
        assert not hand.ask(0, done(*rest)).stale
        assert store.count(JobFilter(states=frozenset(("succeeded",)))) == 4


def test_the_directory_bears_lost_answers(tmp_path: Path) -> None:
    class Deaf(MemoryObjects):
        """Answers of writes to the directory are lost."""

        times = 0

        def replace(self, key: str, body: bytes, known: str) -> str:
            etag = super().replace(key, body, known)
            if key.endswith("shards.json") and self.times:
                self.times -= 1
                raise Trouble("no answer", maybe=True)
            return etag

    objects = Deaf()
    with opened(tmp_path, "x", objects=objects) as (store,):
        objects.times = 1
        publish(store, task("a", "db"), task("b"))
        assert store.directory.homes.tasks == {"a": 0, "b": 1}
        with pytest.raises(Lost):
            objects.create("all/shards.json", b"{}")

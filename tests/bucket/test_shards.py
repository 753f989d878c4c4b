"""Several shards as one store: a home for every name, nothing that spans two, nothing lost or
doubled on the way between them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.claim import ClaimState
from headgate.errors import ConfigError, DeclarationError, StoreError
from headgate.jobs import CapUse, Claimed, Finish, JobFilter, NewJob, Retention, State
from headgate.limits import Need, Needs
from headgate.schedules.template import to_text
from headgate.stores.bucket.objects import Lost, Objects, Trouble
from headgate.stores.bucket.sharded import ShardedStore, open_bucket
from headgate.stores.bucket.shards import shard_of
from headgate.stores.bucket.store import BucketStore
from headgate.stores.protocol import (
    CapSpec,
    Claim,
    Exchange,
    Exchanged,
    LimitUse,
    NewWorker,
    Publication,
    QueueShare,
    Schedules,
    ScheduleSpec,
    SlotRequest,
    TaskSpec,
    Tick,
    Ticking,
)
from tests.bucket import server
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


class Failing(MemoryObjects):
    """Whose second shard cannot be written while `broken`."""

    broken = False

    def replace(self, key: str, body: bytes, known: str) -> str:
        if self.broken and "shard-1/" in key:
            raise Trouble("500")
        return super().replace(key, body, known)


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


# --- the outbox -----------------------------------------------------------------------------------


def test_a_follow_up_for_another_shard_arrives_once(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with opened(tmp_path, "x", "y", objects=objects) as (store, other):
        publish(store, task("a"), task("b"))
        store.submit([NewJob("a")])
        hand = Hand(store)
        (first,) = hand.claim()
        next_ = NewJob("b", parent=first.job, args='{"n": 1}')
        stale = [Finish(first.token + 1, "succeeded", followups=(NewJob("b"),))]
        assert hand.ask(0, stale).stale, "what is stale is followed by nothing"
        hand.ask(0, done(first, followups=(next_, NewJob("a"))))
        found = store.job(next_.id)
        assert found is not None
        assert (found.args, found.parent) == ('{"n": 1}', first.job)
        assert [shard.count(JobFilter()) for shard in store.shards] == [2, 1]
        assert not any(shard.outgoing() for shard in store.shards)
        other.sweep()
        assert other.count(JobFilter(task="b")) == 1


def test_who_is_told_of_an_end_may_live_elsewhere(tmp_path: Path) -> None:
    with opened(tmp_path, "x") as (store,):
        publish(store, task("a", on_aborted="b"), task("b"))
        (first,), (second,) = store.submit([NewJob("a")]), store.submit([NewJob("a")])
        store.cancel(first.id)
        told = store.find(JobFilter(task="b"))
        assert [job.parent for job in told] == [first.id]
        hand = Hand(store)
        hand.claim()
        store.cancel(second.id)
        store.declare_dead(hand.id, "killed")
        assert store.count(JobFilter(task="b")) == 2
        assert store.shards[store.directory.homes.tasks["b"]].count(JobFilter()) == 2


def test_a_follow_up_that_does_not_fit_there_is_told(tmp_path: Path) -> None:
    with opened(tmp_path, "x") as (store,):
        cap = CapUse("news", max_total=0)
        publish(store, task("a"), task("b", caps=(CapSpec("news", max_total=0),)))
        store.submit([NewJob("a")])
        hand = Hand(store)
        next_ = NewJob("b", caps=(cap,))
        hand.ask(0, done(*hand.claim(), followups=(next_,)))
        (event,) = store.events("followup_refused")
        assert (event.subject, event.data["group"]) == (next_.id, "news")
        assert store.job(next_.id) is None
        assert not any(shard.outgoing() for shard in store.shards)


DYING = """
import os, signal, sys
from headgate.jobs import Finish, NewJob
from headgate.stores.bucket import shard
from headgate.stores.bucket.sharded import ShardedStore
from tests.bucket.test_shards import Hand, done, publish, task

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

url, where, id = sys.argv[1:]
store = ShardedStore(url)
publish(store, task("a"), task("b"))
store.submit([NewJob("a")])
hand = Hand(store)
claimed = hand.claim()
setattr(shard.Shard, where, die)
hand.ask(0, done(*claimed, followups=(NewJob("b", id=id),)))
store.job(id)
sys.exit("it went on")
"""


@pytest.mark.parametrize("where", ["take_in", "arrived"])
def test_who_is_killed_on_the_way_leaves_nothing_lost_or_doubled(
    tmp_path: Path, where: str
) -> None:
    """Killed before the job is in the other shard, or after it, before it is taken out of this."""
    place = server.shared().fresh(tmp_path / "dead", shards="2")
    id = str(uuid.uuid4())
    ended = subprocess.run(
        [sys.executable, "-c", DYING, place, where, id], timeout=60, check=False,
        capture_output=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    store = ShardedStore(place.replace("dead", "alive"))
    try:
        for shard in store.shards:
            shard.workers()
        assert any(shard.outgoing() for shard in store.shards), "it was put down"
        home = store.directory.homes.tasks["b"]
        assert store.shards[home].has(id) == (where == "arrived")
        hand = Hand(store)
        if where == "take_in":
            assert hand.claim() == []
            at_once(*(lambda: (store.sweep(), None)[1] for _ in range(3)))
        (claimed,) = hand.claim()
        assert claimed.job == id
        # It is over and forgotten before somebody brings it again.
        hand.ask(0, done(claimed, keep=False))
        store.prune(Retention(succeeded=0))
        assert store.job(id) is None
        at_once(*(lambda: (store.sweep(), None)[1] for _ in range(3)))
        assert not any(shard.outgoing() for shard in store.shards)
        assert hand.claim() == []
        assert store.count(JobFilter(task="b")) == 0
    finally:
        store.close()


# --- to look --------------------------------------------------------------------------------------


def test_pages_of_jobs_and_events_go_through_all_shards_once(tmp_path: Path) -> None:
    with opened(tmp_path, "x", shards=3) as (store,):
        ids: list[str] = []
        for i in range(40):
            (one,) = store.submit([NewJob("aabcbca"[i % 7])])
            ids.append(one.id)
            store.cancel(one.id, by="me") if i % 2 else None
        wanted = ids[::-1]
        found: list[str] = []
        while page := store.find(JobFilter(), 7, found[-1] if found else None):
            found += [job.id for job in page]
        assert found == wanted
        for states, expected in (
            (frozenset[State](), wanted), (frozenset(("cancelled",)), wanted[::2]),
        ):  # fmt: skip
            found, after = [], None
            while True:
                page = store.browse(JobFilter(states=states), 7, after)  # type: ignore[arg-type]
                found += [job.id for job in page.jobs]
                after = page.after
                if after is None:
                    break
            assert found == expected
        told: list[str] = []
        before: int | None = None
        while events := store.past_events("job_cancelled", before=before, limit=6):
            told += [event.subject for event in events]
            before = events[-1].seq
        assert told == wanted[::2]
        assert told == [event.subject for event in store.events("job_cancelled")]
        with pytest.raises(StoreError, match="no place"):
            store.browse(JobFilter(), 5, "1_2")


def test_workers_queues_and_limits_are_told_once(tmp_path: Path) -> None:
    with opened(tmp_path, "x", shards=3) as (store,):
        publish(store, task("a", "db"), task("b"), db=5, idle=7)
        store.submit(
            [NewJob(name, needs=needs("db") if name == "a" else Needs()) for name in "aab"]
        )
        hand = Hand(store)
        hand.claim(2)
        (worker,) = store.workers()
        assert (worker.running, worker.state) == (2, "alive")
        store.pause_queue("default", True, by="me")
        (queue,) = store.queues()
        assert (queue.waiting, queue.running, queue.paused) == (1, 2, True)
        assert len(store.events("queue_paused")) == len(store.events("worker_started")) == 1
        limits = {one.group: one for one in store.limits()}
        assert sorted(limits) == ["db", "idle"]
        assert (limits["db"].held, limits["db"].value, limits["idle"].value) == (1, 5, 7)
        assert [load.limit.group for load in store.loads()] == ["db", "idle"]
        assert sorted(spec.name for spec in store.tasks()) == ["a", "b"]
        assert store.doctor() == []
        store.shards[1].unregister(hand.id)
        assert store.workers()[0].state == "dead"
        store.pause_queue("default", False)
        got = hand.ask()
        assert (got.dead, got.claimed) == (True, ())


def test_a_schedule_lives_with_its_task(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with opened(tmp_path, "x", "y", objects=objects) as (store, other):
        publish(store, task("a"), task("b"))
        specs = tuple(
            ScheduleSpec(f"every-{name}", "* * * * *", job=to_text(NewJob(name))) for name in "ab"
        )
        store.declare_schedules(Schedules("test", schedules=specs))
        assert [len(shard.schedules()) for shard in store.shards] == [1, 1]
        due = other.due_schedules()
        assert [one.spec.name for one in due.schedules] == ["every-a", "every-b"]
        tickings = [
            Ticking(
                one.spec.name, one.digest, one.next_at, due.now + 60,
                (Tick(due.now, NewJob(one.spec.name[-1])),),
            )
            for one in due.schedules
        ]  # fmt: skip
        both = [*other.tick(tickings), *store.tick(tickings)]
        assert [one.outcome for one in both] == ["run", "run"], "each once"
        assert store.count(JobFilter()) == 2
        assert [len(store.ticks(f"every-{name}")) for name in "ab"] == [1, 1]
        moved = ScheduleSpec("every-a", "* * * * *", job=to_text(NewJob("b")))
        with pytest.raises(DeclarationError, match="schedule 'every-a'"):
            store.declare_schedules(Schedules("test", schedules=(moved,)))


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

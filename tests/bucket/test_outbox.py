"""Jobs on their way from one shard to another: each arrives, and arrives once."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from headgate.clock import Clock
from headgate.jobs import CapUse, Finish, JobFilter, NewJob, Retention
from headgate.stores.bucket import outbox
from headgate.stores.bucket.sharded import ShardedStore
from headgate.stores.protocol import (
    CapSpec,
)
from tests.bucket import server
from tests.bucket.memory import MemoryObjects
from tests.bucket.sharding import (
    Hand,
    at_once,
    done,
    opened,
    publish,
    task,
)


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
from tests.bucket.sharding import Hand, done, publish, task

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


def _followed(store: ShardedStore, hand: Hand) -> str:
    """A job of b that follows one of a; it is in the outbox of a's shard."""
    store.submit([NewJob("a")])
    next_ = NewJob("b")
    hand.ask(0, done(*hand.claim(), followups=(next_,)))
    return next_.id


def _age_notes(store: ShardedStore) -> None:
    """What has come to the second shard came long ago."""
    sql = "UPDATE inbox SET at = at - ?"
    store.shards[1]._do(lambda tx: tx.run(sql, (2 * outbox.KEPT,)).rowcount)


def test_a_copy_that_is_old_brings_nothing_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still shows what waited there long ago; by now that has come, is over and forgotten."""
    with opened(tmp_path, "x", "y") as (store, old):
        publish(store, task("a"), task("b"))
        hand = Hand(store)
        with monkeypatch.context() as patched:
            patched.setattr(store.delivery, "begin", lambda: None)
            id = _followed(store, hand)
        for shard in old.shards:
            shard._commits.refresh()
        assert store.delivery.deliver() == 1
        _age_notes(store)
        (claimed,) = hand.claim()
        assert claimed.job == id
        hand.ask(0, done(claimed, keep=False))
        store.prune(Retention(succeeded=0))
        second = _followed(store, hand)  # moved too: and what came long ago is noted no more
        assert store.job(second) is not None
        assert any(shard.outgoing() for shard in old.shards), "as far as it knows"
        old.delivery.deliver()
        assert [one.job for one in hand.claim()] == [second]


def test_what_is_brought_again_is_noted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came, and who brought it died before it took it out of the outbox. Long after that two
    bring it at once: when the one has, and more has come, the other must not."""
    with opened(tmp_path, "x", "y") as (store, other):
        publish(store, task("a"), task("b"))
        hand = Hand(store)
        with monkeypatch.context() as patched:
            patched.setattr(store.delivery, "begin", lambda: None)
            id = _followed(store, hand)
        here, there = store.shards
        jobs = here.outbox()[1]
        there.take_in(0, jobs, here.outgoing_ids(), Clock().boot())
        _age_notes(store)
        (claimed,) = hand.claim()
        assert claimed.job == id
        hand.ask(0, done(claimed, keep=False))
        store.prune(Retention(succeeded=0))
        for shard in other.shards:
            shard._commits.refresh()
        seen, left = other.shards[0].outbox()[1], other.shards[0].outgoing_ids()
        assert store.delivery.deliver() == 1
        second = _followed(store, hand)
        assert store.job(second) is not None
        other.shards[1].take_in(0, seen, left, Clock().boot())
        assert [one.job for one in hand.claim()] == [second]


def test_who_stood_still_over_bringing_a_job_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, "x") as (store,):
        publish(store, task("a"), task("b"))
        hand = Hand(store)
        with monkeypatch.context() as patched:
            patched.setattr(store.delivery, "begin", lambda: None)
            id = _followed(store, hand)
        here, there = store.shards
        long_ago = Clock().boot() - outbox.KEPT
        assert not there.take_in(0, here.outbox()[1], here.outgoing_ids(), long_ago)
        assert not there.has_now(id)
        assert store.delivery.deliver() == 1
        assert there.has_now(id)

"""Writes of which nobody heard whether they were carried out: nothing doubled, nothing lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headgate.errors import StoreError, StoreInDoubt, StoreUnavailable
from headgate.jobs import Finish, JobFilter, NewJob
from headgate.stores.bucket import patience, probe
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.s3 import S3
from headgate.stores.bucket.store import BucketStore
from headgate.stores.bucket.url import parse
from headgate.stores.protocol import Claim, Exchange, NewWorker, Passed
from headgate.turns import ClaimState
from tests.bucket.machines import Faulty, Machine, need, opened, same
from tests.bucket.proxy import Fault, Proxy, nth
from tests.bucket.server import shared


def count(machine: Machine) -> int:
    return machine.count(JobFilter(), limit=10_000)


@pytest.mark.parametrize("fault", ["cut", "dead", "late", 409, 412, 404, 500])
def test_one_write_counts_once(tmp_path: Path, fault: str | int) -> None:
    objects = Faulty()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        objects.faults = iter([fault])
        a.add(3)
        assert count(a) == 3
        same(a, b)


@pytest.mark.parametrize("second", [409, 412, 404])
@pytest.mark.parametrize("first", ["cut", "late", 500])
def test_one_write_counts_once_though_it_was_refused_later(
    tmp_path: Path, first: str | int, second: int
) -> None:
    """The refusal may be the first write's own doing, or mean that it is still under way."""
    objects = Faulty()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        objects.faults = iter([first, second, second])
        a.add(3)
        assert count(a) == 3
        same(a, b)


def test_one_write_counts_once_though_others_wrote_since(tmp_path: Path) -> None:
    objects = Faulty()
    with opened(tmp_path, objects, "a", "b") as (a, b):

        def others() -> None:
            objects.before_answer = None
            for _ in range(20):
                b.add(1)

        objects.before_answer = others
        objects.faults = iter(["cut"])
        assert len(a.add(3)) == 3
        assert count(a) == 23
        a.add(1)
        same(a, b)


def test_who_was_overtaken_before_its_write_arrived_tries_again(tmp_path: Path) -> None:
    objects = Faulty()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        objects.faults = iter(["dead"])
        original = objects.replace

        def replace(key: str, body: bytes, known: str) -> str:
            objects.replace = original  # type: ignore[method-assign]
            try:
                return original(key, body, known)
            finally:
                b.add(1)

        objects.replace = replace  # type: ignore[method-assign]
        a.add(3)
        assert count(b) == 4
        same(a, b)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("asks", [True, False], ids=["asks", "asks for nothing"])
def test_what_was_granted_in_doubt_is_found_by_the_next_round_trip(
    tmp_path: Path, applied: bool, asks: bool
) -> None:
    objects = Faulty()
    with opened(tmp_path, objects, "a") as (a,):
        a.limit("narrow", 2)
        worker = a.worker(lease=1e6)
        jobs = a.add(5, needs=need("narrow"))
        objects.faults = iter(["cut" if applied else "dead"] + ["dead"] * 100)
        with pytest.raises(StoreInDoubt):
            a.claim(worker, 10)
        objects.faults = iter(())
        if not asks:
            got = a.exchange(Exchange(worker)).claimed
            assert got == ()
        claimed = a.claim(worker, 10)
        assert [one.job for one in claimed] == jobs[:2], "the same two, or two that were free"
        assert len({one.token for one in claimed}) == 2
        assert a.group("narrow")[0].held == 2
        assert a.finish(worker, claimed) == ()
        assert [one.job for one in a.claim(worker, 10)] == jobs[2:4]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("applied", [True, False])
def test_slots_handed_on_in_doubt_are_handed_on_from_there(tmp_path: Path, applied: bool) -> None:
    """The worker goes on handing them from one job to the next meanwhile."""
    objects = Faulty()
    with opened(tmp_path, objects, "a") as (a,):
        a.limit("narrow", 1)
        worker = a.worker(lease=1e6)
        a.add(3, needs=need("narrow"))
        short = {"task": 0.01}
        claim = Claim(5, frozenset(short), ClaimState(), ahead=short, ahead_room=2)
        first, second, third = a.exchange(Exchange(worker, claim=claim)).claimed
        assert [one.reserved for one in (first, second, third)] == [False, True, True]
        ends = [Finish(one.token, "succeeded") for one in (first, second, third)]
        objects.faults = iter(["cut" if applied else "dead"] + ["dead"] * 100)
        with pytest.raises(StoreInDoubt):
            a.exchange(Exchange(worker, ends[:1], passed=[Passed(second.token, first.token, 0.0)]))
        objects.faults = iter(())
        passed = [Passed(second.token, None, 0.01), Passed(third.token, first.token, 0.0)]
        stale = a.exchange(Exchange(worker, ends[:2], passed=passed)).stale
        assert not stale & {second.token, third.token}
        (slot,) = a.group("narrow")[1]
        assert slot.token == third.token, "its code runs"
        assert not a.exchange(Exchange(worker, ends[2:])).stale
        assert a.group("narrow")[0].held == 0


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("room", [10, 1])
def test_what_was_granted_is_found_after_two_round_trips_in_doubt(
    tmp_path: Path, room: int
) -> None:
    """The second has not heard of the first either, and grants the same in vain."""
    objects = Faulty()
    with opened(tmp_path, objects, "a") as (a,):
        a.limit("narrow", 2)
        worker = a.worker(lease=1e6)
        jobs = a.add(5, needs=need("narrow")) + a.add(3)
        objects.faults = iter(["cut"] + ["dead"] * 100)
        with pytest.raises(StoreInDoubt):
            a.claim(worker, 4)
        for _ in range(2):
            objects.faults = iter(["dead"] * 100)
            with pytest.raises(StoreInDoubt):
                a.claim(worker, room)
        objects.faults = iter(())
        done: list[str] = []
        while claimed := a.claim(worker, 10):
            done += [one.job for one in claimed]
            assert a.finish(worker, claimed) == ()
        assert sorted(done) == sorted(jobs), "each is granted once, and none is stuck"


@pytest.mark.usefixtures("impatient")
def test_what_was_granted_in_doubt_and_has_no_room_any_more_is_given_back(tmp_path: Path) -> None:
    objects = Faulty()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        worker, other = a.worker(lease=1e6), b.worker("other", lease=1e6)
        jobs = a.add(5)
        objects.faults = iter(["cut"] + ["dead"] * 100)
        with pytest.raises(StoreInDoubt):
            a.claim(worker, 5)
        objects.faults = iter(())
        assert len(a.claim(worker, 2)) == 2
        b.tables()
        assert len(b.claim(other, 10)) == 3
        assert {a.job(job).attempt for job in jobs} == {1}  # type: ignore[union-attr]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("applied", [True, False])
def test_a_worker_that_registers_again_after_one_in_doubt_is_there_once(
    tmp_path: Path, applied: bool
) -> None:
    objects = Faulty()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        worker = NewWorker("w-1", "w", host="here", pid=7, tasks=("task",), lease=1e6)
        objects.faults = iter(["cut" if applied else "dead"] + ["dead"] * 100)
        with pytest.raises(StoreInDoubt):
            a.register(worker)
        objects.faults = iter(())
        a.register(worker)
        assert [one.id for one in b.workers()] == ["w-1"]
        assert len(b.events("worker_started")) == 1
        a.add(1)
        assert len(a.claim("w-1")) == 1
        with pytest.raises(
            StoreError, match=r"id 'w-1' is that of worker 'w' \(process 7 on here\)"
        ):
            b.register(replace(worker, pid=8))
        same(a, b)


@pytest.mark.usefixtures("impatient")
def test_nothing_was_stored_when_it_says_so(tmp_path: Path) -> None:
    """A server that cannot be reached has carried out nothing."""
    proxy = Proxy(shared())
    store = BucketStore(proxy.fresh(tmp_path))
    try:
        proxy.stop()
        with pytest.raises(StoreUnavailable) as told:
            store.submit([NewJob("task")])
        assert not isinstance(told.value, StoreInDoubt)
        assert "cannot be reached" in str(told.value)
        proxy.resume()
        assert store.count(JobFilter()) == 0
    finally:
        store.close()
        proxy.close()


FAULTS = (
    Fault(lose_answer=True), Fault(lose_request=True), Fault(answer=500), Fault(answer=503),
    Fault(answer=429), Fault(answer=409),
)  # fmt: skip


def test_over_the_wire(tmp_path: Path) -> None:
    proxy = Proxy(shared())
    url = proxy.fresh(tmp_path)
    store = BucketStore(url, objects=S3(parse(url), timeout=2.0))
    stored = 0
    try:
        for fault in (*FAULTS, Fault(silence=True)):
            for method in ("PUT", "GET") if not fault.silence else ("PUT",):
                proxy.rule = nth(method, 0, fault)
                store.submit([NewJob("task"), NewJob("task")])
                stored += 2
                assert store.count(JobFilter()) == stored, (method, fault)
        assert proxy.counts["answer"] == 8
        assert (proxy.counts["lose_answer"], proxy.counts["lose_request"]) == (2, 2)
        assert proxy.counts["silence"] == 1
    finally:
        store.close()
        proxy.close()


def test_the_probe_bears_a_bad_way(tmp_path: Path) -> None:
    """An answer that is lost is no sign of a server that ignores conditions."""
    proxy = Proxy(shared())
    objects = S3(parse(proxy.fresh(tmp_path)))
    try:
        for number in (0, 5):
            proxy.rule = nth("PUT", number, Fault(lose_answer=True))
            folder = tmp_path / str(number)
            folder.mkdir()
            probe.check(objects, Layout("probed"), folder, "here")
        assert proxy.counts["lose_answer"] == 2
    finally:
        objects.close()
        proxy.close()

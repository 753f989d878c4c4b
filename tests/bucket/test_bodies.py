"""Large texts are objects of their own: nobody who uses the store notices, but the ledger stays
small, and what is not needed any more goes."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.errors import IdempotencyConflict, StoreError
from headgate.jobs import Finish, JobFilter, NewJob
from headgate.stores.bucket import bodies, keeping
from headgate.stores.bucket.objects import Trouble
from headgate.stores.bucket.store import BucketStore
from headgate.stores.protocol import (
    Claim,
    Exchange,
    Exchanged,
    NewWorker,
    Output,
    OutputPiece,
    Publication,
    TaskSpec,
)
from headgate.turns import ClaimState
from tests.bucket.memory import MemoryObjects
from tests.waiting import PATIENCE

TASKS = frozenset(["task"])


class Machines:
    """Machines with copies of their own, over one bucket."""

    def __init__(self, folder: Path) -> None:
        self.objects = MemoryObjects()
        self.folder = folder
        self.open: list[BucketStore] = []

    def add(self) -> BucketStore:
        cache = self.folder / f"machine-{len(self.open)}"
        self.open.append(BucketStore(f"s3://tests/x?cache={cache}", objects=self.objects))
        return self.open[-1]

    def bodies(self) -> list[str]:
        return [key for key in self.objects.held if key.startswith("x/bodies/")]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    machines = Machines(tmp_path)
    yield machines
    for store in machines.open:
        store.close()


def text(mark: object, size: int = 20_000) -> str:
    return json.dumps({"mark": mark, "fill": "ä" * (size // 2)}, ensure_ascii=False)


def worker(store: BucketStore, id: str = "w1") -> str:
    store.register(NewWorker(id, id, pid=os.getpid(), tasks=tuple(TASKS), lease=1e6))
    return id


def claim(store: BucketStore, id: str, finishes: tuple[Finish, ...] = ()) -> Exchanged:
    return store.exchange(Exchange(id, finishes, claim=Claim(10, TASKS, ClaimState())))


def test_arguments_and_results_are_whole_wherever_they_leave_the_store(machines: Machines) -> None:
    one, two = machines.add(), machines.add()
    args, result = text("args"), json.dumps("ö" * 10_000)
    [job] = one.submit([NewJob("task", args=args)])
    assert len(machines.bodies()) == 1
    assert len(machines.objects.held["x/ledger.json"][0]) < 10_000
    me = worker(two)
    [claimed] = claim(two, me).claimed
    assert claimed.args == args
    two.exchange(Exchange(me, [Finish(claimed.token, "succeeded", result=result)]))
    third = machines.add()
    for store in (one, two, third):
        record = store.job(job.id)
        assert record is not None
        assert (record.args, record.result) == (args, result)
        shown = [
            *store.find(JobFilter()),
            *store.browse(JobFilter()).jobs,
            store.latest("task", "succeeded"),
            store.why(job.id).job,
        ]
        assert [(one.args, one.result) for one in shown if one] == [(args, result)] * 4
    again = one.retry(job.id)
    assert (again.args, again.result) == (args, None)
    assert one.relocate(job.id, priority=7).args == args
    assert one.cancel(job.id).args == args
    assert third.doctor() == []


def test_what_is_small_stays_in_its_row(machines: Machines) -> None:
    store = machines.add()
    store.submit([NewJob("task", args=json.dumps({"fill": "x" * 4000}))])
    assert machines.bodies() == []
    # It is bytes that count.
    store.submit([NewJob("task", args=json.dumps({"fill": "ä" * 2100}, ensure_ascii=False))])
    assert len(machines.bodies()) == 1


def test_a_text_that_looks_like_a_mark_is_a_text(machines: Machines) -> None:
    store = machines.add()
    fake = "@bodies/" + "0" * 64 + "-" + "0" * 12 + ".txt"
    args = json.dumps({"file": fake})
    [job] = store.submit([NewJob("task", args=args)])
    me = worker(store)
    [claimed] = claim(store, me).claimed
    assert claimed.args == args
    store.put_output([Output(claimed.token, [OutputPiece(0, "stdout", 0.0, 0, fake.encode())])])
    store.exchange(Exchange(me, [Finish(claimed.token, "succeeded", result=json.dumps(fake))]))
    record = store.job(job.id)
    assert record is not None
    assert record.result == json.dumps(fake)
    assert [one.data for one in store.output(job.id)] == [fake.encode()]
    assert store.doctor() == []


def test_large_output_of_commands_is_whole(machines: Machines) -> None:
    one, two = machines.add(), machines.add()
    [job] = one.submit([NewJob("task")])
    [claimed] = claim(one, worker(one)).claimed
    large, small = bytes(range(256)) * 250, b"\x00small\xff"
    pieces = [
        OutputPiece(0, "stdout", 0.0, 0, large),
        OutputPiece(1, "stderr", 0.0, len(large), small),
    ]
    for _ in range(2):  # told again: it is kept once
        one.put_output([Output(claimed.token, pieces)])
    assert [(r.stream, r.data) for r in two.output(job.id)] == [
        ("stdout", large),
        ("stderr", small),
    ]
    assert len(machines.objects.held["x/ledger.json"][0]) < 10_000


def test_unrouted_jobs_and_those_told_of_an_end_have_all_arguments(machines: Machines) -> None:
    store = machines.add()
    spec = TaskSpec("task", queue="default", on_aborted="told")
    store.publish(Publication("test", tasks=(spec,)))
    args = text("aborted")
    [job] = store.submit([NewJob("task", args=args)])
    store.cancel(job.id)
    [told] = store.find(JobFilter(task="told"))
    assert json.loads(told.args)["args"] == json.loads(args)
    store.submit([NewJob("other", args=args, routed=False)])
    assert [one.args for one in store.unrouted(frozenset(["other"]))] == [args]


def test_equal_arguments_are_equal_under_an_idempotency_key(machines: Machines) -> None:
    one, two = machines.add(), machines.add()
    args = {"a": 1, "fill": "x" * 9000}
    swapped = dict(reversed(args.items()))
    [first] = one.submit([NewJob("task", args=json.dumps(args), idempotency_key="k")])
    [again] = two.submit([NewJob("task", args=json.dumps(swapped), idempotency_key="k")])
    assert (again.id, again.existing) == (first.id, True)
    with pytest.raises(IdempotencyConflict):
        two.submit([NewJob("task", args=json.dumps({**args, "a": 2}), idempotency_key="k")])


def test_many_of_one_content_are_written_once_and_in_parallel_else(machines: Machines) -> None:
    store = machines.add()
    store.submit([NewJob("task", args=text("same")) for _ in range(50)])
    assert len(machines.bodies()) == 1
    store.submit([NewJob("task", args=text(n)) for n in range(20)])
    assert len(machines.bodies()) == 21
    fresh = machines.add()
    before = machines.objects.counts["read"]
    found = fresh.find(JobFilter(), limit=100)
    assert sorted(json.loads(one.args)["mark"] for one in found if "same" not in one.args) == [
        *range(20)
    ]
    fresh.find(JobFilter(), limit=100)  # from the cache
    assert machines.objects.counts["read"] - before <= 21 + 2


def test_arguments_that_cannot_be_read_now_are_told_the_next_time(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = machines.add(), machines.add()
    args = text("later")
    [job] = one.submit([NewJob("task", args=args)])
    me = worker(two)
    get = machines.objects.get

    def broken(key: str, known: str | None = None) -> object:
        if "bodies/" in key:
            raise Trouble("no")
        return get(key, known)

    monkeypatch.setattr(machines.objects, "get", broken)
    monkeypatch.setattr(bodies, "patiently", lambda request: request())
    with pytest.raises(Trouble):
        claim(two, me)
    monkeypatch.undo()
    assert [(c.job, c.args) for c in claim(two, me).claimed] == [(job.id, args)]


def test_a_body_that_somebody_deleted_is_told_and_never_made_up(machines: Machines) -> None:
    one, two = machines.add(), machines.add()
    [job] = one.submit([NewJob("task", args=text("gone"))])
    [done] = one.submit([NewJob("task", args="{}")])
    me = worker(one)
    claimed = {c.job: c for c in claim(one, me).claimed}
    finish = Finish(claimed[done.id].token, "succeeded", result=text("result"))
    back = Finish(claimed[job.id].token, "returned")
    one.exchange(Exchange(me, [finish, back]))
    for key in machines.bodies():
        machines.objects.delete(key)
    with pytest.raises(StoreError, match=f"the result of job {done.id} was in bodies/"):
        two.job(done.id)
    assert len(two.find(JobFilter())) == 2
    record = two.job(job.id)
    assert record is not None
    assert "was deleted" in json.loads(record.args)
    [granted] = claim(two, worker(two, "w2")).claimed
    with pytest.raises(json.JSONDecodeError):  # no task runs with that
        json.loads(granted.args)
    assert sorted(trouble.what for trouble in two.doctor()) == ["missing body", "missing body"]


def test_what_no_job_needs_is_deleted_and_nothing_else(machines: Machines) -> None:
    one, two = machines.add(), machines.add()
    [kept] = one.submit([NewJob("task", args=text("kept"))])
    [gone] = one.submit([NewJob("task", args=text("gone"))])
    me = worker(one)
    claimed = {c.job: c for c in claim(one, me).claimed}
    one.exchange(Exchange(me, [Finish(claimed[gone.id].token, "succeeded")]))
    with one._commits.replica.db.read() as tx:
        assert len(one._bodies.named(tx.connection)) == 2
    for table in ("jobs", "finished"):
        column = "n" if table == "jobs" else "job"
        one._do(
            lambda tx, table=table, column=column: tx.run(f"DELETE FROM {table} WHERE {column} = 2")
        )
    two._commits.refresh()
    assert two._commits.keeper.collect(older=-1.0) == 1
    assert len(machines.bodies()) == 1
    record = machines.add().job(kept.id)
    assert record is not None
    assert record.args == text("kept")


def test_content_that_is_old_is_written_anew_before_it_is_named_again(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race: one machine lists a body that nobody names, another names the same content at
    that moment, and then the first deletes what it listed."""
    one, two = machines.add(), machines.add()
    args = text("again")
    one._bodies.ahead([args])  # written, and never named
    [old] = machines.bodies()
    collector = two._commits.keeper
    listed = threading.Event()
    go_on = threading.Event()
    list_all = collector.stored

    def slowly() -> object:
        found = [dataclasses.replace(one, age=keeping.FORGOTTEN + 1) for one in list_all()]
        listed.set()
        assert go_on.wait(PATIENCE)
        return found

    monkeypatch.setattr(collector, "stored", slowly)
    thread = threading.Thread(target=collector.collect)
    thread.start()
    assert listed.wait(PATIENCE)
    # Long after it was written, as the list says.
    clock = one._bodies._clock
    monkeypatch.setattr(clock, "boot", lambda: type(clock)().boot() + keeping.FORGOTTEN + 1)
    [job] = one.submit([NewJob("task", args=args)])
    go_on.set()
    thread.join(PATIENCE)
    assert old not in machines.bodies()
    record = machines.add().job(job.id)
    assert record is not None
    assert record.args == args


def test_who_stood_still_over_naming_a_body_decides_again(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other race: a machine has chosen what to name, and stands still for hours right before
    its write. Meanwhile nobody writes, but somebody cleans up."""
    one, two = machines.add(), machines.add()
    args = text("still")
    one._bodies.ahead([args])
    clock = one._bodies._clock
    replace, stood = machines.objects.replace, threading.Event()

    def stand_still(key: str, body: bytes, known: str) -> str:
        if not stood.is_set():
            stood.set()
            late = type(clock)().boot() + keeping.FORGOTTEN + 1
            monkeypatch.setattr(clock, "boot", lambda: late)
            assert two._commits.keeper.collect(older=-1.0) == 1
        return replace(key, body, known)

    monkeypatch.setattr(machines.objects, "replace", stand_still)
    [job] = one.submit([NewJob("task", args=args)])
    assert stood.is_set()
    record = machines.add().job(job.id)
    assert record is not None
    assert record.args == args


def test_who_cleans_up_leaves_what_is_young_and_writes_nothing_for_nothing(
    machines: Machines,
) -> None:
    store = machines.add()
    store.submit([NewJob("task", args=text("kept"))])
    keeper, objects = store._commits.keeper, machines.objects
    before = objects.counts["write"]
    assert keeper.collect(older=-1.0) == 0
    assert objects.counts["write"] == before
    objects.create("x/runs/000000000001-000000000002-abc.json", b"{}")
    objects.create("x/probes/abc.json", b"{}")
    assert keeper.collect() == 0
    assert keeper.collect(older=-1.0) == 2

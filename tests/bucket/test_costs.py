"""What a bucket costs is counted and told; its format is known."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headgate.errors import StoreVersion
from headgate.jobs import Finish, JobFilter, NewJob
from headgate.stores.bucket import costs, formats, ledger, traffic
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.store import BucketStore
from headgate.stores.protocol import Claim, Exchange, NewWorker
from headgate.turns import ClaimState
from tests.bucket.memory import MemoryObjects

ROOT = Path(__file__).parents[2]
KINDS = ("read", "write", "list", "delete")


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def store(tmp_path: Path, objects: MemoryObjects) -> Iterator[BucketStore]:
    store = BucketStore(f"s3://tests/x?cache={tmp_path}&poll=4", objects=objects)
    yield store
    store.close()


def work_off(store: BucketStore, jobs: int) -> None:
    store.register(NewWorker("w", "w", tasks=("task",), lease=1e6))
    store.submit([NewJob("task") for _ in range(jobs)])
    state, left = ClaimState(), jobs
    finishes: list[Finish] = []
    while left or finishes:
        claim = Claim(50, frozenset(["task"]), state)
        got = store.exchange(Exchange("w", finishes, claim=claim))
        finishes = [Finish(one.token, "succeeded") for one in got.claimed]
        left -= len(finishes)


def test_requests_and_jobs_are_counted_and_priced(
    store: BucketStore, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.costs().million is None
    monkeypatch.setattr(traffic, "EVERY", 0.0)
    work_off(store, 200)
    assert store.renew("w")
    sent = objects.requests()
    told = store.costs()
    assert (told.days, told.jobs) == (1, 200)
    # All but the last write, which told of the others.
    assert told.requests == {kind: sent.get(kind, 0) - (kind == "write") for kind in KINDS}
    assert told.million is not None
    assert told.million.requests["write"] == told.requests["write"] / 200 * 1e6
    dollars = sum(told.million.requests[k] / 1000 * costs.PER_THOUSAND[k] for k in KINDS)
    assert told.million.dollars == pytest.approx(dollars)
    assert told.idle.requests["read"] == 30 * 86400 / 4
    record = told.ledger
    assert record.format == ledger.FORMAT
    assert record.bytes == len(objects.held["x/ledger.json"][0])
    assert record.entries == record.seq == json.loads(objects.held["x/ledger.json"][0])["seq"]


def test_what_was_undone_is_not_counted(
    store: BucketStore, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = objects.replace

    def fail(key: str, body: bytes, known: str) -> str:
        raise RuntimeError("no")

    monkeypatch.setattr(objects, "replace", fail)
    with pytest.raises(RuntimeError):
        store.submit([NewJob("task")])
    monkeypatch.setattr(objects, "replace", replace)
    store.submit([NewJob("task")])
    before = objects.requests()
    assert store.costs().requests["write"] == before["write"] - 1


def test_objects_that_nobody_names_are_told(store: BucketStore, objects: MemoryObjects) -> None:
    store.submit([NewJob("task", args=json.dumps({"x": "y" * 5000}))])
    objects.create("x/runs/000000000001-000000000002-abc.json", b"{}")
    told = store.costs()
    assert told.objects == {"runs": 1, "checkpoints": 0, "parts": 0, "bodies": 1, "probes": 0}
    assert told.unnamed == 1


def test_a_newer_format_is_refused_an_older_migrated_step_by_step(
    store: BucketStore, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout("x")
    assert formats.upgrade(objects, Layout("elsewhere"), "s3://tests/elsewhere") == 0
    assert formats.upgrade(objects, layout, "s3://tests/x") == ledger.FORMAT
    body, etag, _ = objects.held[layout.ledger]
    newer = {**msgspec.json.decode(body), "format": ledger.FORMAT + 1}
    objects.replace(layout.ledger, msgspec.json.encode(newer), etag)
    with pytest.raises(StoreVersion, match="newer version; upgrade this program"):
        store.costs()
    with pytest.raises(StoreVersion, match="upgrade this program"):
        formats.upgrade(objects, layout, "s3://tests/x")
    # As a later version of this program would find it.
    later = ledger.FORMAT + 2
    for module in (ledger, formats):
        monkeypatch.setattr(module, "FORMAT", later)
    with pytest.raises(StoreVersion, match="older version; run headgate migrate"):
        store.costs()
    with pytest.raises(StoreVersion, match="older version"):
        formats.upgrade(objects, layout, "s3://tests/x")
    last = later - 1
    monkeypatch.setitem(formats.STEPS, last, lambda o, at, found: {**found, "new": True})
    assert formats.upgrade(objects, layout, "s3://tests/x") == last
    after = msgspec.json.decode(objects.held[layout.ledger][0])
    assert (after["format"], after["new"]) == (later, True)


def test_the_ledger_in_the_documentation_is_one(tmp_path: Path, objects: MemoryObjects) -> None:
    page = (ROOT / "docs" / "bucket.md").read_text(encoding="utf-8")
    [example] = re.findall(r'^```json\n(\{"format": 1, "id".*?)^```$', page, re.M | re.S)
    objects.create("shop/ledger.json", example.encode())
    mark = re.search(r"bodies/[^.]*\.txt", example)
    assert mark is not None
    objects.create(f"shop/{mark[0]}", b'{"rows": "many"}')
    store = BucketStore(f"s3://acme-jobs/shop?cache={tmp_path}", objects=objects)
    try:
        found = {job.task: job for job in store.find(JobFilter())}
        assert found["charge"].state == "running"
        assert found["charge"].worker == "web-1"
        assert found["report"].args == '{"rows": "many"}'
        assert [slot.holder for slot in store.group("tenant/acme")[1]] == [found["charge"].id]
        # Its lease ended long ago; all else is sound.
        assert {trouble.what for trouble in store.doctor()} <= {"dead-workers"}
    finally:
        store.close()

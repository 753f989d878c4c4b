"""Machines whose clocks are wrong, or are set, agree on when a lease ends."""

from __future__ import annotations

import email.utils
import time
import uuid
from pathlib import Path

import pytest

from headgate.stores.bucket import clock
from headgate.stores.bucket.s3 import S3
from headgate.stores.bucket.store import BucketStore
from headgate.stores.bucket.url import parse
from headgate.stores.protocol import NewWorker
from tests.bucket.server import shared


def test_a_clock_that_is_set_ends_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BucketStore(shared().fresh(tmp_path))
    store.register(NewWorker("w", "w", pid=1, lease=60.0))
    before = store.now()
    real = time.time
    for jump in (7200.0, -7200.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
        assert abs(store.now() - before) < 3600
        store.sweep()
        assert [worker.state for worker in store.workers()] == ["alive"]
        assert store.renew("w")
    monkeypatch.undo()
    store.unregister("w")
    store.close()


@pytest.mark.parametrize("wrong", [3600.0, -3600.0])
def test_a_wrong_clock_follows_the_server_from_the_first_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    """Though that is a refusal, or tells that nothing changed."""
    monkeypatch.setattr(clock, "_began", clock._began + wrong)
    objects = S3(parse(shared().fresh(tmp_path)))
    assert objects.get("nothing") is None
    assert abs(clock.steady() + objects.offset() - time.time()) < 60
    key = uuid.uuid4().hex
    etag = objects.create(key, b"body")
    other = S3(parse(shared().fresh(tmp_path)))
    other._address = objects._address
    other.get(key, etag)
    assert abs(clock.steady() + other.offset() - time.time()) < 60
    for one in (objects, other):
        one.close()


def test_the_bounds_narrow_and_begin_anew_when_the_server_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = S3(parse(shared().fresh(tmp_path)))

    def see(ahead: float) -> None:
        now = clock.steady()
        header = email.utils.formatdate(int(now + ahead), usegmt=True)
        objects._see_clock({"ResponseMetadata": {"HTTPHeaders": {"date": header}}}, now)

    see(0.0)
    assert abs(objects.offset()) <= 1.0
    for _ in range(3):
        see(500.0)
    assert 498 < objects.offset() < 502
    see(0.0)
    assert abs(objects.offset()) <= 1.0
    objects._see_clock({"ResponseMetadata": {"HTTPHeaders": {"date": "no date"}}}, 0.0)
    objects._see_clock({}, 0.0)
    assert abs(objects.offset()) <= 1.0

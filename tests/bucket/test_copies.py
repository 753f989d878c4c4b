"""This machine's copy holds nothing that the bucket does not: whatever becomes of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headgate.errors import StoreError, StoreUnavailable, StoreVersion
from headgate.jobs import JobFilter, NewJob, Retention
from headgate.stores.bucket import keeping
from headgate.stores.bucket.store import BucketStore
from tests.bucket.machines import LEDGER, Machine, opened, same
from tests.bucket.memory import MemoryObjects
from tests.bucket.server import shared


def test_one_that_was_deleted_is_made_anew(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        a.add(5)
        a.close()
        shutil.rmtree(a.copy)
        again = Machine(tmp_path, objects, "a")
        again.add(1)
        same(again, b)
        again.close()


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "what SQLite keeps beside it"])
def test_one_that_is_deleted_in_use_is_made_anew(tmp_path: Path, left: str) -> None:
    """By whichever of its processes misses it; `twin` is another of them."""
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a", "a", "b") as (a, twin, b):
        worker = a.worker(lease=1e6)
        a.add(5)
        running = a.claim(worker, 2)
        for n, ask in enumerate((lambda: twin.add(1), lambda: a.count(JobFilter()), a.sweep)):
            assert twin.count(JobFilter()) == 5 + (n > 0)
            if left == "nothing":
                shutil.rmtree(a.copy)
            for file in a.copy.glob("replica.db" if left.startswith("what") else "*"):
                file.unlink()
            ask()
            same(a, twin, b)
        assert a.finish(worker, running) == ()
        assert twin.count(JobFilter(states=frozenset(("succeeded",)))) == 2
        same(a, twin, b)


HOLDER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN")
db.execute("SELECT count(*) FROM jobs").fetchone()
print("held", flush=True)
sys.stdin.read()
"""


def test_what_another_process_has_open_of_a_deleted_copy_is_no_part_of_the_new_one(
    tmp_path: Path,
) -> None:
    """It has the files beside it open, and goes by what stands there until it is done."""
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        a.add(50)
        command = [sys.executable, "-c", HOLDER, str(a.copy / "replica.db")]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            (a.copy / "replica.db").unlink()
            for n in range(5):
                a.add(20)
                assert a.count(JobFilter()) == 70 + 20 * n
            same(a, b)
            with a._replica.db.read() as tx:
                assert tx.value("PRAGMA integrity_check") == "ok"
            other.communicate("")
        same(a, b)


def test_a_look_that_may_be_old_misses_a_deleted_copy_too(tmp_path: Path) -> None:
    with opened(tmp_path, MemoryObjects(), "a") as (a,):
        (id,) = a.add(1)
        shutil.rmtree(a.copy)
        with a._commits.glancing(1e9):
            assert a.job(id) is not None, "as it is in the bucket, not as it is in an empty copy"


def test_one_that_cannot_be_made_anew_says_what_to_do(tmp_path: Path) -> None:
    with opened(tmp_path, MemoryObjects(), "a") as (a,):
        a.add(1)
        shutil.rmtree(a.copy)
        a.copy.touch()
        with pytest.raises(
            StoreUnavailable, match=r"deleted .* make it a folder that you may write"
        ):
            a.count(JobFilter())
        a.copy.unlink()
        assert a.count(JobFilter()) == 1


def test_numbers_of_events_are_given_once_whatever_was_pruned(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a") as (a,):
        for n in range(3):
            a.pause_queue(f"q{n}", True)
        given = [event.seq for event in a.events(limit=10)]
        a.prune(Retention(events=-1.0))
        left = [event.seq for event in a.events(limit=10)]
        assert left == given[:1], "all but the last, by which others know where to go on"
        with opened(tmp_path, objects, "b") as (b,):
            b.pause_queue("q9", True)
            assert b.events(limit=1)[0].seq > given[0]
            a.pause_queue("q10", True)
            numbers = [event.seq for event in a.events(limit=10)]
            assert len(set(numbers)) == len(numbers) == 3
            same(a, b)


def test_one_that_is_damaged_says_what_to_do(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a") as (a,):
        a.add(5)
    for file in a.copy.glob("replica.db*"):
        file.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreUnavailable, match=r"delete the folder .* made anew"):
        Machine(tmp_path, objects, "a")
    shutil.rmtree(a.copy)
    with opened(tmp_path, objects, "a") as (again,):
        assert again.count(JobFilter()) == 5


def test_one_of_another_store_in_the_same_place_is_made_anew(tmp_path: Path) -> None:
    old, new = MemoryObjects(), MemoryObjects()
    with opened(tmp_path, old, "a") as (a,):
        a.add(50)
    with opened(tmp_path, new, "b") as (b,):
        b.add(3)
        with opened(tmp_path, new, "a") as (again,):
            assert again.count(JobFilter()) == 3
            same(again, b)


@pytest.mark.parametrize("went_on", [0, 2, 4, 9], ids=lambda n: f"{n} entries since")
def test_a_ledger_that_is_set_back_is_what_counts(tmp_path: Path, went_on: int) -> None:
    """Somebody restores an older version of the bucket; others may have gone on from there."""
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        a.add(1)
        before = dict(objects.held)
        for _ in range(4):
            a.add(2)
        b.close()
        shutil.rmtree(b.copy)
        objects.held = {
            key: (body, f'"back-{etag}"', at) for key, (body, etag, at) in before.items()
        }
        with opened(tmp_path, objects, "b") as (other,):
            for _ in range(went_on):
                other.add(1)
            assert a.count(JobFilter()) == 1 + went_on
            a.add(1)
            same(a, other)


def test_one_behind_a_checkpoint_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "SEAL_ENTRIES", 4)
    monkeypatch.setattr(keeping, "CHECKPOINT_BYTES", 2000)
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        worker = b.worker(lease=1e6)
        b.add(3)
        b.claim(worker)
        for _ in range(30):
            a.add(2)
            a.kept()
        checkpoint = a.ledger().checkpoint
        assert checkpoint is not None
        assert checkpoint.seq > 10
        a._commits.keeper.collect(older=-1.0)
        b.finish(worker, b.claim(worker, 1))
        same(a, b)


def test_a_ledger_that_is_deleted_in_use_is_told_and_not_made_anew(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a") as (a,):
        a.add(1)
        del objects.held[LEDGER]
        with pytest.raises(StoreUnavailable, match="deleted"):
            a.add(1)
        with pytest.raises(StoreUnavailable, match="deleted while it was in use") as told:
            a.count(JobFilter())
        assert str(a.copy) in str(told.value)
        assert LEDGER not in objects.held
        a.close()
        with pytest.raises(StoreUnavailable, match="deleted while it was in use"):
            Machine(tmp_path, objects, "a")
        shutil.rmtree(a.copy)
        with opened(tmp_path, objects, "a") as (again,):
            assert again.count(JobFilter()) == 0


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a") as (a,):
        body = objects.held[LEDGER][0].replace(b'"format":1', b'"format":2', 1)
        body = body.replace(b'"format": 1', b'"format": 2', 1)
        objects.held[LEDGER] = (body, '"new"', time.time())
        for ask in (lambda: a.add(1), lambda: a.count(JobFilter())):
            with pytest.raises(StoreVersion, match="upgrade this program"):
                ask()
    objects.held[LEDGER] = (b"<html>", '"html"', time.time())
    with pytest.raises(StoreVersion, match="not a ledger"):
        Machine(tmp_path, objects, "b")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for cache in (file, Path("/proc/none")):
        with pytest.raises(StoreUnavailable, match=r"cache=/a/folder"):
            BucketStore(f"s3://tests/all?cache={cache}", objects=MemoryObjects())


def test_a_copy_that_cannot_be_written_any_more_undoes_nothing(tmp_path: Path) -> None:
    """What the ledger holds has happened, though this machine cannot note it."""
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        a.add(1)
        writer = a._replica._writer
        assert writer is not None
        original = a._replica.set_head

        def fail(connection: object, head: object) -> None:
            a._replica.set_head = original  # type: ignore[method-assign]
            writer.execute("SELECT no_such_column FROM counters")

        a._replica.set_head = fail  # type: ignore[method-assign]
        assert len(a.add(2)) == 2
        assert b.count(JobFilter()) == 3
        a.add(1)
        same(a, b)


def test_a_fork_goes_on_by_itself(tmp_path: Path) -> None:
    """With threads of the parent in the middle of a write."""
    url = shared().fresh(tmp_path)
    store = BucketStore(url)
    store.submit([NewJob("task")])
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)  # none outlives the test, whatever it waits for
            try:
                store.submit([NewJob("task")])
                os._exit(0 if store.count(JobFilter()) >= 2 else 3)
            except BaseException:
                os._exit(4)
        children.append(pid)
        store.submit([NewJob("task")])
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    assert store.count(JobFilter()) == 7
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.count(JobFilter())

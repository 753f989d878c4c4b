"""A fork beside our own threads: the child finds nothing that they hold."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from headgate.stores.bucket import keeping
from tests.bucket.machines import opened
from tests.bucket.memory import MemoryObjects
from tests.face.test_fork import in_child
from tests.waiting import PATIENCE

FORKS = 60


def use_sqlite() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE t (a TEXT)")
        db.executemany("INSERT INTO t VALUES (?)", [("x" * 1000,)] * 50)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_leaves_alone_what_a_thread_of_its_parent_has_open(tmp_path: Path) -> None:
    """Though the thread's own things are deleted in the child, where it is in the middle of a
    statement for ever."""
    with opened(tmp_path, MemoryObjects(), "a") as (a,):
        a.add(500)
        ended, begun = threading.Event(), threading.Event()

        def read() -> None:
            while not ended.is_set():
                with a._replica.db.read() as tx:
                    begun.set()
                    tx.rows("SELECT a.id FROM jobs a JOIN jobs b ON a.n < b.n WHERE b.n % 2")

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(PATIENCE)
        try:
            for _ in range(FORKS):
                assert in_child(lambda: None) == 0
        finally:
            ended.set()
            reader.join()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_is_forked_amid_gathering_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that gathers old entries is within SQLite most of the time here."""
    with opened(tmp_path, MemoryObjects(), "a") as (a,):
        a.add(500)
        keeper, ended, begun = a._commits.keeper, threading.Event(), threading.Event()
        make = keeper._make_checkpoint

        def gather() -> None:
            while not ended.is_set():
                keeper._checkpoint = None
                make()
                begun.set()

        monkeypatch.setattr(keeping, "_outgrown", lambda head: True)
        monkeypatch.setattr(keeper, "_make_checkpoint", gather)
        a.add(1)
        assert begun.wait(PATIENCE)
        try:
            for _ in range(FORKS):
                assert in_child(use_sqlite) == 0
        finally:
            ended.set()
            a.kept()

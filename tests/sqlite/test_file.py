"""What may happen to the file: nothing that a submit has returned is lost, every refusal is a
clear error, and what was committed never looks refused."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import StoreError, StoreUnavailable, StoreVersion
from headgate.jobs import JobFilter, NewJob
from headgate.stores import open_store

PRELUDE = """
import json, os, resource, signal, sys
from headgate.turns import ClaimState
from headgate.errors import StoreError
from headgate.jobs import JobFilter, NewJob
from headgate.stores import open_store
from headgate.stores.protocol import Claim, Exchange, NewWorker
from tests.sqlite.powerless import obey_permissions
url = sys.argv[1]
def say(what):
    print(json.dumps(what), flush=True)
def refusal(call):
    try:
        call()
    except StoreError as error:
        return [type(error).__name__, str(error)]
"""


def start(code: str, url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + code, url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def run(code: str, url: str) -> list[object]:
    """The lines that a process of its own says."""
    process = start(code, url)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return [json.loads(line) for line in said.splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


def test_processes_that_create_it_at_once_all_find_it_whole(url: str) -> None:
    code = """
sys.stdin.read()
store = open_store(url)
store.submit([NewJob("task")])
store.close()
"""
    command = [sys.executable, "-c", PRELUDE + code, url]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(6)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(timeout=60) for process in processes] == [0] * 6
    store = open_store(url)
    assert store.count(JobFilter()) == 6
    store.close()


def test_a_killed_process_loses_nothing_that_a_submit_has_returned(url: str) -> None:
    """Killed in the middle of whatever it does, its log left behind."""
    code = """
store = open_store(url)
worker = store.register(NewWorker("w", "w"))
state = ClaimState()
while True:
    say([s.id for s in store.submit([NewJob("task") for _ in range(20)])])
    store.exchange(Exchange("w", claim=Claim(5, frozenset(["task"]), state)))
"""
    for _ in range(3):
        process = start(code.replace('"w"', f'"w{_}"'), url)
        assert process.stdout is not None
        told = [json.loads(process.stdout.readline()) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        told += [json.loads(line) for line in process.stdout if line.endswith("]\n")]
        process.wait(timeout=60)
        process.stdout.close()
        store = open_store(url)
        assert all(store.job(id) is not None for ids in told for id in ids)
        store.sweep()
        assert store.count(JobFilter(states=frozenset(["running"]))) == 0
        assert store.doctor() == []
        store.close()


def deleted(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    other = path.with_name("other.db")
    open_store(f"sqlite:///{other}").close()
    other.replace(path)


@pytest.mark.parametrize("harm", [deleted, replaced])
def test_nothing_is_stored_in_a_file_that_is_gone(
    path: Path, url: str, harm: Callable[[Path], None]
) -> None:
    """Its connections would go on working, on a file that nobody else will ever see."""
    store = open_store(url)
    store.submit([NewJob("task")])
    kept = path.with_name("kept")
    kept.hardlink_to(path)
    harm(path)
    refused: list[Exception] = []

    def submit() -> None:
        try:
            store.submit([NewJob("task")])
        except StoreUnavailable as error:
            refused.append(error)

    submit()
    thread = threading.Thread(target=submit)  # with a connection of its own
    thread.start()
    thread.join()
    assert [harm.__name__ in str(error) for error in refused] == [True, True]
    assert path.exists() == (harm is replaced), "no empty file takes its place"
    kept.replace(path)
    store.submit([NewJob("task")])
    assert store.count(JobFilter()) == 2
    store.close()


def test_what_is_no_store_of_ours_is_refused(path: Path, url: str) -> None:
    path.write_bytes(b"this is a text, and a long one. " * 200)
    with pytest.raises(StoreUnavailable, match="not a usable SQLite file"):
        open_store(url)
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (n INTEGER)")
    other.close()
    with pytest.raises(StoreVersion, match="tables of another program"):
        open_store(url)


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(path: Path, url: str) -> None:
    open_store(url).close()
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    before = path.read_bytes()
    with pytest.raises(StoreVersion, match="newer version; upgrade"):
        open_store(url)
    assert path.read_bytes() == before


def test_a_read_only_file_is_a_clear_error(path: Path, url: str) -> None:
    store = open_store(url)
    store.submit([NewJob("task")])
    store.close()
    path.chmod(0o444)
    code = """
obey_permissions()
say(refusal(lambda: open_store(url).submit([NewJob("task")])))
"""
    (refused,) = run(code, url)
    path.chmod(0o644)
    assert isinstance(refused, list)
    assert refused[0] == "StoreUnavailable"
    assert "check the permissions" in refused[1]


def test_a_full_disk_refuses_and_loses_nothing(url: str) -> None:
    code = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_store(url)
stored = []
def fill():
    while True:
        stored.extend(store.submit([NewJob("task", json.dumps("x" * 5000)) for _ in range(5)]))
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
say(refusal(fill))
say(refusal(lambda: store.submit([NewJob("task", json.dumps("x" * 500_000))])))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
stored.extend(store.submit([NewJob("task")]))
say([len(stored), store.count(JobFilter()), len(store.doctor())])
"""
    first, second, (stored, found, troubles) = run(code, url)  # type: ignore[misc]
    assert first[0] == second[0] == "StoreUnavailable"  # type: ignore[index]
    assert stored == found > 10
    assert troubles == 0


def test_a_claim_that_is_committed_never_looks_refused(url: str) -> None:
    """The lock of a dead worker cannot be deleted, the bell cannot be touched: that comes after
    the commit, and jobs whose claim looked refused would run nowhere."""
    code = """
store = open_store(url)
dead = store.register(NewWorker("dead", "dead"))
store.register(NewWorker("live", "live"))
store.submit([NewJob("task")])
claim = Claim(5, frozenset(["task"]), ClaimState())
store.exchange(Exchange("dead", claim=claim))
os.close(dead.fds[0])
folder = url.removeprefix("sqlite:///") + ".run"
os.unlink(folder + "/work")
os.chmod(folder, 0o555)
obey_permissions()
say([claimed.attempt for claimed in store.exchange(Exchange("live", claim=claim)).claimed])
os.chmod(folder, 0o755)
"""
    assert run(code, url) == [[2]]


def test_a_closed_store_says_so(url: str) -> None:
    store = open_store(url)
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.submit([NewJob("task")])


OPEN_AND_CLOSE = """
import sys
from headgate.jobs import NewJob
from headgate.stores import open_store

for _ in range(15):
    store = open_store(sys.argv[1])
    store.submit([NewJob("task")])
    store.queues()
    store.close()
"""


def test_opening_while_others_make_and_close_the_file(tmp_path: Path) -> None:
    """The last to close a file holds it alone for a moment: who opens it then waits."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    command = [sys.executable, "-c", OPEN_AND_CLOSE, url]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, errors


def test_what_a_submit_returned_is_on_the_disk(url: str) -> None:
    """A crash of the machine takes what only its memory held: so a commit waits for the disk,
    unless the url says that it need not."""
    for option, waits in (("", 2), ("?synchronous=full", 2), ("?synchronous=normal", 1)):
        store: Any = open_store(url + option)
        assert store._db.connection().execute("PRAGMA synchronous").fetchone()[0] == waits
        assert store._db.connection().execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        store.close()

"""A place to run real workers in: a fresh store, the processes, and the check at the end."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headgate import kernel
from headgate.jobs import JobRecord
from tests.stores import store_url
from tests.waiting import PATIENCE, wait_until

S = TypeVar("S", bound="Site")
MARK = "HEADGATE_TEST_SITE"
REPO = Path(__file__).parents[2]


class Tree:
    """One running `headgate worker`."""

    def __init__(self, site: Site, arguments: tuple[str, ...], env: dict[str, str]) -> None:
        self.log = site.folder / f"worker-{uuid.uuid4().hex[:6]}.log"
        with self.log.open("wb") as out:
            self.guard = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=REPO,
                env={**os.environ, **env},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _below(self, pid: int, module: str) -> list[int]:
        found = []
        for process in kernel.below(pid):
            try:
                command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            except OSError:
                continue
            if module.encode() in command.split(b"\0"):
                found.append(process.pid)
        return found

    def keeper(self) -> int:
        modules = ("headgate.worker.keeper", "tests.crash.leased", "tests.crash.dying")
        return wait_until(
            lambda: [pid for module in modules for pid in self._below(self.guard.pid, module)]
        )[0]

    def processes(self, count: int = 1) -> list[int]:
        def found() -> list[int]:
            pids = self._below(self.guard.pid, "headgate.worker.process")
            return sorted(pids) if len(pids) == count else []

        return wait_until(found)

    def signal(self, number: int) -> None:
        self.guard.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        try:
            return self.guard.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.output()}") from None

    def stop(self) -> int:
        if self.guard.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait()

    def output(self) -> str:
        return self.log.read_text()


class Site:
    """The store of one test, its trail, and every worker started in it."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.url = url or f"sqlite:///{folder}/jobs.db"
        self.trees: list[Tree] = []
        self.env = {
            "HEADGATE_URL": self.url,
            "TRAIL": str(folder / "trail"),
            MARK: self.mark,
        }

    @property
    def app(self) -> Any:
        from tests.worker import sample

        return sample.app

    def start(self, *arguments: str, target: str = "tests.worker.sample:app", **env: str) -> Tree:
        return self.start_module("headgate", "worker", target, *arguments, **env)

    def start_module(self, *arguments: str, **env: str) -> Tree:
        tree = Tree(self, arguments, {**self.env, **env})
        self.trees.append(tree)
        return tree

    def ready(self, count: int = 1) -> None:
        """Until so many workers have passed their start."""
        wait_until(lambda: len(self.events("worker-start")) >= count, why="workers ready")

    def events(self, event: str | None = None, **fields: object) -> list[dict[str, Any]]:
        from tests.worker import sample

        return [
            e
            for e in sample.events()
            if (event is None or e["event"] == event)
            and all(e.get(name) == value for name, value in fields.items())
        ]

    def wait_for(self, event: str, count: int = 1, seconds: float = PATIENCE, **fields: Any) -> Any:
        def found() -> Any:
            seen = self.events(event, **fields)
            return seen if len(seen) >= count else None

        return wait_until(found, seconds, why=f"{count} × {event} {fields}")

    def go(self, name: str = "go") -> None:
        (self.folder / name).touch()

    def job(self, id: str) -> JobRecord:
        return self.app.get_job(id)

    def until_done(self, id: str, seconds: float = PATIENCE) -> JobRecord:
        return wait_until(
            lambda: record if (record := self.job(id)).done else None, seconds, f"end of {id}"
        )

    def freeze(self, pids: list[int]) -> None:
        """SIGSTOP, but not in the middle of a write: whoever is frozen there holds up every
        other writer of the file, which is SQLite's nature and not what is tested."""
        while True:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            if not self.url.startswith("sqlite:"):
                return
            with closing(sqlite3.connect(self.folder / "jobs.db", timeout=0.2)) as db:
                try:
                    db.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    self.thaw(pids)
                else:
                    db.rollback()
                    return

    def thaw(self, pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    # --- nothing is left behind ----------------------------------------------------------------

    def processes(self) -> list[kernel.Process]:
        return [
            process
            for process in kernel.processes()
            if process.state != "Z"
            and process.pid != os.getpid()
            and kernel.environment(process.pid).get(MARK) == self.mark
        ]

    def close(self) -> None:
        for tree in self.trees:
            if tree.guard.poll() is None:
                tree.signal(signal.SIGKILL)
                tree.guard.wait()
        try:
            wait_until(lambda: not self.processes(), why="all processes gone")
        finally:
            kernel.kill_until_none(self.processes)  # a failed test must not disturb the next
        store = self.app.store
        store.sweep()
        assert store.workers() == []
        held = [group for group in store.groups() if store.group(group)[1]]
        assert held == [], f"slots left: {held}"
        locks = list(self.folder.glob("jobs.db.run/*.lock"))
        assert locks == [], f"lock files left: {locks}"

    def show_logs(self) -> str:
        return "\n".join(re.sub(r"^", "  | ", tree.output(), flags=re.M) for tree in self.trees)


@pytest.fixture
def site(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    """A fresh site on SQLite, or on the store that the test is parametrised with."""
    url = store_url(getattr(request, "param", "sqlite"), tmp_path)
    with opened(Site(tmp_path, url), monkeypatch) as place:
        yield place


@contextmanager
def opened(place: S, monkeypatch: pytest.MonkeyPatch) -> Iterator[S]:
    """After the test no process, lock file or slot of it may be left."""
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    _anew(place.app)
    try:
        yield place
    finally:
        print(place.show_logs())
        try:
            place.close()
        finally:
            _anew(place.app)


def _anew(app: Any) -> None:
    """The next that asks the app for its store gets the one of the environment then."""
    app.close()
    app.__dict__.pop("config", None)

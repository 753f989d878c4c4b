"""Real worker processes on a real file, judged by the checker from the jobs' own log."""

from __future__ import annotations

import importlib
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from headgate.app import App
from headgate.calls import Call
from headgate.checker import SLACK, Change, Job, Kill, Report, check
from headgate.execlog import now
from headgate.jobs import JobFilter, State
from headgate.stores.protocol import LimitChange, Store
from headgate.stores.protocol.claims import AHEAD
from tests.stores import on_both, store_url
from tests.waiting import PATIENCE, wait_until

from . import scene

ROOT = Path(__file__).parents[2]
SCENE = "tests.exactness.scene:app"
ENDED: frozenset[State] = frozenset(("succeeded", "failed", "cancelled"))


@dataclass
class Fleet:
    """Workers, what was submitted to them, what was changed and killed meanwhile."""

    folder: Path
    app: App
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return self.app.store

    @property
    def log(self) -> Path:
        return self.folder / "execution.log"

    def start(
        self,
        *options: str,
        scene: str = SCENE,
        url: str | None = None,
        output: Path | None = None,
        **more: str,
    ) -> subprocess.Popen[bytes]:
        """`output`: the file for what it says, instead of that of this process."""
        env = {
            **os.environ,
            "HEADGATE_URL": url or self.app.url,
            "HEADGATE_TEST_LOG": str(self.log),
            **more,
        }
        command = [sys.executable, "-m", "headgate", "worker", scene, *options]
        known = {worker.id for worker in self.store.workers()}
        wanted = int(options[options.index("--processes") + 1]) if "--processes" in options else 1
        with output.open("wb") if output else nullcontext() as out:
            process = subprocess.Popen(
                command, cwd=ROOT, env=env, start_new_session=True, stdout=out, stderr=out
            )
        self.processes.append(process)
        wait_until(
            lambda: len({w.id for w in self.store.workers()} - known) >= wanted,
            why="the workers are there",
        )
        return process

    def submit(
        self,
        calls: Sequence[Call],
        groups: Sequence[Mapping[str, int]],
        one_of: Sequence[Sequence[str]] = (),
        turns: Sequence[str] | None = None,
        lost: int = 3,
    ) -> list[str]:
        """Submit, and note for the checker what each job needs, and how many of its attempts may
        be lost with their workers."""
        ids: list[str] = []
        for begin in range(0, len(calls), 500):
            handles = self.app.submit_many(calls[begin : begin + 500])
            submitted = now()
            for n, handle in enumerate(handles, begin):
                self.jobs.append(
                    Job(
                        handle.id,
                        submitted=submitted,
                        groups=groups[n],
                        one_of=one_of if not groups[n] else [],
                        turn=turns[n] if turns else "",
                        lost=lost,
                    )
                )
                ids.append(handle.id)
        return ids

    def set_limit(self, group: str, value: int | None, before: int | None) -> None:
        """A raise is noted before it is asked for, a lowering after it is granted."""
        change = LimitChange(group, value, set_value=True, by="test", reason="test")
        raised = value is None or (before is not None and value > before)
        if raised:
            self.changes.append(Change(now(), group, value))
        self.store.change_limit(change)
        if not raised:
            self.changes.append(Change(now(), group, value))

    @contextmanager
    def fed(self, few: int, feed: Callable[[], None]) -> Iterator[None]:
        """Call `feed` whenever fewer jobs than that wait or run."""
        stop = threading.Event()

        def hungry() -> bool:
            return stop.is_set() or len(self.jobs) - self.done() < few

        def run() -> None:
            while wait_until(hungry, math.inf) and not stop.is_set():
                feed()

        with ThreadPoolExecutor(1) as threads:
            feeding = threads.submit(run)
            try:
                yield
            finally:
                stop.set()
            feeding.result()

    def done(self) -> int:
        return self.store.count(JobFilter(states=ENDED), limit=1_000_000)

    def wait_done(self, seconds: float = 2 * PATIENCE) -> None:
        wait_until(lambda: self.done() >= len(self.jobs), seconds, "all jobs have ended")

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(60)

    def judge(self, limits: Mapping[str, int | None], room: int | None = None) -> Report:
        return check(
            [self.log],
            limits=limits,
            changes=self.changes,
            jobs=self.jobs,
            kills=self.kills,
            room=room,
            # What was granted before a limit was lowered may start that much later, where more
            # is reserved ahead.
            slack=SLACK * self.store.capabilities.ahead / AHEAD,
        )


def leftovers(folder: Path) -> list[str]:
    """Processes that still know the folder of this test."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(folder).encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().decode().replace("\0", " "))
            except OSError:
                continue
    return found


def swept(store: Store) -> bool:
    store.sweep()
    return store.workers() == []


ON_POSTGRES = frozenset(
    {
        "test_every_kind_of_limit_with_four_processes",
        "test_limits_changed_under_load",
        "test_many_changes_under_load",
        "test_workers_that_disagree_about_a_limit",
        "test_chaos",
        "test_a_wide_job_among_narrow_ones_starts_in_bounded_time",
        "test_ten_tenants_share_a_group_evenly",
        "test_newcomers_do_not_wait_for_a_hot_tenant",
        "test_never_more_than_the_rate_in_any_window",
    }
)
ON_A_BUCKET = frozenset({"test_every_kind_of_limit_with_four_processes"})
"""In the short form; more of it is in test_bucket_under_fire.py."""
THROUGH_A_POOLER = frozenset({"test_every_kind_of_limit_with_four_processes"})
ONLY_ON_POSTGRES = frozenset(
    {"test_many_keys_under_fire", "test_a_large_limit_is_reached_and_never_passed"}
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function.__name__ in ONLY_ON_POSTGRES:
        metafunc.parametrize("fleet", ["postgres"], indirect=True)
    else:
        on_both(metafunc, "fleet", ON_POSTGRES, ON_A_BUCKET, THROUGH_A_POOLER)


@pytest.fixture
def fleet(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Fleet]:
    url = store_url(getattr(request, "param", "sqlite"), tmp_path)
    with opened(url, tmp_path, monkeypatch) as fleet:
        yield fleet


@contextmanager
def opened(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lease: int = 10,
    module: ModuleType = scene,
) -> Iterator[Fleet]:
    """After every test: no process, no lock file, no slot, no attempt is left behind."""
    monkeypatch.setenv("HEADGATE_URL", url)
    # Where leases decide about a death, they need not take half a minute to do so.
    monkeypatch.setenv("HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS", str(lease))
    monkeypatch.setenv("HEADGATE_TEST_LOG", str(tmp_path / "execution.log"))
    importlib.reload(module)  # an app of its own for every test: it reads the url once
    app = module.app
    fleet = Fleet(tmp_path, app)
    try:
        yield fleet
        fleet.stop()
        wait_until(lambda: leftovers(tmp_path) == [], why="no process is left behind")
        if fleet.kills:
            # Killed with nothing in its hands shortly before the end, a worker may still have a
            # lease when all others have left: whoever comes next takes it away.
            wait_until(lambda: swept(fleet.store), 2 * lease, "the killed are taken away")
        assert fleet.store.workers() == []
        held = {g: fleet.store.group(g)[0].held for g in fleet.store.groups()}
        assert {group: n for group, n in held.items() if n} == {}, "slots left behind"
        assert fleet.store.doctor() == []
        if fleet.kills:
            # Killed after it had locked its file and before it was registered, a worker leaves a
            # file of nobody, which the doctor deletes when it is a minute old.
            for path in tmp_path.glob("*.run/*.lock"):
                os.utime(path, (0, 0))
            fleet.store.doctor(repair=True)
        assert list(tmp_path.glob("*.run/*.lock")) == [], "lock files left behind"
    finally:
        for process in fleet.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        app.close()

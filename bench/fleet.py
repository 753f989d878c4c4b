"""Worker processes for a benchmark, on a store of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.place import direct
from bench.trace import FOLDER, Traces
from headgate.stores import open_store
from headgate.stores.protocol import Store

ROOT = Path(__file__).parents[1]
PATIENCE = 60.0
"""Seconds without any progress after which a benchmark gives up."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Processes that work until nothing is left."""

    traces: Traces
    processes: list[subprocess.Popen[bytes]]
    idle: Callable[[], bool]
    """Is nothing running any more, as far as the store knows?"""

    def wait(self, reached: Callable[[], bool], what: str, every: float = 0.005) -> None:
        counts: list[int] = []
        deadline = looked = 0.0
        while not reached():
            for process in self.processes:
                if process.poll() is not None:
                    raise RuntimeError(f"a worker ended with {process.returncode}")
            now = time.monotonic()
            if now > looked + 1.0:
                looked, before, counts = now, counts, self.traces.counts()
                if counts != before:
                    deadline = now + PATIENCE
            if now > deadline:
                raise RuntimeError(f"no progress for {PATIENCE:.0f} s, and still not: {what}")
            time.sleep(every)

    def rate(self, which: tuple[int, ...], jobs: int) -> float:
        """Wait until so many jobs have run and are told to the store; jobs per second.

        The first tenth is left out: while it runs, the workers are still starting; unless so few
        are asked for that all have run by then.
        """
        asked = time.perf_counter()

        def ran() -> int:
            counts = self.traces.counts()
            return sum(counts[i] for i in which)

        self.wait(lambda: ran() >= jobs // 10, "a tenth has run", 0.002)
        began, first = time.perf_counter(), ran()
        if first >= jobs:
            began, first = asked, 0
        self.wait(lambda: ran() >= jobs, "all jobs have run")
        self.wait(self.idle, "all ends are told", 0.002)
        took = time.perf_counter() - began
        if ran() != jobs:
            raise RuntimeError(f"{jobs} jobs were there, and {ran()} ran")
        return (jobs - first) / took


@dataclass(frozen=True, slots=True)
class Fleet:
    """Headgate's workers, on one store."""

    store: Store
    url: str
    traces: Traces
    processes: list[subprocess.Popen[bytes]]

    def go(self) -> None:
        """Let the workers, who wait, begin."""
        self.store.pause_queue("default", False, by="bench")

    def _drain(self, only: str = "") -> Drain:
        return Drain(self.traces, self.processes, lambda: running(self.url, self.store, only) == 0)

    def wait(self, reached: Callable[[], bool], what: str, every: float = 0.005) -> None:
        self._drain().wait(reached, what, every)

    def drained(self, which: tuple[int, ...], jobs: int, only: str = "") -> float:
        return self._drain(only).rate(which, jobs)

    def cpu_seconds(self) -> float:
        """What all processes of the workers have used so far."""
        return cpu_seconds([pid for process in self.processes for pid in family(process.pid)])


def running(url: str, store: Store, only: str = "") -> int:
    """What runs, as far as the store knows; `only`: of tasks whose names begin so, where a store
    tells them apart."""
    if not url.startswith("postgres"):
        return sum(worker.running for worker in store.workers())
    with direct(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM headgate.running r JOIN headgate.jobs j ON j.n = r.job"
            " WHERE starts_with(j.task, %s)",
            (only,),
        ).fetchone()
    assert row is not None
    return int(str(row[0]))


@contextmanager
def workers(
    folder: Path,
    url: str,
    *options: str,
    count: int = 1,
    held: bool = False,
    env: Mapping[str, str] | None = None,
    urls: Sequence[str] = (),
) -> Generator[Fleet]:
    """`count` times `headgate worker`, ready when this gives the fleet. `held`: they begin
    with `go`. `urls`: what the same store is called by each of them in turn."""
    folder.mkdir(exist_ok=True)
    traces = Traces(folder)
    traces.clear()
    store = open_store(url)
    if held:
        store.pause_queue("default", True, by="bench", reason="until all workers are there")
    known = {worker.id for worker in store.workers()}
    each = int(options[options.index("--processes") + 1]) if "--processes" in options else 1
    environ = {**os.environ, FOLDER: str(folder), **(env or {})}
    named = [urls[i % len(urls)] if urls else url for i in range(count)]
    command = [sys.executable, "-m", "headgate", "worker", "bench.tasks:app", *options]
    log = (folder / "workers.log").open("ab")
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environ, "HEADGATE_URL": name},
            stderr=log,
            start_new_session=True,
        )
        for name in named
    ]
    fleet = Fleet(store, url, traces, processes)
    try:
        fleet.wait(
            lambda: len({w.id for w in store.workers()} - known) >= count * each,
            "the workers are there",
        )
        yield fleet
        _stop(processes)
    except RuntimeError:
        print((folder / "workers.log").read_text(errors="replace")[-4000:], file=sys.stderr)
        raise
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.close()
        store.close()


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(60)


def cpu_seconds(processes: list[int]) -> float:
    """Processor time used so far by these processes."""
    ticks = 0
    for pid in processes:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += family(int(child))
    return found

"""A scheduler in a folder of its own: its configuration, its process, its log."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headgate.checker import Job, Kill, Report, check
from headgate.execlog import now
from headgate.jobs import JobFilter, JobRecord
from headgate.stores import open_store
from headgate.stores.protocol import Store
from tests.waiting import wait_until
from tests.worker.site import REPO, Site, Tree

EXAMPLES = REPO / "examples" / "dsari"
RECORDER = [sys.executable, str(Path(__file__).with_name("recorder.py"))]


class Stage:
    """The configuration is dsari.json, the store that of the site."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.folder = site.folder
        self.file = site.folder / "dsari.json"
        self.log = site.folder / "run.log"
        self.url = site.url

    def write(self, data: dict[str, Any]) -> None:
        data.setdefault("environment", {})["RUN_LOG"] = str(self.log)
        self.file.write_text(json.dumps(data, indent=1))

    def example(self, name: str, seconds: float, schedule: str = "* * * * * *") -> dict[str, Any]:
        """One of the examples, its minutes made seconds: each command records that it ran."""
        data = json.loads((EXAMPLES / f"{name}.json").read_text())
        for job in data["jobs"].values():
            job["command"] = [*RECORDER, str(seconds)]
            assert job["schedule"] == "* * * * *"
            job["schedule"] = schedule
        self.write(data)
        return data

    def start(self, *arguments: str, file: Path | None = None) -> Tree:
        return self.site.start_module(
            *("headgate", "scheduler", str(file or self.file), "--url", self.url, *arguments)
        )

    @contextmanager
    def store(self) -> Iterator[Store]:
        store = open_store(self.url)
        try:
            yield store
        finally:
            store.close()

    def runs(self, **filter: Any) -> list[JobRecord]:
        with self.store() as store:
            found = store.find(JobFilter(**filter), limit=10_000)
        return [job for job in found if not job.task.startswith("headgate.")]

    def wait_for(self, ask: Any, seconds: float = 30.0, why: str = "") -> Any:
        """Until `ask(store)` is true."""
        with self.store() as store:
            return wait_until(lambda: ask(store), seconds, why)

    def starts(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        lines = self.log.read_bytes().split(b"\n")[:-1]
        return [line for line in map(json.loads, lines) if line["ev"] == "start"]

    def judge(
        self, data: dict[str, Any], limits: dict[str, int], kills: list[Kill] | None = None
    ) -> Report:
        """Each run that went well by the store is in the log, once, and no group was over its
        limit. What still waits is not lost: it is in the store."""
        shift = now() - time.time()

        def of_job(run: JobRecord, key: str) -> Any:
            return data["jobs"][run.task].get(key)

        jobs = [
            Job(
                run.id,
                "succeeded" if run.state == "succeeded" else "any",
                submitted=None if run.ready_at is None else run.ready_at + shift,
                groups={run.task: 1},
                one_of=[groups]
                if (groups := data["jobs"][run.task].get("concurrency_groups"))
                else [],
            )
            for run in self.runs()
        ]
        values = {**limits, **dict.fromkeys(data["jobs"], 1)}
        report = check([self.log], limits=values, jobs=jobs, kills=kills or [])
        print(report.text())
        return report

    def ticks(self, *, gaps: bool = False) -> int:
        """Every second since the first tick is told of: as a run, or as merged into one. How many
        there are in all."""
        count = 0
        runs = {run.id for run in self.runs()}
        with self.store() as store:
            for schedule in store.schedules():
                found = sorted(
                    store.ticks(schedule.spec.name, limit=10_000), key=lambda tick: tick.at
                )
                moments = [tick.at for tick in found]
                assert len(set(moments)) == len(moments)
                assert {tick.outcome for tick in found} <= {"run", "merged", *(["missed"] * gaps)}
                assert {tick.job for tick in found if tick.outcome != "missed"} <= runs
                if not gaps:
                    assert moments == [moments[0] + n for n in range(len(moments))]
                count += len(found)
        return count


class Watcher:
    """Notes when each process that began a run is first seen gone, from beginning to end."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._gone: dict[int, float] = {}
        self._sent: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def kill(self, tree: Tree) -> None:
        self._sent.append(now())
        tree.signal(signal.SIGKILL)

    def pids(self) -> set[int]:
        return {start["pid"] for start in self._stage.starts()}

    def alive(self) -> set[int]:
        return self.pids() - set(self._gone)

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            for pid in self.pids() - set(self._gone):
                if not alive(pid):
                    self._gone[pid] = now()

    def kills(self) -> list[Kill]:
        """All that is gone by now; those that came to their end by themselves do no harm."""
        wait_until(lambda: not self.alive(), why="all runs gone")
        self._over.set()
        self._thread.join()
        return [
            Kill(t, pid=pid, sent=max((s for s in self._sent if s <= t), default=None))
            for pid, t in self._gone.items()
        ]


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False

"""Kill, freeze and thaw at random under load; then the checker looks for anything amiss."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from headgate.checker import Kill
from headgate.execlog import now
from tests.waiting import PATIENCE, wait_until

from . import scene
from .conftest import Fleet

FULL = os.environ.get("HEADGATE_PROOF") == "full"
SECONDS = 120.0 if FULL else 15.0
KILLS = 5
LOST = 1000
dice = random.Random(5)


def family(pid: int) -> list[int]:
    """The process and all below it."""
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += family(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def state(pid: int) -> str:
    """One letter, as the kernel has it; X: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def alive(pid: int) -> bool:
    return state(pid) not in "ZX"


class Attempts:
    """Those that have begun and not ended, as the log says."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = 0
        self._pids: dict[tuple[str, int], int] = {}

    def pids(self) -> set[int]:
        """The processes that they run in."""
        if self._log.exists():
            with self._log.open("rb") as log:
                log.seek(self._read)
                for text in log:
                    if text.endswith(b"\n"):  # else it is being written
                        self._read += len(text)
                        self._note(json.loads(text))
        return set(self._pids.values())

    def _note(self, line: dict[str, Any]) -> None:
        attempt = (line["job"], line["attempt"])
        if line["ev"] == "start":
            self._pids[attempt] = line["pid"]
        elif line["ev"] == "end":
            del self._pids[attempt]


class Chaos:
    """Does harm to a fleet, and keeps book for the checker."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.count = 0
        self._attempts = Attempts(fleet.log)

    def kill(self, pids: list[int], doomed: list[int]) -> None:
        """SIGKILL `pids`; all of `doomed` are gone by the time this returns."""
        sent = now()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        wait_until(lambda: not any(map(alive, doomed)), why=f"{doomed} are gone")
        seen = now()
        self.fleet.kills += [Kill(seen, pid=pid, sent=sent) for pid in doomed]
        self.count += 1

    def kill_at_work(self) -> None:
        """SIGKILL a worker process in the middle of an attempt. Stopped before the look at the log,
        it cannot end that attempt any more."""
        workers = {worker.pid for worker in self.fleet.store.workers() if alive(worker.pid)}
        stopped: list[int] = []

        def caught() -> bool:
            for pid in workers & self._attempts.pids():
                os.kill(pid, signal.SIGSTOP)
                wait_until(lambda: state(pid) in "TZX", why="it is stopped")  # noqa: B023
                if pid in self._attempts.pids():
                    stopped.append(pid)
                    return True
                os.kill(pid, signal.SIGCONT)
            return self.fleet.done() >= len(self.fleet.jobs)

        wait_until(caught, why="some worker process runs something")
        for pid in stopped:
            self.kill([pid], family(pid))

    def harm(self) -> None:
        guards = [p for p in self.fleet.processes if p.poll() is None]
        guard = dice.choice(guards)
        tree = family(guard.pid)
        workers = [w.pid for w in self.fleet.store.workers() if w.pid in tree and alive(w.pid)]
        what = dice.choice(["worker", "worker", "freeze", "keeper", "guard", "all"])
        if what == "worker":
            self.kill_at_work()
        elif what == "freeze" and workers:
            worker = dice.choice(workers)
            os.kill(worker, signal.SIGSTOP)
            time.sleep(dice.uniform(0.1, 0.6))
            os.kill(worker, signal.SIGCONT)
        elif what in ("keeper", "guard", "all") and len(tree) > 1:
            victims = {"keeper": tree[1:2], "guard": tree[:1], "all": tree}[what]
            self.kill(victims, tree[1:])
            guard.wait(PATIENCE)
            self.fleet.start("--processes", "2", "--concurrency", "10")


def test_chaos(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.start("--processes", "2", "--concurrency", "10")
    tenants = [f"t{i}" for i in range(8)]

    def feed() -> None:
        for _ in range(10):
            name = dice.choice(tenants)
            more = {"max_lost": LOST}
            fleet.submit(
                [
                    scene.narrow.using(**more).call(dice.uniform(0.01, 0.1)),
                    scene.per_tenant.using(**more).call(name, dice.uniform(0.01, 0.1)),
                    scene.shared_sync.using(**more).call(dice.uniform(0.01, 0.1)),
                    scene.hungry.using(**more).call(dice.uniform(0.01, 0.1)),
                    scene.apart.using(**more).call(dice.uniform(0.05, 0.2)),
                ],
                [
                    {"narrow": 1},
                    {f"tenant/{name}": 1},
                    {"shared": 1},
                    {"memory": 3},
                    {"apart": 1},
                ],
                lost=LOST,
            )

    chaos = Chaos(fleet)
    with fleet.fed(150, feed):
        began = time.monotonic()
        # On a busy machine fewer fit into the time: then it lasts a little longer.
        while (past := time.monotonic() - began) < SECONDS or (
            chaos.count < KILLS and past < 2 * SECONDS
        ):
            time.sleep(dice.uniform(0.2, 1.0))
            chaos.harm()
    fleet.wait_done()
    fleet.stop()
    report = fleet.judge(scene.LIMITS)
    print(f"{chaos.count} kills\n{report.text()}")
    assert report.ok, report.text()
    assert chaos.count >= KILLS
    assert report.explained, "some attempt was killed in the middle"

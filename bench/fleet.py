"""Worker processes for a benchmark, on a store of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from headgate.stores import open_store
from headgate.stores.protocol import Store

ROOT = Path(__file__).parents[1]


@contextmanager
def workers(folder: Path, url: str, *options: str, count: int = 1) -> Generator[Store]:
    """`count` times `headgate worker`, ready when this gives the store."""
    env = {**os.environ, "HEADGATE_URL": url, "HEADGATE_BENCH_FOLDER": str(folder)}
    command = [sys.executable, "-m", "headgate", "worker", "bench.tasks:app", *options]
    store = open_store(url)
    processes = [subprocess.Popen(command, cwd=ROOT, env=env) for _ in range(count)]
    try:
        while len(store.workers()) < count:
            for process in processes:
                if process.poll() is not None:
                    raise RuntimeError(f"a worker ended with {process.returncode}")
            time.sleep(0.05)
        yield store
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        store.close()


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

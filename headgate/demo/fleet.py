"""The worker processes of the demo: start them, kill one, stop them all."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from headgate.checker import Kill
from headgate.demo.tasks import LOG
from headgate.execlog import now
from headgate.stores.protocol import Store, WorkerRecord

NAMES = ("worker-1", "worker-2")
CONCURRENCY = 6
STOP_WITHIN = 10.0


class Fleet:
    """Two real `headgate worker` commands in a folder of their own."""

    def __init__(self, folder: Path, url: str, log: Path) -> None:
        self._folder = folder
        # Settings of the place where the demo is started must not leak into it.
        env = {k: v for k, v in os.environ.items() if not k.startswith("HEADGATE_")}
        self._env = {**env, "HEADGATE_URL": url, LOG: str(log)}
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for name in NAMES:
            with self.output(name).open("wb") as output:
                self._processes.append(
                    subprocess.Popen(
                        [
                            *(sys.executable, "-m", "headgate.demo.leashed", str(os.getpid())),
                            *("worker", "headgate.demo.tasks:app", "--name", name),
                            *("--concurrency", str(CONCURRENCY), "--shutdown-timeout", "5"),
                        ],
                        cwd=self._folder,
                        env=self._env,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        # Ctrl-C in the terminal is for the demo, which then stops them itself.
                        start_new_session=True,
                    )
                )

    def ready(self, store: Store) -> bool:
        """Are all of them there to claim?"""
        return len([w for w in store.workers() if w.state == "alive"]) == len(NAMES)

    def output(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def ended(self) -> str | None:
        """What a worker said that ended although nobody stopped it."""
        for name, process in zip(NAMES, self._processes, strict=True):
            if process.poll() is not None:
                said = self.output(name).read_text(errors="replace").strip()
                return f"{name} ended with exit code {process.returncode}:\n{said}"
        return None

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_WITHIN
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def kill(worker: WorkerRecord) -> Kill:
    """SIGKILL one worker process, and note when that was and when it was gone."""
    handle = os.pidfd_open(worker.pid)
    try:
        sent = now()
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        gone = select.poll()
        gone.register(handle, select.POLLIN)
        if not gone.poll(10_000):
            raise TimeoutError(f"process {worker.pid} outlived SIGKILL by 10 s")
        return Kill(now(), pid=worker.pid, sent=sent)
    finally:
        os.close(handle)


def busiest(store: Store) -> WorkerRecord | None:
    """The worker with most to lose."""
    alive = [worker for worker in store.workers() if worker.state == "alive" and worker.running]
    return max(alive, key=lambda worker: worker.running, default=None)

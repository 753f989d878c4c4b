"""A store that somebody keeps locked for a while: the worker waits, and loses nothing."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import PATIENCE, wait_until
from tests.worker import sample
from tests.worker.site import Site

HOLD = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
db.execute("ROLLBACK")
"""


def test_a_held_open_transaction(site: Site) -> None:
    tree = site.start("--concurrency", "5", "--processes", "2")
    site.ready(2)
    jobs = site.app.submit_many([sample.touch_gate.call(n) for n in range(100)])
    jobs += site.app.submit_many([sample.sleepy.call(0.05) for _ in range(20)])
    site.wait_for("gate-out", count=10)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(site.folder / "jobs.db"), "3"], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert holder.wait() == 0
    for job in jobs:
        assert site.until_done(job.id).state == "succeeded"
    assert all(site.job(job.id).attempt == 1 for job in jobs)
    assert len(site.events("gate-in")) == len(site.events("gate-out")) == 100
    assert tree.stop() == 0


def test_a_worker_that_dies_while_the_store_is_locked(site: Site) -> None:
    """Its death is reported as soon as the store can be written again."""
    import os
    import signal

    tree = site.start()
    site.ready()
    job = sample.wait_async.submit()
    site.wait_for("running")
    (pid,) = tree.processes()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(site.folder / "jobs.db"), "2"], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    os.kill(pid, signal.SIGKILL)
    site.go()
    holder.wait()
    assert job.result(timeout=PATIENCE) == "went on"
    wait_until(lambda: "lost" in [a.outcome for a in site.app.store.attempts(job.id)])
    assert tree.stop() == 0

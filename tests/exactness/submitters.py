"""Processes that submit under a cap, all at once or for as long as they are let.

`python -m tests.exactness.submitters URL COUNT CAP POLICY KEYS` forks so many of them, and obeys
its standard input, a word a line: `go`, `cap N`, `kill` (one of them in the middle of whatever it
does; another takes its place), `once` (each submits one), `stop`. Each command is answered by a
line of JSON when it has been carried out.
"""

from __future__ import annotations

import ctypes
import json
import math
import multiprocessing
import os
import random
import signal
import sys
from typing import Any

import headgate.stores.postgres.store  # before the fork: who is killed is soon replaced
import headgate.stores.sqlite.store  # noqa: F401
from headgate.errors import StoreBusy, SubmitConflict
from headgate.jobs import CapUse, NewJob, Submitted
from headgate.stores import open_store
from headgate.stores.protocol import Store
from tests.waiting import wait_until

fork = multiprocessing.get_context("fork")


class Told(ctypes.Structure):
    """What all of them see."""

    _fields_ = (
        ("mode", ctypes.c_int),
        ("cap", ctypes.c_int),
        ("ready", ctypes.c_int * 64),
        ("used", ctypes.c_int * 64),
        ("accepted", ctypes.c_int * 64),
        ("refused", ctypes.c_int * 64),
        ("skipped", ctypes.c_int * 64),
    )


WAIT, ONCE, GO, STOP = range(4)


def group_of(key: int) -> str:
    return f"capped/{key}"


def job(policy: str, cap: int, keys: int) -> NewJob:
    use = CapUse(group_of(random.randrange(keys)), max_total=cap, when_full=policy)  # type: ignore[arg-type]
    return NewJob("task", caps=(use,))


def decided(store: Store, new: NewJob) -> Submitted:
    """Errors that may be tried again are, until there is an answer."""
    while True:
        try:
            return store.submit([new])[0]
        except (SubmitConflict, StoreBusy):
            continue


def submitter(told: Any, n: int, url: str, policy: str, keys: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    random.seed(os.getpid())
    store = open_store(url)
    store.now()
    told.ready[n] = 1
    wait_until(lambda: told.mode != WAIT, math.inf)
    while told.mode != STOP:
        cap = told.cap
        told.used[n] = cap  # whatever is submitted from here on goes by it
        done = decided(store, job(policy, cap, keys))
        counts = told.refused if done.refused else told.skipped if done.existing else told.accepted
        counts[n] += 1
        if told.mode == ONCE:
            break
    told.ready[n] = 2
    store.close()


def main(url: str, count: int, cap: int, policy: str, keys: int) -> None:
    told: Any = fork.Value(Told, lock=False)
    told.cap = cap

    def start(n: int) -> Any:
        told.ready[n] = 0
        process = fork.Process(target=submitter, args=(told, n, url, policy, keys))
        process.start()
        return process

    processes = [start(n) for n in range(count)]

    wait_until(lambda: all(told.ready[n] for n in range(count)))
    killed = 0
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "cap":
            told.cap = int(rest[0])
            wait_until(lambda: all(told.used[n] == told.cap for n in range(count)))
        elif command == "kill":
            n = random.choice([n for n in range(count) if told.ready[n]] or range(count))
            os.kill(processes[n].pid or 0, signal.SIGKILL)
            processes[n].join()
            processes[n] = start(n)
            killed += 1
        elif command in ("go", "once"):
            told.mode = GO if command == "go" else ONCE
        if command in ("stop", "once"):
            if command == "stop":
                told.mode = STOP
            for process in processes:
                process.join()
        sums = {name: sum(getattr(told, name)) for name in ("accepted", "refused", "skipped")}
        print(json.dumps({**sums, "killed": killed}), flush=True)
    # Whoever told us what to do is gone, or has failed.
    told.mode = STOP
    for process in processes:
        process.kill()
        process.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))

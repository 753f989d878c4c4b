"""Who is alive: an exclusive `flock` on a file per worker.

The open file description is inherited by all that belongs to the worker (keeper, guard,
worker process, isolated processes), so the kernel drops the lock exactly when the last of
them is gone: no heartbeat, no time-out, no clock.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from headgate import kernel
from headgate.errors import StoreUnavailable
from headgate.stores.relational import registry
from headgate.stores.relational.transaction import Transaction

log = logging.getLogger("headgate.store")


class Living(Protocol):
    """Who is alive, as far as the operations ask."""

    def alive(self, worker: str) -> bool: ...

    def forget(self, worker: str) -> None:
        """The worker is gone for good."""
        ...

    def keep_only(self, workers: set[str]) -> None:
        """Drop what is remembered of workers that are no longer registered."""
        ...

    def strays(self, workers: set[str]) -> list[str]:
        """What belongs to none of these workers, and to nobody."""
        ...


class Liveness:
    """The lock files of one store. Without a folder (in memory) all live in this process."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._probes: dict[str, int] = {}
        self._pid = os.getpid()
        self._guard = threading.Lock()

    def _path(self, worker: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{worker}.lock"

    def take(self, worker: str) -> tuple[int, ...]:
        """Lock the worker's file. Done before its row is written, so that no one ever sees
        a row whose lock is not held yet."""
        if self._folder is None:
            return ()
        path = self._path(worker)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreUnavailable(f"cannot lock {path}: {error.strerror}") from error
        return (fd,)

    def alive(self, worker: str) -> bool:
        """Does anyone still hold the worker's lock?

        A shared lock is asked for, so that two who look at the same moment do not take each
        other for the worker.
        """
        if self._folder is None:
            return True
        with self._guard:
            return self._probe(worker)

    def _probe(self, worker: str) -> bool:
        if self._pid != os.getpid():  # a fork shares descriptions: use none of the parent's
            self._probes, self._pid = {}, os.getpid()
        fd = self._probes.get(worker)
        if fd is None:
            try:
                fd = os.open(self._path(worker), os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                # Nobody unlinks the file of a registered worker but someone who cleared the
                # folder by hand. Its lock lives on where we cannot ask for it: look for the
                # processes themselves before their slots are given away.
                return bool(kernel.marked(kernel.WORKER_MARK, worker))
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    return True  # cannot look: never declare dead what may live
                raise StoreUnavailable(f"cannot look at {self._path(worker)}: {error}") from error
            self._probes[worker] = fd
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False

    def forget(self, worker: str) -> None:
        """The worker is gone for good: its id is never used again.

        Never fails: it comes after the commit, and what is committed must not look refused. A
        file that cannot be deleted belongs to nobody, and is swept later.
        """
        if self._folder is None:
            return
        with self._guard:
            self._drop_probe(worker)
        try:
            self._path(worker).unlink(missing_ok=True)
        except OSError as error:
            log.warning("cannot delete %s: %s", self._path(worker), error.strerror)

    def keep_only(self, workers: set[str]) -> None:
        """Drop what is remembered of workers that are no longer registered."""
        with self._guard:
            for worker in [w for w in self._probes if w not in workers]:
                self._drop_probe(worker)

    def _drop_probe(self, worker: str) -> None:
        # Under the guard: another thread that is just asking would lock whatever file gets
        # this number next.
        fd = self._probes.pop(worker, None)
        if fd is not None:
            os.close(fd)

    def strays(self, workers: set[str]) -> list[str]:
        """Lock files of nobody: left by a crash between locking and registering.

        A young file may belong to someone who has created and not yet locked it.
        """
        if self._folder is None or not self._folder.is_dir():
            return []
        return [
            path.stem
            for path in self._folder.glob("*.lock")
            if path.stem not in workers and _age(path) > 60 and not self.alive(path.stem)
        ]

    def close(self) -> None:
        if self._pid == os.getpid():
            self.keep_only(set())


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:  # somebody else has swept it
        return 0.0


def reap(tx: Transaction, liveness: Living, workers: Mapping[str, str]) -> list[str]:
    """Take away every one of these (id → name) whose lock is free: nobody of it is alive.

    This is part of each claim, so that no sweeper has to run before a free slot is free.
    """
    gone = [worker for worker in workers if not liveness.alive(worker)]
    for worker in gone:
        registry.remove(tx, worker, workers[worker], "its processes are gone")
    return gone

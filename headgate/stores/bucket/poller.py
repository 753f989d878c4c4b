"""Noticing what other machines did: by looking at the ledger, often while much happens and seldom
while nothing does.

One process of a machine looks for all of them, and rings their bells; a look that finds nothing
new is one small request.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from headgate.errors import HeadgateError
from headgate.stores.forking import ours

log = logging.getLogger("headgate.store")

SHORTEST = 0.1
GROWTH = 1.5
RETRY = 1.0
"""Seconds after which a process that did not get to look asks whether it is its turn."""


class Poller:
    def __init__(self, folder: Path, look: Callable[[], bool], longest: float) -> None:
        self._path = folder / "poller.lock"
        self._look = look
        self._longest = longest
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """From now on somebody listens in this process."""
        if self._pid != os.getpid():
            self._pid, self._thread = os.getpid(), None
            self._guard, self._ended = threading.Lock(), threading.Event()
        with self._guard:
            if self._thread is None and not self._ended.is_set():
                self._thread = threading.Thread(
                    target=ours(self._run), args=(self._ended,), name="headgate-poller", daemon=True
                )
                self._thread.start()

    @property
    def runs(self) -> bool:
        return self._thread is not None and self._pid == os.getpid()

    def close(self) -> None:
        self._ended.set()
        thread = self._thread if self._pid == os.getpid() else None
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

    def _run(self, ended: threading.Event) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not self._elected(fd):
                if ended.wait(RETRY):
                    return
            pause = SHORTEST
            while not ended.wait(pause):
                pause = self._paced(pause)
        finally:
            os.close(fd)  # and with it the lock: another process is next

    def _elected(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _paced(self, pause: float) -> float:
        try:
            if self._look():
                return min(SHORTEST, self._longest)
        except HeadgateError as error:
            log.warning("cannot look at the bucket: %s", error)
            return self._longest
        except Exception:  # whatever it is: nobody else looks, and who listens must be woken again
            log.exception("cannot look at the bucket")
            return self._longest
        return min(pause * GROWTH, self._longest)

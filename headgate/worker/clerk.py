"""The keeper's errands to the store, in a thread: a locked store must not hold up the keeper."""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from headgate.errors import StoreError

log = logging.getLogger("headgate.worker")

T = TypeVar("T")

_Job = Callable[[], Callable[[], None]]


class Clerk:
    """Runs errands one after the other; what follows runs in the keeper's own loop.

    `fileno()` is readable when an errand has ended; `take()` then runs what follows.
    """

    def __init__(self) -> None:
        self._errands: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._open = 0
        threading.Thread(target=self._run, name="headgate-clerk", daemon=True).start()

    @property
    def busy(self) -> bool:
        return self._open > 0

    def fileno(self) -> int:
        return self._read.fileno()

    def ask(self, call: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        """Run `call` in the thread; `then` gets its result, or the error it raised."""

        def errand() -> Callable[[], None]:
            try:
                result: T | Exception = call()
            except Exception as error:
                result = error  # whatever it is, it is for who asked
            return lambda: then(result)

        self._open += 1
        self._errands.put(errand)

    def insist(self, what: str, call: Callable[[], object], then: Callable[[], None]) -> None:
        """Like `ask`, for what must happen in the end: repeated while the store refuses."""

        def until_done() -> None:
            pause = 0.05
            while True:
                try:
                    call()
                except StoreError as error:
                    log.warning("%s: %s; trying again", what, error)
                    time.sleep(pause)
                    pause = min(pause * 2, 2.0)
                else:
                    return

        def after(result: Exception | None) -> None:
            if result is not None:
                log.error("%s failed", what, exc_info=result)
            then()

        self.ask(until_done, after)

    def take(self) -> None:
        try:
            self._read.recv(4096)
        except BlockingIOError:
            pass
        while True:
            try:
                follow = self._ended.get_nowait()
            except queue.Empty:
                return
            self._open -= 1
            follow()

    def _run(self) -> None:
        while True:
            follow = self._errands.get()()
            self._ended.put(follow)
            self._write.send(b"!")

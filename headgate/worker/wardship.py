"""What all wardens have in common: a small process round one other process, the child.

A warden sees to it that nothing of what it runs is left when the end of it is told: it adopts
whatever loses its parent below it, kills that, reaps it, and only then tells the worker. It
runs no user code itself, so no crash of that takes it along.

Each is started as `python -m MODULE SOCKET PARENT FILE…` by the worker; the files are those by
which the store knows that the worker lives. A second process stands round each warden, in case
somebody kills that one.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from headgate import kernel
from headgate.worker.frames import STOP, Outlet, Unpacker


class Warden(ABC):
    """The loop of a warden. What it runs, and how that is told, is said by those who derive."""

    def __init__(self, worker: socket.socket, parent: int, fds: Sequence[int]) -> None:
        self._worker = worker
        self._worker.setblocking(False)
        self._parent = parent
        self._fds = tuple(fds)
        self._to_worker = Outlet(worker)
        self._from_worker = Unpacker()
        self._child = 0
        self._code: int | None = None
        """The exit code of the child, until its end was dealt with."""
        self._kill_at: float | None = None

    def run(self) -> int:
        kernel.adopt_orphans()
        # The death of those above reaches us as SIGTERM, not SIGKILL: we hold the worker's files,
        # so its slots stay taken until we have killed what runs below us, whoever else died.
        self._signals = kernel.Signals((signal.SIGTERM, signal.SIGCHLD))
        kernel.die_with_parent(self._parent, signal.SIGTERM)
        try:
            with selectors.DefaultSelector() as selector:
                self._selector = selector
                selector.register(self._worker, selectors.EVENT_READ)
                selector.register(self._signals, selectors.EVENT_READ)
                self._begin()
                while self._step():
                    pass
        finally:
            self._kill_below()
        return 0

    def _step(self) -> bool:
        self._watch()
        ready = {key.fileobj for key, _ in self._selector.select(self._sleep())}
        if self._signals in ready and signal.SIGTERM in self._signals.take():
            return False
        if self._worker in ready and not self._read_worker():
            return False
        self._hear(ready)
        self._to_worker.flush()
        for pid, code in kernel.reap():
            self._reaped(pid, code)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_below()
        if self._code is not None and not self._lingers():
            self._over()
        return True

    def _sleep(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _watch(self) -> None:
        """Before each sleep: wait for what there is to wait for."""
        self._watch_writes(self._worker, self._to_worker)

    def _watch_writes(self, sock: socket.socket, outlet: Outlet) -> None:
        write = selectors.EVENT_WRITE if outlet.pending else 0
        self._selector.modify(sock, selectors.EVENT_READ | write)

    def _read_worker(self) -> bool:
        """False: the worker has closed its end, or is gone."""
        try:
            data = self._worker.recv(1 << 20)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        for kind, payload in self._from_worker.feed(data):
            if kind == STOP:
                self._stop(int(payload) / 1000)
            else:
                self._told(kind, payload)
        return bool(data)

    def _stop(self, grace: float) -> None:
        if not self._child:
            return  # it has ended by itself meanwhile, and that was told
        if grace > 0:
            self._terminate()
        soon = time.monotonic() + grace
        self._kill_at = soon if self._kill_at is None else min(self._kill_at, soon)

    def _reaped(self, pid: int, code: int) -> None:
        if pid == self._child:
            self._code = code

    def _forget_child(self) -> None:
        self._child, self._code, self._kill_at = 0, None, None

    def _kill_below(self) -> None:
        me = os.getpid()
        kernel.kill_until_none(lambda: kernel.below(me), self._reaped)

    # --- what differs --------------------------------------------------------------------------

    @abstractmethod
    def _begin(self) -> None:
        """Once, before the first sleep."""

    @abstractmethod
    def _told(self, kind: int, payload: bytes) -> None:
        """A frame from the worker, other than the order to stop."""

    @abstractmethod
    def _hear(self, ready: Collection[object]) -> None:
        """Pass on what comes from the child, of the files that are ready."""

    @abstractmethod
    def _terminate(self) -> None:
        """Ask the child to end; what is left after the grace is killed."""

    def _lingers(self) -> bool:
        """The child has ended: may what it left go on for a while?"""
        return False

    @abstractmethod
    def _over(self) -> None:
        """The child has ended: kill what it left, then tell the worker."""


class _Outer:
    """The process round the warden, in case somebody kills that one: it adopts what is left
    then, kills it, and ends last. It holds the socket too, so whoever reads the other end hears
    of our end only when all is gone."""

    def __init__(self, warden: int, parent: int) -> None:
        self._warden = warden
        signal.signal(signal.SIGTERM, self._pass_on)
        kernel.die_with_parent(parent, signal.SIGTERM)

    def _pass_on(self, number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._warden, number)  # our child, not reaped yet: the pid is still its own

    def run(self) -> int:
        os.waitid(os.P_PID, self._warden, os.WEXITED | os.WNOWAIT)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        me = os.getpid()
        kernel.kill_until_none(lambda: kernel.below(me), lambda _pid, _code: None)
        return 0


def stand_watch(kind: type[Warden], arguments: Sequence[str]) -> int:
    """The main program of a warden and of the process round it; the exit code."""
    fd, parent, *fds = map(int, arguments)
    os.set_inheritable(fd, False)
    if kernel.LINUX:  # elsewhere nobody is adopted, so a second process would find nothing
        kernel.adopt_orphans()
        outer = os.getpid()
        # A bare fork is safe here: this process has one thread.
        pid = os.fork()
        if pid:
            return _Outer(pid, parent).run()
        parent = outer
    return kind(socket.socket(fileno=fd), parent, fds).run()

"""The warden of commands: a small process round one command at a time.

It starts the command in a session of its own, passes on what it writes, and sees to it that
nothing of it is left when its end is told: what the command leaves behind it adopts, kills,
reaps, and only then is the run over.

Started as `python -m headgate.commands.warden SOCKET PARENT FILE…` by the worker. The files,
by which the store knows that the worker lives, are open in the command too: should all of us
be killed at once, its slots stay taken until the command itself has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TypedDict

from headgate import kernel
from headgate.commands.ends import is_scarce, why_not
from headgate.worker.frames import DIED, OUT, REFUSED, RUN, STOP, Outlet, Unpacker

_PIECE = 1 << 16
_MOST_UNSENT = 1 << 20
"""Bytes on their way to the worker above which the command has to wait with its writing."""


class ProgramFrame(TypedDict):
    """Worker → warden. Lone surrogates in it stand for bytes that are no text."""

    argv: list[str]
    environment: dict[str, str]
    cwd: str | None
    separate: bool
    """One pipe for each stream; else one for both, in which their order is exact."""


class RefusedFrame(TypedDict):
    """Warden → worker: the program could not be started."""

    code: int
    why: str
    scarce: bool


class Warden:
    def __init__(self, worker: socket.socket, parent: int, fds: Sequence[int]) -> None:
        self._worker = worker
        self._worker.setblocking(False)
        self._parent = parent
        self._fds = tuple(fds)
        self._to_worker = Outlet(worker)
        self._from_worker = Unpacker()
        self._command = 0
        self._code: int | None = None
        self._pipes: dict[int, bytes] = {}
        """By descriptor, the byte that names the stream."""
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
        for fd in [fd for fd in self._pipes if fd in ready]:
            self._read_pipe(fd)
        self._to_worker.flush()
        for pid, code in kernel.reap():
            self._reaped(pid, code)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_below()
        if self._command and self._code is not None and not self._lingers():
            self._over()
        return True

    def _sleep(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _watch(self) -> None:
        """Listen to the command only while the worker takes what it says."""
        unsent = self._to_worker.pending
        write = selectors.EVENT_WRITE if unsent else 0
        self._selector.modify(self._worker, selectors.EVENT_READ | write)
        listened = self._selector.get_map()
        for fd in self._pipes:
            if unsent > _MOST_UNSENT and fd in listened:
                self._selector.unregister(fd)
            elif unsent <= _MOST_UNSENT and fd not in listened:
                self._selector.register(fd, selectors.EVENT_READ)

    # --- from the worker -----------------------------------------------------------------------

    def _read_worker(self) -> bool:
        """False: the worker has closed its end, or is gone."""
        try:
            data = self._worker.recv(1 << 20)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        for kind, payload in self._from_worker.feed(data):
            if kind == RUN:
                self._start(json.loads(payload))
            elif kind == STOP:
                self._stop(int(payload) / 1000)
        return bool(data)

    def _start(self, program: ProgramFrame) -> None:
        pipes: list[tuple[int, int]] = []
        try:
            for _ in range(2 if program["separate"] else 1):
                pipes.append(os.pipe())
            process = subprocess.Popen(
                program["argv"],
                env=program["environment"],
                cwd=program["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=pipes[0][1],
                stderr=pipes[-1][1],
                pass_fds=self._fds,
                start_new_session=True,
                # This process has one thread, so running Python between fork and exec is safe.
                preexec_fn=_prepare(os.getpid()),  # noqa: PLW1509
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            for read, _ in pipes:
                os.close(read)
            self._refuse(error, program)
            return
        finally:
            for _, write in pipes:
                os.close(write)
        process.returncode = 0  # reaped by us; Popen must not wait for it a second time
        self._command, self._code = process.pid, None
        for stream, (read, _) in enumerate(pipes):
            os.set_blocking(read, False)
            self._pipes[read] = bytes([stream])

    def _refuse(self, error: Exception, program: ProgramFrame) -> None:
        told = why_not(error, program["argv"], program["cwd"])
        frame = RefusedFrame(code=told.code, why=told.why, scarce=is_scarce(error))
        self._to_worker.put(REFUSED, json.dumps(frame).encode())

    def _stop(self, grace: float) -> None:
        if not self._command:
            return  # it has ended by itself meanwhile, and that was told
        if grace > 0 and self._kill_at is None:
            self._terminate()
        soon = time.monotonic() + grace
        self._kill_at = soon if self._kill_at is None else min(self._kill_at, soon)

    def _terminate(self) -> None:
        """SIGTERM to its process group, and to what left the group. A stopped process would not
        hear it before it goes on, so it is made to."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._command, signal.SIGTERM)
            os.killpg(self._command, signal.SIGCONT)
        for process in kernel.below(os.getpid()):
            # Gone meanwhile, or not ours to signal: the kill after the grace looks again.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(process.pid) != self._command:
                    kernel.kill(process, signal.SIGTERM)
                    kernel.kill(process, signal.SIGCONT)

    # --- from the command ----------------------------------------------------------------------

    def _read_pipe(self, fd: int) -> bool:
        """Pass on a piece; False when there is none now."""
        try:
            data = os.read(fd, _PIECE)
        except BlockingIOError:
            return False
        if data:
            self._to_worker.put(OUT, self._pipes[fd] + data)
        else:
            self._close_pipe(fd)
        return bool(data)

    def _close_pipe(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
        del self._pipes[fd]
        os.close(fd)

    def _reaped(self, pid: int, code: int) -> None:
        if pid == self._command:
            self._code = code

    def _lingers(self) -> bool:
        """Told to stop, a shell ends at once and its program may still be tidying up: what is
        left has the whole grace too. Without an order nothing may outlive the command."""
        return (
            self._kill_at is not None
            and time.monotonic() < self._kill_at
            and bool(kernel.below(os.getpid()))
        )

    def _over(self) -> None:
        self._kill_below()
        # Nobody is left who could write, so all that was written lies in the pipes.
        for fd in list(self._pipes):
            while self._read_pipe(fd):
                pass
            if fd in self._pipes:  # a stranger was handed the other end
                self._close_pipe(fd)
        code = self._code
        self._command, self._code, self._kill_at = 0, None, None
        self._to_worker.put(DIED, str(code).encode())

    def _kill_below(self) -> None:
        me = os.getpid()
        kernel.kill_until_none(lambda: kernel.below(me), self._reaped)


class _prepare:
    """In the new process, before it becomes the program."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __call__(self) -> None:
        # What we or our starter ignore or block is not the program's to suffer from.
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with contextlib.suppress(OSError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        kernel.die_with_parent(self._parent)


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


def main(arguments: Sequence[str]) -> int:
    fd, parent, *fds = map(int, arguments)
    os.set_inheritable(fd, False)
    kernel.adopt_orphans()
    outer = os.getpid()
    # A bare fork is safe here: this process has one thread.
    pid = os.fork()
    if pid:
        return _Outer(pid, parent).run()
    return Warden(socket.socket(fileno=fd), outer, fds).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The warden of commands: a small process round one command at a time.

It starts the command in a session of its own and passes on what it writes. What every warden
does, and how it is started, stands in `headgate.worker.wardship`. The files by which the store
knows that the worker lives are open in the command too: should all of us be killed at once, its
slots stay taken until the command itself has ended.
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
from collections.abc import Collection, Sequence
from typing import TypedDict

from headgate import kernel
from headgate.commands.ends import is_scarce, why_not
from headgate.worker.frames import DIED, OUT, REFUSED, RUN
from headgate.worker.wardship import Warden, stand_watch

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


class CommandWarden(Warden):
    def __init__(self, worker: socket.socket, parent: int, fds: Sequence[int]) -> None:
        super().__init__(worker, parent, fds)
        self._pipes: dict[int, bytes] = {}
        """By descriptor, the byte that names the stream."""

    def _begin(self) -> None:
        """Nothing to do ahead: a command is started when the worker says which."""

    def _watch(self) -> None:
        """Listen to the command only while the worker takes what it says."""
        super()._watch()
        unsent = self._to_worker.pending
        listened = self._selector.get_map()
        for fd in self._pipes:
            if unsent > _MOST_UNSENT and fd in listened:
                self._selector.unregister(fd)
            elif unsent <= _MOST_UNSENT and fd not in listened:
                self._selector.register(fd, selectors.EVENT_READ)

    # --- from the worker -----------------------------------------------------------------------

    def _told(self, kind: int, payload: bytes) -> None:
        if kind == RUN:
            self._start(json.loads(payload))

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
                preexec_fn=_prepare(os.getpid()),  # noqa: PLW1509 - see above
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
        self._child, self._code = process.pid, None
        for stream, (read, _) in enumerate(pipes):
            os.set_blocking(read, False)
            self._pipes[read] = bytes([stream])

    def _refuse(self, error: Exception, program: ProgramFrame) -> None:
        told = why_not(error, program["argv"], program["cwd"])
        frame = RefusedFrame(code=told.code, why=told.why, scarce=is_scarce(error))
        self._to_worker.put(REFUSED, json.dumps(frame).encode())

    def _terminate(self) -> None:
        """SIGTERM to its process group, and to what left the group. A stopped process would not
        hear it before it goes on, so it is made to."""
        if self._kill_at is not None:
            return  # it was told before
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child, signal.SIGTERM)
            os.killpg(self._child, signal.SIGCONT)
        for process in kernel.below(os.getpid()):
            # Gone meanwhile, or not ours to signal: the kill after the grace looks again.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(process.pid) != self._child:
                    kernel.kill(process, signal.SIGTERM)
                    kernel.kill(process, signal.SIGCONT)

    # --- from the command ----------------------------------------------------------------------

    def _hear(self, ready: Collection[object]) -> None:
        for fd in [fd for fd in self._pipes if fd in ready]:
            self._read_pipe(fd)

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
        self._forget_child()
        self._to_worker.put(DIED, str(code).encode())


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


if __name__ == "__main__":
    sys.exit(stand_watch(CommandWarden, sys.argv[1:]))

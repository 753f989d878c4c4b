"""A warden as the worker sees it: a process that runs one thing at a time and cleans up.

The pool keeps some of them warm. What they run is told by those who derive from `Cell`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from headgate import kernel
from headgate.threads import in_thread
from headgate.worker.frames import STOP, Unpacker, pack
from headgate.worker.outcome import Stop

CELL_MARK = "HEADGATE_CELL"
"""Set in the environment of a warden and so of all below it."""

_IDLE = 60.0
"""Seconds after which a warden that nobody needed is let go."""


class Cell:
    """A warden: its process, and frames to and from it.

    It is started as `python -m MODULE SOCKET PARENT FILE…`; the files are those by which the
    store knows that this worker lives.
    """

    def __init__(self, module: str, fds: Sequence[int]) -> None:
        self.mark = uuid.uuid4().hex
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._sock = ours
        with theirs:
            self.pid = kernel.spawn(
                [
                    sys.executable,
                    *("-m", module),
                    *(str(number) for number in (theirs.fileno(), os.getpid(), *fds)),
                ],
                fds=(theirs.fileno(), *fds),
                env={**os.environ, CELL_MARK: self.mark},
            )
        self._unpacker = Unpacker()
        self._frames: list[tuple[int, bytes]] = []
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.spent = False
        """It was told to stop something, or is gone: not to be used again."""
        self.idle: asyncio.TimerHandle | None = None

    def halt(self, stop: Stop, grace: float) -> None:
        """Order the end of what runs: SIGTERM, after `grace` SIGKILL."""
        self.spent = True
        self.spawn(self.send(pack(STOP, str(int(grace * 1000)).encode())))

    def alive(self) -> bool:
        """Can it take an attempt? Its warden may have been killed while it was idle."""
        if not self.spent:
            with contextlib.suppress(ChildProcessError):
                return os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        return False

    def close(self) -> None:
        """The warden ends everything below it when our end closes."""
        self.spent = True
        if self.idle is not None:
            self.idle.cancel()
        self._sock.close()

    async def destroy(self) -> None:
        """End it and everything below it, and wait for that."""
        self.close()
        await self.gone()

    async def gone(self) -> None:
        """Wait until the warden has ended, and so everything below it."""
        await in_thread(_wait_for_exit, self.pid)

    # --- the socket ---------------------------------------------------------------------------

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def send(self, data: bytes) -> None:
        # One frame at a time: two coroutines would mix their bytes in a full socket.
        async with self._sending:
            if self._sock.fileno() < 0:
                return  # closed meanwhile: an answer that nobody waits for
            # The warden may be gone: the reader of its answers sees that and says so.
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def next(self) -> tuple[int, bytes] | None:
        """The next frame; None: somebody killed the warden, and nothing that it had started
        is alive any more."""
        loop = asyncio.get_running_loop()
        while not self._frames:
            try:
                data = await loop.sock_recv(self._sock, 1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                self.spent = True
                await self._after_warden()
                return None
            self._frames.extend(self._unpacker.feed(data))
        return self._frames.pop(0)

    async def _after_warden(self) -> None:
        """The process round it has killed what it left. Should both have been killed, its child
        died with it, and what that had started is found by the mark in its environment."""
        await in_thread(kernel.kill_until_none, lambda: kernel.marked(CELL_MARK, self.mark))


def _wait_for_exit(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return  # taken by somebody else's wait


C = TypeVar("C", bound=Cell)


class Cells(Generic[C]):
    """A pool of cells of one kind."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._idle: list[C] = []
        self._going: set[asyncio.Task[None]] = set()
        self._scarce = False
        """Descriptors or processes ran out once: keep none in reserve, others need them."""

    def take(self) -> C:
        while self._idle:
            cell = self._idle.pop()
            if cell.idle is not None:
                cell.idle.cancel()
            if cell.alive():
                return cell
            cell.close()
        try:
            return self._make()
        except OSError:
            self._scarce = True
            raise

    def give_back(self, cell: C) -> None:
        if cell.spent or self._scarce:
            self._let_go(cell)
            return
        cell.idle = asyncio.get_running_loop().call_later(_IDLE, self._expire, cell)
        self._idle.append(cell)

    def _expire(self, cell: C) -> None:
        if cell in self._idle:
            self._idle.remove(cell)
            self._let_go(cell)

    def _let_go(self, cell: C) -> None:
        cell.close()
        task = asyncio.ensure_future(cell.gone())
        self._going.add(task)
        task.add_done_callback(self._going.discard)

    async def close(self) -> None:
        """Let all go, and wait until they are gone."""
        while self._idle:
            self._let_go(self._idle.pop())
        if self._going:
            await asyncio.gather(*self._going)

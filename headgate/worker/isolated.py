"""Isolated tasks, seen from the worker: a pool of wardens, each with a warm ward."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from headgate import kernel
from headgate.errors import Cancel, StaleAttempt, StoreError
from headgate.jobs import Failure
from headgate.threads import in_thread
from headgate.worker.attempt import Attempt
from headgate.worker.frames import DATA, DIED, ENDED, RUN, STOP, Unpacker, pack
from headgate.worker.outcome import Ending, Stop
from headgate.worker.source import Source
from headgate.worker.ward import Answer, Run, Said, Told

CELL_MARK = "HEADGATE_CELL"
"""Set in the environment of a warden and so of all below it."""

_IDLE = 60.0
"""Seconds after which a warden that nobody needed is let go."""


class Cell:
    """A warden with its ward: runs one attempt at a time."""

    def __init__(self, fds: Sequence[int]) -> None:
        self.mark = uuid.uuid4().hex
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._sock = ours
        with theirs:
            self.pid = kernel.spawn(
                [
                    sys.executable,
                    *("-m", "headgate.worker.warden"),
                    *(str(theirs.fileno()), str(os.getpid())),
                ],
                fds=(theirs.fileno(), *fds),
                env={**os.environ, CELL_MARK: self.mark},
            )
        self._unpacker = Unpacker()
        self._frames: list[tuple[int, bytes]] = []
        self._sending = asyncio.Lock()
        self._said = msgspec.json.Decoder(Said)
        self._tasks: set[asyncio.Task[None]] = set()
        self.spent = False
        """It was told to stop something, or is gone: not to be used again."""
        self.idle: asyncio.TimerHandle | None = None

    async def run(self, attempt: Attempt, source: Source) -> Ending:
        """Run the attempt; returns when nothing of it is alive any more."""
        told = Told(run=Run(attempt.claimed, source, attempt.granted_at))
        await self._send(pack(RUN, msgspec.json.encode(told)))
        while True:
            frame = await self._next()
            if frame is None:
                self.spent = True
                await self._after_warden()
                return _crashed("its warden was killed")
            kind, payload = frame
            if kind == DATA:
                self._hear(attempt, self._said.decode(payload))
            elif kind == ENDED:
                return msgspec.json.decode(payload, type=Ending)
            elif kind == DIED:
                if attempt.stop is not None:
                    return Ending("stopped")
                return _crashed(kernel.exit_text(int(payload)))

    def halt(self, stop: Stop, grace: float) -> None:
        """Order the end of what runs: told first, then SIGTERM, after `grace` SIGKILL."""
        self.spent = True
        self._spawn(self._tell(Told(stop=stop.reason)))
        self._spawn(self._send(pack(STOP, str(int(grace * 1000)).encode())))

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

    # --- what the code asks for ---------------------------------------------------------------

    def _hear(self, attempt: Attempt, said: Said) -> None:
        if said.progress is not None:
            attempt.progress(*said.progress)
        elif said.followup is not None:
            attempt.followup(said.followup)
        elif said.call is not None:
            self._spawn(self._answer(attempt, said))

    async def _answer(self, attempt: Attempt, said: Said) -> None:
        assert said.call is not None
        seconds = said.seconds
        answer = Answer(said.call, value=True)
        try:
            if said.what == "extend":
                await in_thread(attempt.extend, seconds or 0.0)
            elif said.what == "release":
                await in_thread(attempt.release)
            else:
                answer.value = await in_thread(attempt.retake, seconds)
        except (StaleAttempt, Cancel, StoreError) as error:
            kind = "StoreError" if isinstance(error, StoreError) else type(error).__name__
            answer = Answer(said.call, error=kind, text=str(error))
        await self._tell(Told(answer=answer))

    # --- the socket ---------------------------------------------------------------------------

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, told: Told) -> None:
        await self._send(pack(DATA, msgspec.json.encode(told)))

    async def _send(self, data: bytes) -> None:
        # One frame at a time: two coroutines would mix their bytes in a full socket.
        async with self._sending:
            if self._sock.fileno() < 0:
                return  # closed meanwhile: an answer that nobody waits for
            # The warden may be gone: the reader of its answers sees that and says so.
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def _next(self) -> tuple[int, bytes] | None:
        loop = asyncio.get_running_loop()
        while not self._frames:
            try:
                data = await loop.sock_recv(self._sock, 1 << 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames.extend(self._unpacker.feed(data))
        return self._frames.pop(0)

    async def load(self, source: Source) -> None:
        await self._tell(Told(load=source))

    async def _after_warden(self) -> None:
        """Somebody killed the warden. Its ward dies with it; what that had started is found
        by the mark in its environment, and the attempt is not over before it is gone."""
        await in_thread(kernel.kill_until_none, lambda: kernel.marked(CELL_MARK, self.mark))


def _wait_for_exit(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return  # taken by somebody else's wait


def _crashed(how: str) -> Ending:
    text = f"the process {how}" if how.startswith("ended") else how
    return Ending("crashed", failure=Failure("ProcessDied", text))


class Cells:
    """The pool. `fds` are the files by which the store knows that this worker lives."""

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds = tuple(fds)
        self._idle: list[Cell] = []
        self._going: set[asyncio.Task[None]] = set()
        self._scarce = False
        """Descriptors or processes ran out once: keep none in reserve, others need them."""

    def take(self) -> Cell:
        while self._idle:
            cell = self._idle.pop()
            if cell.idle is not None:
                cell.idle.cancel()
            if cell.alive():
                return cell
            cell.close()
        try:
            return Cell(self._fds)
        except OSError:
            self._scarce = True
            raise

    def give_back(self, cell: Cell) -> None:
        if cell.spent or self._scarce:
            self._let_go(cell)
            return
        cell.idle = asyncio.get_running_loop().call_later(_IDLE, self._expire, cell)
        self._idle.append(cell)

    def _expire(self, cell: Cell) -> None:
        if cell in self._idle:
            self._idle.remove(cell)
            self._let_go(cell)

    def _let_go(self, cell: Cell) -> None:
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

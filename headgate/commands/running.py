"""Runs of commands in a worker: wardens from a pool, one scribe for all that they say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from headgate.commands.cell import CommandCell
from headgate.commands.ends import NotStarted
from headgate.commands.launch import Program, launched_by
from headgate.commands.scribe import Scribe
from headgate.commands.tape import Tape
from headgate.commands.warden import ProgramFrame
from headgate.hooks import Hooks
from headgate.stores.protocol import Store
from headgate.worker.attempt import Attempt
from headgate.worker.cells import Cells
from headgate.worker.execute import run_async
from headgate.worker.outcome import Ending, Stop


class Commands:
    """What a worker process needs to run commands. Lives in its event loop."""

    def __init__(self, store: Store, fds: Sequence[int]) -> None:
        self.cells = Cells(lambda: CommandCell(fds))
        self._scribe = Scribe(store)

    async def run(self, attempt: Attempt, cell: CommandCell, hooks: Hooks) -> Ending:
        """Run the attempt; returns when nothing of it is alive any more."""
        claimed = attempt.claimed
        with launched_by(AttemptLauncher(attempt, cell, self._scribe)):
            return await run_async(
                attempt.task, claimed.args, attempt.context(), hooks, claimed.errors
            )

    async def close(self) -> None:
        await self.cells.close()
        self._scribe.close()


def grace_of(attempt: Attempt, stop: Stop, worker: float) -> float:
    """Seconds between SIGTERM and SIGKILL. A command has its own for what is about itself;
    when its worker has to go, it has no longer than that."""
    command = attempt.task.command
    if command is None or stop.kind not in ("timeout", "cancel"):
        return worker
    return command.grace


def ends_with(attempt: Attempt, stop: Stop | None) -> bool:
    """Is a run that this order kills over, instead of going back into line?"""
    command = attempt.task.command
    kills = stop is not None and stop.kind == "shutdown"
    return kills and command is not None and command.over_when_killed


class AttemptLauncher:
    """Runs the command of one attempt in a cell."""

    def __init__(self, attempt: Attempt, cell: CommandCell, scribe: Scribe) -> None:
        self._attempt = attempt
        self._cell = cell
        self._scribe = scribe
        self._tape: Tape | None = None

    def facts(self) -> Mapping[str, float]:
        claimed = self._attempt.claimed
        return {
            "created_at": claimed.created_at,
            "ready_at": claimed.ready_at,
            "started_at": claimed.started_at,
        }

    async def run(self, program: Program) -> int:
        attempt = self._attempt
        tape = self._tape = self._scribe.open(attempt.token, program.command.max_output)
        try:
            code = await self._run(program, tape)
        finally:
            # Before the end is told: after that the store takes nothing from this attempt.
            await self._scribe.close_tape(tape)
        stop = attempt.stop
        foreign = stop is not None and stop.kind != "timeout" and not ends_with(attempt, stop)
        if code is None or (code != 0 and foreign):
            # Not its own end: why it was stopped is known to who stopped it.
            raise asyncio.CancelledError
        return code

    async def _run(self, program: Program, tape: Tape) -> int | None:
        attempt, cell = self._attempt, self._cell
        if attempt.stop is not None:
            return None
        frame = ProgramFrame(
            argv=list(program.argv),
            environment=program.environment,
            cwd=program.cwd,
            separate=program.command.separate_streams,
        )
        try:
            return await cell.run(
                frame,
                lambda stream, data: self._scribe.write(tape, stream, data),
                lambda: attempt.stop is not None,
            )
        except NotStarted:
            raise
        except BaseException:
            # Whatever happened to us, the command does not outlive the attempt.
            await cell.destroy()
            raise

    def last_line(self) -> str:
        return "" if self._tape is None else self._tape.last_line()

"""A warden of commands, seen from the worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence

from headgate import kernel
from headgate.commands.ends import NotStarted, exit_code
from headgate.commands.warden import ProgramFrame, RefusedFrame
from headgate.worker.cells import CELL_MARK, Cell
from headgate.worker.frames import DIED, OUT, REFUSED, RUN, pack

STREAMS = ("out", "err")
_NEXT_TRY = 0.2

Hear = Callable[[str, bytes], None]
"""Called with the stream and what was written to it."""


class CommandCell(Cell):
    """`fds` are the files by which the store knows that this worker lives."""

    def __init__(self, fds: Sequence[int]) -> None:
        super().__init__("headgate.commands.warden", fds)

    async def run(
        self, program: ProgramFrame, hear: Hear, stopped: Callable[[], bool]
    ) -> int | None:
        """Run the program; its exit code, when nothing of it is alive any more. None: it was
        told to stop before the machine had room for it."""
        program = _marked(program, self.mark)
        while True:
            await self.send(pack(RUN, json.dumps(program).encode()))
            while (frame := await self.next()) is not None:
                kind, payload = frame
                if kind == OUT:
                    hear(STREAMS[payload[0]], payload[1:])
                elif kind == DIED:
                    return exit_code(int(payload))
                elif kind == REFUSED:
                    break
            else:
                return exit_code(-signal.SIGKILL)  # somebody killed the warden, and so all of it
            refused: RefusedFrame = json.loads(payload)
            if not refused["scarce"]:
                raise NotStarted(refused["code"], refused["why"])
            # No process or memory is left for it, which is not the command's fault.
            await asyncio.sleep(_NEXT_TRY)
            if stopped():
                return None


def _marked(program: ProgramFrame, mark: str) -> ProgramFrame:
    """With the marks by which leftovers are found, whatever environment it asks for."""
    own = os.environ.get(kernel.WORKER_MARK)
    marks = {CELL_MARK: mark} if own is None else {CELL_MARK: mark, kernel.WORKER_MARK: own}
    return ProgramFrame(
        argv=program["argv"],
        environment={**program["environment"], **marks},
        cwd=program["cwd"],
        separate=program["separate"],
    )

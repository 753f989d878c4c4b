"""Isolated tasks, seen from the worker: a warden with a warm ward runs one at a time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate import kernel
from headgate.errors import Cancel, StaleAttempt, StoreError
from headgate.jobs import Failure
from headgate.threads import in_thread
from headgate.worker.attempt import Attempt
from headgate.worker.cells import Cell
from headgate.worker.frames import DATA, DIED, ENDED, RUN, pack
from headgate.worker.outcome import Ending, Stop
from headgate.worker.source import Source
from headgate.worker.ward import Answer, Run, Said, Told


class WardCell(Cell):
    """A warden with its ward. `fds` are the files by which the store knows that we live."""

    def __init__(self, fds: Sequence[int]) -> None:
        super().__init__("headgate.worker.warden", fds)
        self._said = msgspec.json.Decoder(Said)

    async def run(self, attempt: Attempt, source: Source) -> Ending:
        """Run the attempt; returns when nothing of it is alive any more."""
        told = Told(run=Run(attempt.claimed, source, attempt.granted_at))
        await self.send(pack(RUN, msgspec.json.encode(told)))
        while True:
            frame = await self.next()
            if frame is None:
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
        """The code is told first, then the process."""
        self.spawn(self._tell(Told(stop=stop.reason)))
        super().halt(stop, grace)

    # --- what the code asks for ---------------------------------------------------------------

    def _hear(self, attempt: Attempt, said: Said) -> None:
        if said.progress is not None:
            attempt.progress(*said.progress)
        elif said.followup is not None:
            attempt.followup(said.followup)
        elif said.call is not None:
            self.spawn(self._answer(attempt, said))

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

    async def _tell(self, told: Told) -> None:
        await self.send(pack(DATA, msgspec.json.encode(told)))

    async def load(self, source: Source) -> None:
        await self._tell(Told(load=source))


def _crashed(how: str) -> Ending:
    text = f"the process {how}" if how.startswith("ended") else how
    return Ending("crashed", failure=Failure("ProcessDied", text))

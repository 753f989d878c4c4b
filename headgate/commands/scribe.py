"""The scribe: writes what all commands of a worker say into the store, together.

A little at a time and not too often: a command that says something every millisecond costs
the store no more than one that says it ten times a second. When the store cannot be reached
the tapes go on within their bound, and what they kept is told as soon as it can.
"""

from __future__ import annotations

import asyncio
import logging
import random
from concurrent.futures import ThreadPoolExecutor

from headgate.backoff import grown, worth_telling
from headgate.commands.tape import Tape
from headgate.errors import StoreBusy, StoreUnavailable
from headgate.stores.protocol import Output, Store

log = logging.getLogger("headgate.worker")

EVERY = 0.1
"""Seconds between two writes, while there is something to write."""
PATIENCE = 30.0
"""Seconds for which the end of a run waits until the last of its output is stored."""
_MOST_AT_ONCE = 4 << 20
_LONGEST_BACKOFF = 2.0


class Scribe:
    """Lives in the worker's event loop; the store is called in a thread of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headgate-output")
        self._tapes: dict[int, Tape] = {}
        self._writing: asyncio.Task[None] | None = None
        self._urgent = asyncio.Event()
        self._told = asyncio.Event()
        """Set, and replaced, after each write."""
        self._last = 0.0
        self._failures = 0

    def open(self, token: int, most: int) -> Tape:
        """A tape for the output of this attempt."""
        tape = self._tapes[token] = Tape(token, most)
        return tape

    def write(self, tape: Tape, stream: str, data: bytes) -> None:
        tape.write(stream, data, self._loop.time())
        self._go()

    async def close_tape(self, tape: Tape) -> None:
        """Return when all of it is stored, or cannot be: the attempt is not ours any more, or
        the store was away for too long."""
        deadline = self._loop.time() + PATIENCE
        while self._tapes.get(tape.token) is tape and not tape.empty:
            self._go()
            self._urgent.set()
            told, left = self._told, deadline - self._loop.time()
            if left <= 0:
                log.error("the last of the output of attempt %d could not be stored", tape.token)
                break
            try:
                async with asyncio.timeout(left):
                    await told.wait()
            except TimeoutError:
                continue  # said above, at the next look
        self._tapes.pop(tape.token, None)

    def close(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
        self._thread.shutdown(wait=False)

    # --- writing -------------------------------------------------------------------------------

    def _go(self) -> None:
        if self._writing is None:
            self._writing = self._loop.create_task(self._write_all())

    async def _write_all(self) -> None:
        """Until there is nothing left to write; who writes later starts it again."""
        try:
            while any(not tape.empty for tape in self._tapes.values()):
                await self._rest(self._last + EVERY - self._loop.time())
                self._last = self._loop.time()
                await self._write_some()
        finally:
            # In the same step of the loop as the last look: nothing is written in between.
            self._writing = None

    async def _rest(self, seconds: float) -> None:
        if seconds > 0 and not self._urgent.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._urgent.wait()
            except TimeoutError:
                pass  # nobody was in a hurry
        self._urgent.clear()

    async def _write_some(self) -> None:
        chosen: list[Tape] = []
        outputs: list[Output] = []
        size = 0
        for tape in list(self._tapes.values()):
            if not tape.empty and size < _MOST_AT_ONCE:
                output = tape.batch(self._loop.time())
                size += sum(len(piece.data) for piece in output.pieces)
                chosen.append(tape)
                outputs.append(output)
        stale: frozenset[int] = frozenset()
        try:
            stale = await self._loop.run_in_executor(self._thread, self._store.put_output, outputs)
        except (StoreBusy, StoreUnavailable) as error:
            # Nothing was changed, or it may be told again: the batches stay as they are.
            self._failures += 1
            if worth_telling(self._failures):
                log.warning("the output of commands could not be stored (%s)", error)
            pause = grown(self._failures, EVERY, _LONGEST_BACKOFF)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            return
        except Exception:
            # Not the store's state but something that was sent: again it would fail again.
            log.exception("output of commands was refused by the store, and is lost")
        self._failures = 0
        for tape in chosen:
            tape.stored()
            if tape.token in stale:
                # The attempt was lost to others: what its command says now is nobody's.
                self._tapes.pop(tape.token, None)
        told, self._told = self._told, asyncio.Event()
        told.set()

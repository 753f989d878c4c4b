"""The outbox: what the store has to hear, kept until it has accepted it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headgate.errors import StoreBusy, StoreUnavailable, StoreVersion
from headgate.jobs import Failure, Finish, Progress, Refusal
from headgate.stores.protocol import Claim, Exchange, Exchanged
from headgate.worker.chains import Chains, Sent

log = logging.getLogger("headgate.worker")

Send = Callable[[Exchange], Awaitable[Exchanged]]


@dataclass(frozen=True, slots=True)
class Load:
    """What one round trip carries. What comes in later goes with the next."""

    finishes: dict[int, Finish]
    progress: dict[int, Progress]
    sent: Sent

    def exchange(self, worker: str, claim: Claim | None) -> Exchange:
        return Exchange(
            worker,
            finishes=tuple(self.finishes.values()),
            progress=tuple(self.progress.values()),
            passed=self.sent.passed,
            claim=claim,
        )


class Outbox:
    def __init__(self, chains: Chains) -> None:
        self._chains = chains
        self.finishes: dict[int, Finish] = {}
        self.progress: dict[int, Progress] = {}
        self.apart: dict[int, Finish] = {}
        """Ends with follow-ups of which nobody can tell yet whether they are to be stored: that
        depends on a transaction which somebody has open. They are told alone."""

    @property
    def empty(self) -> bool:
        return not self.finishes and not self.apart

    def set_apart(self, load: Load) -> bool:
        """The store was too busy for this load. What may wait for others' transactions must not
        make the rest wait with it; True if there was any."""
        found = [
            token
            for token, finish in load.finishes.items()
            if any(job.depends for job in finish.followups)
        ]
        for token in found:
            self.apart[token] = self.finishes.pop(token)
        return bool(found)

    def load(self) -> Load:
        return Load(dict(self.finishes), dict(self.progress), self._chains.send())

    def accepted(self, load: Load, stale: frozenset[int]) -> list[int]:
        """The tokens of attempts that run in slots which turned out not to be ours."""
        for token in load.finishes:
            del self.finishes[token]
        for token, said in load.progress.items():
            if self.progress.get(token) is said:
                del self.progress[token]
        return self._chains.confirmed(load.sent, stale)

    async def send_apart(
        self, load: Load, worker: str, send: Send
    ) -> Sequence[tuple[int, Refusal]]:
        """Something in this load cannot be stored at all. Send each finish alone; the one
        that fails again is told as a failure, so that it cannot hold up the others. Gives those
        that are to be finished anew, for what followed from them was refused."""
        self.progress.clear()
        refused: list[tuple[int, Refusal]] = []
        if load.sent.passed and not await self._send_starts(load, worker, send):
            return refused
        for token, finish in load.finishes.items():
            try:
                answer = await send(Exchange(worker, (finish,)))
            except (StoreBusy, StoreUnavailable, StoreVersion):
                break
            except Exception as error:
                # Whatever is wrong with it: it must not be sent for ever, nor hold up the others.
                text = f"its end ({finish.outcome}) cannot be stored: {type(error).__name__}"
                failure = Failure("HeadgateError", text)
                self.finishes[token] = Finish(token, "failed", "result", error=failure)
            else:
                del self.finishes[token]
                refused += answer.refused
        return refused

    async def _send_starts(self, load: Load, worker: str, send: Send) -> bool:
        """They come first: a finish alone would give slots back that others run in."""
        try:
            answer = await send(Exchange(worker, passed=load.sent.passed))
        except Exception:
            # They are kept, and told again with the next round trip.
            log.exception("what started could not be told to the store")
            return False
        self._chains.confirmed(load.sent, answer.stale)
        return True

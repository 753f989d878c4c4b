"""Slots that were handed on in a round trip of which the worker did not hear.

It goes on handing them from one job to the next, and still names the one under which it knew them
last. If that round trip was carried out after all, they are under another name by now: who started
in them since would be told that they are not its own, and the end of the one who has them in the
store would free them, while code runs in them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from headgate.stores.protocol import Exchange, Passed
from headgate.stores.relational.transaction import Transaction


class Handed:
    """Who was to take over the slots of whom, by round trips that were not heard of.

    >>> handed = Handed()
    >>> handed.unheard(Exchange("w", passed=[Passed(2, 1, 0.0)]))
    >>> handed.unheard(Exchange("w", passed=[Passed(3, 2, 0.0)]))
    >>> handed.names(1), handed.names(7), handed.names(None)
    ([1, 2, 3], [7], [])
    """

    def __init__(self) -> None:
        self._to: dict[int, int] = {}

    def unheard(self, exchange: Exchange) -> None:
        for one in exchange.passed:
            if one.owner is not None:
                self._to[one.owner] = one.token

    def heard(self, exchange: Exchange) -> None:
        """Nobody will name again whose end is known."""
        if self._to:
            self.forget([finish.token for finish in exchange.finishes])

    def forget(self, tokens: Collection[int]) -> None:
        ended = set(tokens)
        for owner, token in list(self._to.items()):
            # Who ended in slots that it had taken over: whose they were before is past as well.
            if owner in ended or token in ended:
                self._to.pop(owner, None)

    def names(self, owner: int | None) -> list[int]:
        """Under whose names the slots of this one may be, the first name first."""
        found = [] if owner is None else [owner]
        while found and (later := self._to.get(found[-1])) is not None:
            found.append(later)
        return found

    def concerns(self, exchange: Exchange) -> bool:
        return bool(self._to) and any(one.owner in self._to for one in exchange.passed)

    def owned_now(self, tx: Transaction, exchange: Exchange) -> Sequence[Passed]:
        """What the exchange says of starts, by the names under which the store knows the slots."""
        return [self._owned_now(tx, exchange.worker, one) for one in exchange.passed]

    def _owned_now(self, tx: Transaction, worker: str, passed: Passed) -> Passed:
        names = self.names(passed.owner)
        if len(names) < 2:
            return passed
        for name in reversed(names):
            own = tx.row(tx.sql.finish.mine, {"token": name, "worker": worker})
            if own is not None and not own["reserved"]:
                return replace(passed, owner=None if name == passed.token else name)
        return passed

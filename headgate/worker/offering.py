"""Slots that a worker has no use for go to others.

Short jobs follow each other through the slots of one process, which so keeps them for as long as
there is work. More slots do not make it faster when its event loop has no processor to spare, or
when all of them stand idle until the next round trip brings more jobs. Then it lets go of half of
those it has most of, and leaves them alone for a moment; unless it is nearly full with what it
runs, for then others have got what it had no room for. Where another worker takes them, both are
faster together; where none does, it takes them back. It offers less and less often, or slots would
go to and fro where all have enough.

It does the same, however much use it has for them, when another worker has said that it stands idle
for such jobs: else one machine would do all the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headgate.choice.ahead import groups_of, held_in
from headgate.worker.chains import Chains

BUSY = 0.85
"""Of one processor, used by the event loop and its round trips: none is left."""
IDLE = 0.5
"""Of the round trips, those at whose end nothing ran any more."""
FIRST = 0.1
LONGEST = 10.0
"""Seconds between two offers: at first, and after some."""
ALONE = 0.05
"""Seconds for which they are left alone: who sleeps has woken by then, and asked. Where nobody can
be woken, the time between two looks comes to it."""


class Offering:
    """`used()` tells how many seconds of a processor were used so far."""

    def __init__(
        self,
        chains: Chains,
        concurrency: int,
        clock: Callable[[], float],
        used: Callable[[], float],
    ) -> None:
        self._chains = chains
        self._concurrency = concurrency
        self._clock = clock
        self._used = used
        self._pause = FIRST
        self._since, self._used_then = clock(), used()
        self._trips = self._idle_trips = self._most = 0
        self._left: dict[str, int] = {}
        self._until = 0.0
        self.alone = ALONE
        """Seconds for which what is let go of is left alone."""
        self.wanted: frozenset[str] = frozenset()
        """Groups for whose jobs another worker stands idle."""

    def left(self) -> Mapping[str, int]:
        """By group, the units that a claim leaves free now."""
        if self._left and self._clock() >= self._until:
            self._left = {}
        return self._left

    def answered(self, running: int) -> None:
        """A round trip has ended, and so many attempts ran at that time."""
        self._trips += 1
        self._idle_trips += running == 0

    def consider(self) -> None:
        """Between two round trips: offer something, if it is time and of no use here."""
        self._most = max(self._most, sum(self._chains.users.values()))
        now = self._clock()
        passed = now - self._since
        if passed < self._pause:
            return
        used = self._used()
        busy = used - self._used_then > BUSY * passed
        idle = self._idle_trips > IDLE * self._trips
        self._since, self._used_then = now, used
        self._trips = self._idle_trips = 0
        most, self._most = self._most, 0
        if most == 0:
            self._pause = FIRST
        elif self.wanted or ((busy or idle) and most <= self._concurrency // 2):
            self._offer(now)

    def _offer(self, now: float) -> None:
        limited = {chain: n for chain, n in self._chains.users.items() if held_in(chain)}
        if self.wanted:
            limited = {c: n for c, n in limited.items() if not self.wanted.isdisjoint(groups_of(c))}
        chain = max(limited, key=limited.__getitem__, default="")
        count = limited.get(chain, 0) // 2
        if count:
            self._chains.lets_go = {chain: count}
            self._left = {group: count * units for group, units in held_in(chain)}
            # What runs in them now ends first.
            self._until = now + max(self._chains.pace.short.values(), default=0.0) + self.alone
            self._pause = min(LONGEST, 2 * self._pause)

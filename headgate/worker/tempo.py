"""How long round trips take of late, and what follows from that.

Where they are quick, little is taken along and what has ended is told at once. Where they are slow,
because the server is loaded or far away, each has to carry more.
"""

from __future__ import annotations

AHEAD = 16
"""Jobs reserved at once, for each that may run."""
AHEAD_MORE = 4
"""At most so many times as many, where a round trip takes longer than …"""
USUAL = 0.1
"""… so many seconds."""
GATHERING = 0.005
"""Seconds for which ends may wait for others, …"""
GATHERING_LONGEST = 0.02
"""… and where round trips are slow and the slots are in use again."""
SLOW = 0.004
"""Seconds from which on a round trip is worth waiting for more that it could carry."""
UNASKED = 2
"""Times that a round trip takes, between two of which one is only for what others did; at most …"""
UNASKED_LONGEST = 0.1
"""… so many seconds."""
FEW = 4
"""With less than one in so many of what runs, few have ended."""


class Tempo:
    """
    >>> tempo = Tempo(concurrency=10, ahead=0.1, longest_wait=0.5)
    >>> tempo.ahead_work, tempo.ahead_jobs, tempo.pause(ended=1, running=50)
    (0.1, 160, 0.0)
    >>> tempo.note(0.008)
    >>> tempo.unasked, tempo.gathering
    (0.002, 0.005)
    >>> for _ in range(100):
    ...     tempo.note(0.2)
    >>> round(tempo.ahead_work, 2), tempo.ahead_jobs, tempo.pause(ended=1, running=50)
    (0.25, 319, 0.005)
    >>> tempo.unasked, tempo.gathering
    (0.1, 0.02)
    """

    def __init__(self, concurrency: int, ahead: float, longest_wait: float) -> None:
        self._concurrency = concurrency
        self._ahead = ahead
        self._longest_wait = longest_wait
        self._took = 0.0
        """Seconds of a round trip, smoothed."""

    def note(self, seconds: float) -> None:
        """A round trip took so long."""
        self._took += (seconds - self._took) / 8

    @property
    def ahead_work(self) -> float:
        """Seconds of work to reserve behind each slot: enough to go on with until the round trip
        after the next is over, and no more than half of what it may wait at most."""
        return min(max(self._ahead, 2 * self._took), self._longest_wait / 2)

    @property
    def ahead_jobs(self) -> int:
        """How many may be reserved in all, to go on with while a round trip is under way."""
        slow = min(max(1.0, self._took / USUAL), AHEAD_MORE)
        return int(AHEAD * self._concurrency * slow)

    @property
    def unasked(self) -> float:
        """Seconds, while something runs here, before a round trip for which nothing has ended here:
        what ends meanwhile has to wait until that one is over, however little it was about."""
        return min(UNASKED * self._took, UNASKED_LONGEST)

    @property
    def gathering(self) -> float:
        """Seconds for which ends may wait that keep nobody waiting, since others follow already:
        round trips then take a third of the time, and leave the rest to the jobs."""
        return min(max(GATHERING, 2 * self._took), GATHERING_LONGEST)

    def pause(self, ended: int, running: int) -> float:
        """Seconds to wait for more before so many ends are told. What was started together ends
        together: a few that are out of step would otherwise make every other round trip one for
        themselves, while the many wait for it to end."""
        few = ended * FEW < running
        return min(self._took / 4, GATHERING) if few and self._took > SLOW else 0.0

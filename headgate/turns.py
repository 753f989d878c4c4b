"""Whose turn is it: decisions over plain data, without a store.

- `Rotation` is the fairness: which key's turn comes next, kept in the worker's memory.
- `ClaimState` is all that a worker remembers between two claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace


@dataclass(slots=True)
class Rotation:
    """The turns of one queue and priority: who was served last, who is owed a turn.

    Rotating *is* the fairness; nothing about it is shared between workers.
    """

    cursor: str | None = None
    """The turn served last. None: not started yet."""
    owed: list[str] = field(default_factory=list[str])
    """Turns put back because others had fewer jobs running: they come first next time."""
    lanes: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Per turn, the (band, lane) served last."""
    under_way: tuple[str, int] | None = None
    """A turn that has not had all its weight yet, and how much it had."""
    barren_from: str | None = None
    """Where a search that found nothing began; met again, the circle is complete."""

    def line_up(
        self, window: Sequence[str], running: Mapping[str, int], weights: Mapping[str, int]
    ) -> list[str]:
        """The window in the order to serve it: owed turns first, then by the circle; among
        them those with fewer jobs running in this worker, for their weight, before others."""
        owed = [turn for turn in self.owed if turn in set(window)]
        line = [*owed, *(turn for turn in window if turn not in set(owed))]
        line.sort(key=lambda turn: running.get(turn, 0) / max(1, weights.get(turn, 1)))
        if self.under_way is not None and self.under_way[0] in line:
            line.remove(self.under_way[0])
            line.insert(0, self.under_way[0])
        return line

    def settle(self, circle: Sequence[str], tried: set[str]) -> None:
        """A round is over: go on after the furthest turn tried, owe those passed by."""
        furthest = max((i for i, turn in enumerate(circle) if turn in tried), default=-1)
        if furthest >= 0:
            self.cursor = circle[furthest]
        passed = [turn for turn in circle[: furthest + 1] if turn not in tried]
        kept = [turn for turn in self.owed if turn not in tried and turn not in set(passed)]
        self.owed = (kept + passed)[-256:]

    def forget(self, turn: str) -> None:
        """The turn has no ready jobs: nothing is owed to it."""
        if turn in self.owed:
            self.owed.remove(turn)

    def remember_lane(self, turn: str, band: str, lane: str) -> None:
        self.lanes.pop(turn, None)
        self.lanes[turn] = (band, lane)
        if len(self.lanes) > 1024:  # oldest out: such a turn merely starts at its first lane
            self.lanes.pop(next(iter(self.lanes)))


Head = int | tuple[int, int]
"""What tells one head of a lane from the next: its place, or its place and its job."""


@dataclass(slots=True)
class ClaimState:
    """What a worker remembers from claim to claim. Losing it costs fairness for a moment,
    never exactness."""

    rotations: dict[tuple[str, int], Rotation] = field(
        default_factory=dict[tuple[str, int], Rotation]
    )
    queue_cursor: str | None = None
    """The queue served last."""
    queue_given: int = 0
    """How much of its weight that queue has had in this turn."""
    claims: int = 0
    unfinished: bool = False
    """The last claim's budget ended before its search did: the next one goes on."""
    barren: int = 0
    """How many such claims in a row found nothing to start."""
    passed_over: dict[str, tuple[Head, float]] = field(
        default_factory=dict[str, tuple[Head, float]]
    )
    """Lanes met and not served: lane → (its head, since when)."""
    watched_at: float = 0.0
    """When it was last looked at which lanes do not move."""
    seen: object = None
    """What the store said about limits and pauses in the last claim; see `Exchanged.recall`."""
    wanted: int = 1
    """How many jobs the last claims asked for, at most."""
    took: int = 0
    """How many they got, at most."""
    bands: int = 1
    """How many there were for this worker when it looked last."""
    reused: bool = False
    """The last claim was chosen from what an earlier one had seen."""
    emptied: bool = False
    """The last claim took the one job that stood in line."""
    refusals: int = 0
    """Claims in a row that others were quicker than."""
    opens: float | None = None
    """When the first rate opens that this search met shut, on the clock of its line."""
    idle_since: float | None = None
    """Since when nothing has run here, as far as that was looked at."""
    idle_said: float = 0.0
    """When that was last said to others."""
    idle_elsewhere: frozenset[str] = frozenset()
    """Groups of which this worker has several slots while another stands idle for them."""
    gives_way: str | None = None
    """The chain of this worker that is to leave a place to somebody who comes before it."""
    view: object = None
    """What the store saw at the end of the last round trip; see `Claim.fresh`."""

    def copy(self) -> ClaimState:
        """As it is now, whatever a claim does to this one: for a store whose claims may be undone
        and tried again. What is in its dictionaries is never changed in place but the turns."""
        rotations = {
            key: replace(turns, owed=list(turns.owed), lanes=dict(turns.lanes))
            for key, turns in self.rotations.items()
        }
        return replace(self, rotations=rotations, passed_over=dict(self.passed_over))

    def restore(self, saved: ClaimState) -> None:
        again = saved.copy()
        for one in fields(self):
            setattr(self, one.name, getattr(again, one.name))

    def rotation(self, queue: str, priority: int) -> Rotation:
        return self.rotations.setdefault((queue, priority), Rotation())

    def waited(self, lane: str, head: Head, now: float) -> tuple[float, float]:
        """For how long, and since when, this head of a lane has been passed over."""
        first, since = self.passed_over.get(lane, (head, now))
        if first != head:
            since = now
        self.passed_over[lane] = (head, since)
        if len(self.passed_over) > 4096:
            self.passed_over.pop(next(iter(self.passed_over)))
        return now - since, since


def share_out(
    room: int, weights: Sequence[int], first: int = 0, given: int = 0
) -> tuple[list[int], int, int]:
    """How many starts each queue gets in one round of a claim, beginning at `first`, which has
    had `given` of its weight before; then where that ends, for the next claim to go on.

    >>> share_out(5, [2, 1])
    ([4, 1], 0, 2)
    >>> share_out(1, [2, 1], first=1)
    ([0, 1], 1, 1)
    >>> share_out(1, [2, 1], first=0, given=1)
    ([1, 0], 0, 2)
    """
    shares = [0] * len(weights)
    i = first
    while True:
        part = min(max(1, weights[i] - given), room)
        shares[i] += part
        room -= part
        if room <= 0:
            return shares, i, given + part
        i, given = (i + 1) % len(weights), 0

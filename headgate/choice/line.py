"""What a choice sees of a store: the line of ready jobs, and the groups they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from headgate.claim import Grant, Group
from headgate.limits import Need


class Row(Protocol):
    """A ready job: at least `place`, `job`, `attempt`, `since` and `expires_at`."""

    def __getitem__(self, column: str, /) -> Any: ...


Lines = dict[str, dict[int, list[str]]]
"""What waits at all: queue → priority → bands, each in order."""


class LaneKey(NamedTuple):
    """Where a lane stands in line."""

    queue: str
    priority: int
    band: str
    turn: str
    lane: str

    @property
    def text(self) -> str:
        return "\x1f".join((self.queue, str(self.priority), self.band, self.turn, self.lane))

    def params(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "priority": self.priority,
            "band": self.band,
            "turn": self.turn,
            "lane": self.lane,
        }


class Taken(NamedTuple):
    """One job that was chosen."""

    key: LaneKey
    row: Row
    grant: Grant
    chain: str
    """What it holds, as one text; see `headgate.choice.ahead`."""
    reserved: bool = False
    """It waits for a slot of the same chain that this worker holds."""


class Reserving(Protocol):
    """The reservations of wide lanes."""

    def renew(self, lane: str) -> None: ...
    def reserve(self, lane: str, wanted: list[tuple[str, int]], place: int) -> None: ...
    def drop(self, lane: str) -> None: ...


class Line(Protocol):
    """The ready jobs in the order of their keys, as one claim looks at them."""

    now: float
    """The store's time."""
    boot: float
    """Seconds that no clock change moves."""
    lines: Lines

    @property
    def reserving(self) -> Reserving: ...
    def paused_queues(self) -> set[str]: ...
    def turns(
        self, queue: str, priority: int, band: str, after: str | None, limit: int
    ) -> tuple[Sequence[str], bool]:
        """The next turns of a band, after this one or from the start, and whether there are
        more behind them. None at all but more: they lie beyond what this line shows, and the
        claim ends here; the next one goes on."""
        ...

    def has_turn(self, queue: str, priority: int, band: str, turn: str) -> bool: ...
    def lanes(
        self, queue: str, priority: int, band: str, turn: str, after: str | None, limit: int
    ) -> Sequence[str]: ...
    def heads(self, key: LaneKey, after: int, limit: int) -> tuple[Sequence[Row], bool]:
        """The first jobs of a lane, after this place, up to so many; and whether there may be
        more behind them."""
        ...

    def first_of_band(self, queue: str, priority: int, band: str) -> Row | None:
        """With `turn` and `lane`, the first job of a band."""
        ...

    def take(
        self, key: LaneKey, rows: Sequence[Row], plan: Sequence[Need], *, reserved: bool
    ) -> None:
        """They are chosen: no later look of this claim finds them."""
        ...

    def expire(self, key: LaneKey, row: Row) -> None:
        """Its time to start is over: it leaves the line for good."""
        ...

    def group(self, name: str) -> Group: ...
    def load_ahead(self, groups: Iterable[str]) -> None:
        """These groups will be asked for."""
        ...

    def others_granted(self, group: str, key: LaneKey, since: float) -> bool:
        """Did other lanes than this one get units of the group after that time?"""
        ...

    def refused_others(self, groups: Iterable[str]) -> set[str]:
        """Of these groups, those of which other workers are in want."""
        ...

    def note_refused(self, groups: Iterable[str]) -> None:
        """This worker is in want of these groups."""
        ...

    def idle_others(self) -> frozenset[str]:
        """Groups for whose jobs another worker stands idle."""
        ...

    def note_idle(self, group: str) -> None:
        """This worker has nothing to run, and could run jobs of this group."""
        ...

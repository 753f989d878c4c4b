"""What somebody who watches is shown of many at once. Each of these reads is bounded, however many
jobs and keys there are: what was not counted or looked at is said, never left out in silence."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.jobs import JobRecord, State
from headgate.limits import Needs
from headgate.stores.protocol.limits import LimitRecord

LOOKED_AT = 5000
"""Jobs that one page of a search looks at."""


@dataclass(frozen=True, slots=True)
class LimitLoad:
    """A limit, or a group that operators said something about, and how much is asked of it."""

    limit: LimitRecord
    held: int
    """Units, over all keys of a keyed limit."""
    holders: int
    keys: int
    """Keys of it that somebody holds."""
    held_bounded: bool
    waiting: int
    """Jobs in line that need it, over all its keys."""
    waiting_bounded: bool
    oldest: float | None
    """Since when one of those that were counted is ready."""


@dataclass(frozen=True, slots=True)
class LanePlace:
    """Where a walk along the lanes of a band goes on."""

    queue: str
    priority: int
    band: str
    turn: str
    lane: str


@dataclass(frozen=True, slots=True)
class LaneRecord:
    """A lane that waits: its place, what its jobs need, how many there are."""

    place: LanePlace
    task: str
    needs: Needs
    job: str
    """The id of its first job."""
    since: float
    """Since when that is ready."""
    waiting: int
    bounded: bool


@dataclass(frozen=True, slots=True)
class LaneWalk:
    """Lanes that need a limit, from a place on. `key`: those of one key only, where the lanes are
    in its order; else all, and who asks picks."""

    limit: str | None = None
    key: str | None = None
    after: LanePlace | None = None
    lanes: int = 100
    counted: int = 200
    """So many jobs of a lane are counted at most."""


@dataclass(frozen=True, slots=True)
class LanePage:
    lanes: tuple[LaneRecord, ...]
    after: LanePlace | None
    """Where to go on; None: that was the end."""


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """A group that somebody holds."""

    group: str
    held: int
    holders: int
    since: float
    """Since when the first of them holds it."""


@dataclass(frozen=True, slots=True)
class GroupPage:
    groups: tuple[GroupLoad, ...]
    after: str | None


@dataclass(frozen=True, slots=True)
class LimitPage:
    """Limits, and some of the groups with something of their own."""

    limits: tuple[LimitRecord, ...]
    """Those that programs and files declare, all of them; on a page that goes on from another,
    none."""
    groups: tuple[LimitRecord, ...]
    """By name: keys that somebody gave a value, spoke of or holds."""
    after: str | None
    """Where to go on; None: that was the end. There may be more even if there are no groups."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Jobs that ended in a span of time, each kind counted up to a bound."""

    succeeded: int
    failed: int
    cancelled: int
    bounded: bool


@dataclass(frozen=True, slots=True)
class EndRecord:
    """The end of a job, with what statistics need."""

    job: str
    task: str
    queue: str
    turn: str
    state: State
    due_at: float
    started_at: float | None
    at: float
    groups: tuple[tuple[str, int], ...]
    """(group, units) that its last attempt held."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some of the jobs that were asked for. A search looks at so many jobs and no further."""

    jobs: tuple[JobRecord, ...]
    after: str | None
    """Where to go on; None: that was the end. There may be more even if this page is empty."""

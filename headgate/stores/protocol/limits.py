"""Slots, and limits with what was said about them."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.rates import Pace


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A slot for something that is not a job, under a lease of its own."""

    group: str
    holder: str
    worker: str
    lease: float
    limit: int | None = None
    """Counts only where nothing else declares a value."""
    carries_limit: bool = False
    units: int = 1
    waited: float = 0.0
    """Seconds for which this holder has been asking: after some, what becomes free is kept
    for it, or it would wait for as long as jobs do."""

    def granted(self, group: str, slot: int, token: int, at: float) -> SlotRecord:
        """The slot that was given for it."""
        return SlotRecord(
            group=group,
            slot=slot,
            token=token,
            holder=self.holder,
            worker=self.worker,
            units=self.units,
            since=at,
            expires_at=at + self.lease,
            job=False,
        )


@dataclass(frozen=True, slots=True)
class SlotRecord:
    group: str
    slot: int
    token: int
    holder: str
    """The job's id, or the `task_id` of a slot taken by hand."""
    worker: str
    units: int
    since: float
    expires_at: float | None
    """None: lives as long as its worker."""
    job: bool
    overdue: bool = False
    worker_id: str | None = None
    lease_ends: float | None = None
    """What `why` adds: the end of its own lease, else of its worker's, where there are any."""


@dataclass(frozen=True, slots=True)
class Word:
    """What an operator said about a group: a limit, a pause or a weight."""

    value: int | None
    by: str
    reason: str
    at: float
    until: float | None = None
    """When it ends by itself, by the store's clock; None: when it is taken back."""


@dataclass(frozen=True, slots=True)
class Words:
    """All that operators said about one group, and that is in force."""

    group: str
    limit: Word | None = None
    pause: Word | None = None
    weight: Word | None = None


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """A limit, or a group with something of its own (override, holders)."""

    group: str
    value: int | None
    source: str
    """`override`, `file`, `code`, `carried`, or `none` when nothing declares a value."""
    paused: bool
    held: int
    holders: int
    paused_by: str = ""
    declared: int | None = None
    reserved_by: str | None = None
    keyed: bool = False
    """Its value is for each key apart: the holders are in the groups of its keys."""
    disagree: tuple[tuple[str, int | None], ...] = ()
    """(declarer, value) of live declarations that differ from the value in force."""
    override: Word | None = None
    """The operator's word that the value comes from, where it does."""
    pause: Word | None = None
    weight: Word | None = None
    orphaned: bool = False
    """It was declared, and no worker that is there declares it any more."""
    pace: Pace | None = None
    """It is a rate: `held` counts the starts of its period, and nobody holds them."""
    opens_at: float | None = None
    """Of a rate that lets nothing start now: when it lets one unit start."""


@dataclass(frozen=True, slots=True)
class LimitChange:
    """An operator's word on a limit or group; every change is recorded.

    It may set or reset the value, pause or resume, and set or reset the weight, all at once.
    What is set ends by itself after `lasts` seconds, or at `until`, if either is given.
    """

    group: str
    value: int | None = None
    set_value: bool = False
    reset: bool = False
    paused: bool | None = None
    by: str = ""
    reason: str = ""
    weight: int | None = None
    reset_weight: bool = False
    lasts: float | None = None
    until: float | None = None
    said: Word | None = None
    """Who said it first, when and why, where `by` repeats it from a file."""

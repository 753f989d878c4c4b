"""One round trip of a worker: what it tells and asks for, what it is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headgate.jobs import Claimed, Finish, Progress, Refusal
from headgate.turns import ClaimState

AHEAD = 0.1
"""Seconds of work that may be reserved behind each slot, as a rule."""


@dataclass(frozen=True, slots=True)
class QueueShare:
    """How much of one queue a worker may take in this claim."""

    name: str
    room: int
    weight: int = 1
    left: int | None = None
    """How many more of it may run, were there places; None: no bound of its own."""


@dataclass(frozen=True, slots=True)
class Chain:
    """What a worker has of jobs that hold exactly the same groups."""

    places: int
    """Attempts that run, each with slots that the next may take over."""
    waiting: float = 0.0
    """Seconds of work reserved behind them."""


class Passed(msgspec.Struct, frozen=True, gc=False):
    """A job reserved ahead has started, in the slots of an attempt of this worker's that
    ended. `owner` is the attempt under which the store still knows those slots; None: the
    store need not move them, for there are none or this attempt has ended too."""

    token: int
    owner: int | None
    ago: float
    """Seconds since it started."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker with room asks for work. It gets only tasks that it knows."""

    room: int
    tasks: frozenset[str]
    state: ClaimState
    """The turns, kept in the worker's memory between its claims."""
    queues: tuple[QueueShare, ...] | None = None
    """None: all queues, with the same weight."""
    other_queues: bool = False
    """Queues that are not among `queues` are served too, with weight 1."""
    weights: Mapping[str, int] = field(default_factory=dict[str, int])
    running: Mapping[str, int] = field(default_factory=dict[str, int])
    """Jobs running in this worker, by fairness key."""
    spread: frozenset[str] = frozenset()
    """Tasks that use a processor each (sync code in threads): of their groups a claim takes
    only an equal part at once, so that they do not all end up in one process."""
    ageing: float | None = None
    left: Mapping[str, int] = field(default_factory=dict[str, int])
    """By group, units that are left free for other workers, if there are so many."""
    served: frozenset[str] | None = None
    """Of a one-of only these limits are picked here; None: any of them."""
    ahead: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds that a job of this task takes at most as a rule, for short tasks only: the next
    of them may be reserved ahead, to run through slots that this worker holds, one after the
    other, without a round trip in between."""
    ahead_room: int = 0
    """How many more jobs may be reserved ahead."""
    ahead_work: float = AHEAD
    """Seconds of work that may be reserved behind each slot."""
    ahead_keyed: int | None = None
    """How many of those may belong to a key; None: all."""
    chains: Mapping[str, Chain] = field(default_factory=dict[str, Chain])
    """By `Claimed.chain`, what this worker runs and has reserved."""
    news: bool = False
    """Something may have changed since the last look: the one behind this is a whole one."""
    fresh: bool = True
    """Look at the line as it is now. False: nothing was heard of since the last round trip, so
    what the store saw at its end will do."""
    again: bool = False
    """The worker is busy and comes back soon: the store may look at the line for it now."""
    hops: int = 2000
    """The budget: how many lanes may be looked at in one claim."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One round trip of a worker: what ended, how far others are, what may start next."""

    worker: str
    finishes: Sequence[Finish] = ()
    progress: Sequence[Progress] = ()
    passed: Sequence[Passed] = ()
    """What was reserved ahead and has started since the last round trip; comes before the
    finishes."""
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class Exchanged:
    stale: frozenset[int] = frozenset()
    """Tokens whose finish or progress changed nothing: those attempts are not ours any more."""
    refused: tuple[tuple[int, Refusal], ...] = ()
    """Tokens whose finish changed nothing because a job that was to follow did not fit under a
    cap. The attempt still runs: it is to be finished again, as failed."""
    claimed: tuple[Claimed, ...] = ()
    more: bool = False
    """The budget ended before all lanes were looked at: ask again at once."""
    wake_in: float | None = None
    """Seconds until something is due that this worker may be able to run."""
    cancels: tuple[tuple[int, str], ...] = ()
    """(token, reason) of this worker's attempts that somebody wants stopped."""
    unrouted: bool = False
    """Jobs of tasks that this worker knows wait for their stamp: call `unrouted`."""
    recall: bool = False
    """Something changed (a limit, a pause): give back what is reserved and has not started."""
    dead: bool = False
    """This worker was declared dead (or never registered): nothing was claimed, every finish
    was stale. It must stop its code and end."""

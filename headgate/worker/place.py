"""One place for a worker process under the keeper: who stands there, and how it is doing."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Literal

from headgate.backoff import grown
from headgate.worker.channel import Channel
from headgate.worker.lease import Lease
from headgate.worker.runs import Run

Stage = Literal["empty", "starting", "running", "stopping", "cleaning"]

_LIVED_WELL = 10.0
"""Seconds after which the death of a worker process no longer counts as a failed start."""
_SLOWEST_RESTART = 10.0


@dataclass(slots=True)
class Place:
    """The worker process of one place. Each process has a worker id of its own."""

    index: int
    name: str = ""
    """What people see of its worker."""
    stage: Stage = "empty"
    worker: str = ""
    pid: int = 0
    channel: Channel | None = None
    fds: tuple[int, ...] = ()
    registered: bool = False
    lease: Lease | None = None
    seen: float = 0.0
    """When its process was last known to live."""
    overran: list[tuple[Run, float]] = field(default_factory=list[tuple[Run, float]])
    """The attempts that ran in it after its lease, and until when for certain."""
    told: str = "fresh"
    """What the worker was last told about its lease."""
    started: float = 0.0
    ready: float | None = None
    """Since when it may claim."""
    silent_after: float = 30.0
    stalled: bool = False
    shown: str = "alive"
    """How the store shows it to others."""
    telling: bool = False
    orders: list[str] = field(default_factory=list[str])
    """What came while it was starting, when it hears nothing but that it may start."""
    kill_at: float | None = None
    code: int | None = None
    """The exit code, while it is being cleaned up after."""
    bye: str = ""
    """Why it ended of its own accord, told by itself; or that it could not begin, which is told."""
    start_at: float | None = 0.0
    """When to start the next process here; None: never again."""
    failures: int = 0

    @property
    def living(self) -> bool:
        """Does its process exist (or wait to be reaped)?"""
        return self.stage in ("starting", "running", "stopping")

    def begin(self, pid: int, channel: Channel, now: float, silent_after: float) -> None:
        self.stage = "starting"
        self.pid = pid
        self.channel = channel
        self.started = now
        self.silent_after = silent_after
        self.start_at = None

    def new_worker(self) -> str:
        """An id that was never used and never will be again."""
        self.worker = uuid.uuid4().hex
        return self.worker

    def again(self, now: float) -> None:
        """Plan the next process: at once, or later and later while each dies at once."""
        if now - self.started > _LIVED_WELL:
            self.failures = 0
        self.start_at = now + grown(self.failures, 0.05, _SLOWEST_RESTART)
        self.failures += 1

    def clear(self) -> None:
        self.stage = "empty"
        self.worker = ""
        self.pid = 0
        self.channel = None
        self.fds = ()
        self.registered = False
        self.lease = None
        self.seen = 0.0
        self.overran = []
        self.told = "fresh"
        self.ready = None
        self.stalled = False
        self.shown = "alive"
        self.telling = False
        self.orders = []
        self.kill_at = None
        self.code = None
        self.bye = ""

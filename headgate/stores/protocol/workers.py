"""Workers, as they register and are shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NewWorker:
    """A worker process about to start. Its id is never used again once it is dead."""

    id: str
    name: str
    keeper: str = ""
    host: str = ""
    pid: int = 0
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    concurrency: int = 1
    lease: float = 30.0
    serves: tuple[str, ...] | None = None
    """Of a one-of it picks only these limits; None: any."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A registered worker lives while `fds` are open in any process (or its lease lasts)."""

    id: str
    fds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    id: str
    name: str
    keeper: str
    host: str
    pid: int
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    started_at: float
    state: str
    """`alive`, `stalled`, `stopping` or `dead` (its slots are being taken back)."""
    running: int
    lease_ends: float | None = None
    serves: tuple[str, ...] | None = None

"""From the lines of an execution log to attempts, each with the spans in which it held."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headgate.checker.given import Kill


class Line(msgspec.Struct, frozen=True):
    """One event as a job wrote it."""

    ev: str
    job: str
    token: int
    t: float
    attempt: int = 0
    groups: dict[str, int] = {}
    pid: int = 0
    ppid: int = 0
    worker: str = ""
    task: str = ""
    turn: str = ""
    granted: float | None = None
    """Not before this time did the engine decide that it may start."""
    ok: bool | None = None
    error: str = ""


@dataclass(slots=True, eq=False)
class Attempt:
    """One execution: from its start line to its end line, or to the end of its process."""

    job: str
    number: int
    token: int
    groups: dict[str, int]
    start: float
    pid: int
    ppid: int
    worker: str
    task: str
    turn: str
    granted: float | None = None
    spans: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """When it held its groups: all the time, but for what it released in between."""
    end: float | None = None
    ok: bool = False
    gone: Kill | None = None
    """The end of its process, where that was told and came after this attempt's own."""

    @property
    def kill(self) -> Kill | None:
        """What ended it, when it wrote no end itself."""
        return self.gone if self.end is None else None

    def cut_off_before(self, t: float) -> bool:
        """Did its process die before `t`, perhaps before it could report how this ended?"""
        return self.gone is not None and (self.gone.sent or self.gone.t) <= t

    def grant_age(self, t: float, most: float) -> float:
        """Seconds before `t` in which the decision fell that lets it hold from `t` on, at most
        `most`; all of those where that is not known, as when it takes its groups again."""
        if self.granted is None or t != self.start:
            return most
        return min(most, max(0.0, t - self.granted))

    @property
    def until(self) -> float:
        if self.end is not None:
            return self.end
        return self.kill.t if self.kill else math.inf

    @property
    def surely_until(self) -> float:
        """Up to here it ran for certain; between here and `until` nobody can say."""
        if self.end is None and self.kill and self.kill.sent is not None:
            return max(self.start, min(self.kill.sent, self.kill.t))
        return self.until


@dataclass(slots=True)
class Run:
    attempts: list[Attempt]
    broken: list[str]
    """Lines that cannot be read, ends without a start, starts without an end."""


def read(log: Iterable[str | os.PathLike[str] | Line], kills: list[Kill]) -> Run:
    broken: list[str] = []
    lines = sorted(_lines(log, broken), key=lambda line: line.t)
    run = Run([], broken)
    open_: dict[tuple[str, int], Attempt] = {}
    held_since: dict[tuple[str, int], float | None] = {}
    for line in lines:
        _apply(line, run, open_, held_since)
    for attempt in run.attempts:
        attempt.gone = _kill_of(attempt, kills)
    for key, attempt in open_.items():
        if attempt.kill is None:
            broken.append(
                f"job {attempt.job}, token {attempt.token}: started at {attempt.start:.6f} in"
                f" process {attempt.pid} and never ended, and no kill explains it"
            )
        since = held_since[key]
        if since is not None:
            attempt.spans.append((since, max(since, attempt.until)))
    return run


def _lines(log: Iterable[str | os.PathLike[str] | Line], broken: list[str]) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(Line)
    for source in log:
        if isinstance(source, Line):
            yield source
            continue
        path = Path(source)
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.strip():
                    continue
                try:
                    yield decoder.decode(raw)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    broken.append(f"{path.name}, line {number} cannot be read: {error}")


def _apply(
    line: Line,
    run: Run,
    open_: dict[tuple[str, int], Attempt],
    held_since: dict[tuple[str, int], float | None],
) -> None:
    key = (line.job, line.token)
    where = f"job {line.job}, token {line.token}"
    if line.ev == "start":
        if key in open_:
            # Kept as two attempts that overlap: `lives` reports the job as doubled.
            other = open_.pop(key)
            since = held_since.pop(key)
            if since is not None:
                other.spans.append((since, math.inf))
            run.broken.append(f"{where}: started again before its first start ended")
        attempt = Attempt(
            line.job, line.attempt, line.token, line.groups, line.t, line.pid, line.ppid,
            line.worker, line.task, line.turn, line.granted,
        )  # fmt: skip
        run.attempts.append(attempt)
        open_[key] = attempt
        held_since[key] = line.t
        if any(units < 1 for units in line.groups.values()):
            run.broken.append(f"{where}: holds fewer than 1 unit: {line.groups}")
        return
    attempt = open_.get(key)
    if attempt is None:
        run.broken.append(f"{where}: {line.ev!r} at {line.t:.6f} without a start before it")
        return
    since = held_since[key]
    if line.ev == "end":
        attempt.end, attempt.ok = line.t, line.ok is not False
        if since is not None:
            attempt.spans.append((since, line.t))
        del open_[key], held_since[key]
    elif line.ev == "release" and since is not None:
        attempt.spans.append((since, line.t))
        held_since[key] = None
    elif line.ev == "retake" and since is None:
        held_since[key] = line.t
    else:
        run.broken.append(f"{where}: unexpected event {line.ev!r} at {line.t:.6f}")


def _kill_of(attempt: Attempt, kills: list[Kill]) -> Kill | None:
    """The first kill after it that took its process, its parent or its worker."""
    after = attempt.start if attempt.end is None else attempt.end
    fitting = [
        kill
        for kill in kills
        if kill.t >= after
        and (
            (kill.pid is not None and kill.pid in (attempt.pid, attempt.ppid))
            or (kill.worker is not None and kill.worker == attempt.worker)
        )
    ]
    return min(fitting, key=lambda kill: kill.t, default=None)

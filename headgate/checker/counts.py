"""Was a group ever over its limit? Every start is judged against what was held then."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from headgate.checker.log import Attempt
from headgate.checker.values import Values

ENDS, PASSES, STARTS = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Over:
    """A start that put a group over its limit."""

    group: str
    t: float
    held: int
    """Units held with this start."""
    limit: int
    job: str
    token: int
    holders: tuple[str, ...]
    """The jobs that held units already."""

    def __str__(self) -> str:
        others = ", ".join(self.holders[:5]) + (", …" if len(self.holders) > 5 else "")
        return (
            f"{self.group}: {self.held} of {self.limit} units held from {self.t:.6f} on, when job"
            f" {self.job} (token {self.token}) started while {others or 'nobody'} ran"
        )


@dataclass(slots=True)
class Counted:
    over: list[Over] = field(default_factory=list[Over])
    unjudged: set[str] = field(default_factory=set[str])
    """Groups without a known value."""
    slack_mattered: int = 0
    kill_mattered: int = 0


def count(attempts: list[Attempt], values: Values, slack: float) -> Counted:
    """Go through all starts and ends in order of time and sum what each group holds."""
    counted = Counted()
    held: defaultdict[str, dict[Attempt, int]] = defaultdict(dict)
    for t, kind, attempt in _points(attempts):
        for group, units in attempt.groups.items():
            if kind == ENDS:
                held[group].pop(attempt, None)
                continue
            _judge(counted, values, slack, group, t, attempt, units, held[group])
            if kind == STARTS:
                held[group][attempt] = units
    return counted


def _points(attempts: list[Attempt]) -> list[tuple[float, int, Attempt]]:
    """Starts and ends in order. At the same instant ends come first, as the engine may have
    freed a slot and granted it again within one tick of the clock; for the same reason a span
    of no length stands between them and is gone at once."""
    points: list[tuple[float, int, Attempt]] = []
    for attempt in attempts:
        for begin, end in attempt.spans:
            if end > begin:
                points += [(begin, STARTS, attempt), (end, ENDS, attempt)]
            else:
                points.append((begin, PASSES, attempt))
    points.sort(key=lambda point: point[:2])
    return points


def _judge(
    counted: Counted,
    values: Values,
    slack: float,
    group: str,
    t: float,
    attempt: Attempt,
    units: int,
    holders: dict[Attempt, int],
) -> None:
    # A job that was granted ahead starts a little later, in slots that are held all the time:
    # it is judged by what was in force from its grant on, but no further back than the slack.
    highest = values.highest(group, t, attempt.grant_age(t, slack))
    if highest is None:
        counted.unjudged.add(group)
        return
    now = values.at(group, t)
    total = units + sum(holders.values())
    if total <= highest:
        counted.slack_mattered += now is not None and total > now
        return
    certain = units + sum(u for other, u in holders.items() if other.surely_until > t)
    if certain <= highest:
        counted.kill_mattered += 1
        return
    counted.over.append(
        Over(
            group,
            t,
            certain,
            int(highest),
            attempt.job,
            attempt.token,
            tuple(other.job for other in holders if other.surely_until > t),
        )
    )

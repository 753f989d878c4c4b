"""Runs that never happened: valid schedules of jobs under limits, for Hypothesis."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from hypothesis import strategies as st

from headgate.checker import Job, Kill, Line

LIMITS: dict[str, int | None] = {"api": 3, "tenant": 2, "gpu": 7, "free": None}

NEEDS = st.sampled_from(
    [
        {},
        {"api": 1},
        {"tenant/a": 1},
        {"tenant/b": 1, "api": 1},
        {"gpu": 3},
        {"gpu": 5, "tenant/a": 1},
        {"free": 1, "gpu": 1},
    ]
)
ENDING = st.sampled_from(["well", "well", "well", "badly", "killed"])


@dataclass
class Run:
    """A valid run, as the checker is told of it."""

    lines: list[Line] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    def told(self) -> dict[str, object]:
        return {"limits": LIMITS, "jobs": self.jobs, "kills": self.kills}


def value_of(group: str) -> int | None:
    return LIMITS[group.partition("/")[0]]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A greedy engine over drawn jobs: it starts whatever fits, at once."""
    run = Run()
    wanted = draw(
        st.lists(
            st.tuples(NEEDS, st.lists(ENDING, max_size=2), st.floats(0, 2)), min_size=1, max_size=25
        )
    )
    waiting: list[tuple[int, list[str]]] = []
    for number, (needs, endings, _) in enumerate(wanted):
        run.jobs.append(Job(f"job-{number}", submitted=0.0, groups=needs, lost=2))
        again = [ending for ending in endings if ending != "well"]
        waiting.append((number, [*again, "well"]))
    held: dict[str, int] = {}
    running: list[tuple[float, int, int, list[str]]] = []
    now, token = 0.0, 0
    while waiting or running:
        for entry in list(waiting):
            number, endings = entry
            needs = wanted[number][0]
            if any(
                (value := value_of(g)) is not None and held.get(g, 0) + u > value
                for g, u in needs.items()
            ):
                continue
            waiting.remove(entry)
            token += 1
            for group, units in needs.items():
                held[group] = held.get(group, 0) + units
            run.lines.append(_line("start", number, token, needs, now))
            heapq.heappush(running, (now + draw(st.floats(0.01, 3)), token, number, endings))
        now, ended, number, endings = heapq.heappop(running)
        needs = wanted[number][0]
        for group, units in needs.items():
            held[group] -= units
        ending, *rest = endings
        if ending == "killed":
            run.kills.append(Kill(now, pid=1000 + ended, sent=now - 0.005))
        else:
            ok = ending == "well"
            run.lines.append(_line("end", number, ended, needs, now, ok=ok))
        if ending != "well":
            waiting.append((number, rest))
    return run


def _line(
    ev: str, number: int, token: int, groups: dict[str, int], t: float, ok: bool | None = None
) -> Line:
    return Line(
        ev, f"job-{number}", token, t, groups=groups, pid=1000 + token, turn=str(number % 3), ok=ok
    )

"""How many units of each group were held at once, by what surely ran.

Under fire nobody can say how long a killed process still ran: the checker's own peaks count it up
to the moment it was seen gone, when somebody else may have been granted its place. Here it counts
up to the moment the signal was sent, so a peak is never more than what was really held.
"""

from __future__ import annotations

from collections import Counter

from headgate.checker import Report

ENDS, STARTS = range(2)


def peaks(report: Report) -> Counter[str]:
    """The most units of each group at once; under no name those of all jobs that need none."""
    points: list[tuple[float, int, str, int]] = []
    for attempt in report.attempts:
        for begin, end in attempt.spans:
            sure = max(begin, min(end, attempt.surely_until))
            for group, units in (attempt.groups or {"": 1}).items():
                points += [(begin, STARTS, group, units), (sure, ENDS, group, units)]
    held: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for _, kind, group, units in sorted(points):
        held[group] += units if kind == STARTS else -units
        most[group] = max(most[group], held[group])
    return most

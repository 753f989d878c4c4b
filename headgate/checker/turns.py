"""Who got the starts? Shares by turn, while all turns had work."""

from __future__ import annotations

from collections import defaultdict

from headgate.checker.given import Job
from headgate.checker.log import Attempt


def shares(attempts: list[Attempt], jobs: list[Job]) -> dict[str, dict[str, int]]:
    """Starts by turn, for every limit that several turns shared: from the last turn's first
    submit to the first turn's last start."""
    submitted = {job.job: job.submitted for job in jobs if job.submitted is not None}
    starts: defaultdict[str, defaultdict[str, list[Attempt]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for attempt in sorted(attempts, key=lambda a: a.start):
        for name in {group.partition("/")[0] for group in attempt.groups}:
            starts[name][attempt.turn].append(attempt)
    found: dict[str, dict[str, int]] = {}
    for name, turns in starts.items():
        if len(turns) < 2:
            continue
        begin = max(min(submitted.get(a.job, a.start) for a in own) for own in turns.values())
        end = min(own[-1].start for own in turns.values())
        found[name] = {
            turn: sum(begin <= a.start <= end for a in own) for turn, own in turns.items()
        }
    return found

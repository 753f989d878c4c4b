"""The checker: judges a run from the log that its jobs wrote, and from nothing else.

It shares no code with the engine. It is given the execution log (`headgate.execlog`), the
limits in force over time and, where known, what was submitted and what was killed; it says
where a group was over its limit, which jobs were lost or ran twice without cause, and how
well each limit was used while work waited for it.

>>> report = check(["run.log"], limits={"tenant": 2, "gpu": 24})      # doctest: +SKIP
>>> report.ok, report.over, report.lost                               # doctest: +SKIP
(True, [], [])
>>> print(report.text())                                              # doctest: +SKIP

On the command line: `python -m headgate.checker run.log --limits limits.json`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from headgate.checker.counts import Over, count
from headgate.checker.given import Change, Job, Kill
from headgate.checker.lives import Doubled, Lost, TokenFault, follow
from headgate.checker.log import Attempt, Line, read
from headgate.checker.report import Report
from headgate.checker.turns import shares
from headgate.checker.usage import Usage, use
from headgate.checker.values import Values

__all__ = [
    "Attempt",
    "Change",
    "Doubled",
    "Job",
    "Kill",
    "Line",
    "Lost",
    "Over",
    "Report",
    "TokenFault",
    "Usage",
    "check",
]

SLACK = 1.0
"""A start is judged by the highest value in force since its grant, where the log tells when
that was, but only as far back as this many seconds."""


def check(
    log: Iterable[str | os.PathLike[str] | Line],
    *,
    limits: Mapping[str, int | None],
    changes: Iterable[Change | tuple[float, str, int | None]] = (),
    jobs: Iterable[Job | str] | None = None,
    kills: Iterable[Kill] = (),
    room: int | None = None,
    slack: float = SLACK,
) -> Report:
    """Judge a run.

    `log`: files, or lines already read. `limits`: the value of each limit (or group) at the
    beginning; `changes`: `(t, name or group, value)` after it. Note a raise before asking for
    it and a lowering after it is granted, then only a real fault is reported. `jobs`: all that
    was submitted; without it nothing can be found lost. `kills`: processes that were seen
    gone. `room`: how many jobs all workers together can run; use is not judged while all of
    it is taken.

    >>> check([], limits={}).ok
    True
    """
    told = [change if isinstance(change, Change) else Change(*change) for change in changes]
    values = Values(limits, told)
    run = read(log, list(kills))
    counted = count(run.attempts, values, slack)
    submitted = None if jobs is None else [Job(j) if isinstance(j, str) else j for j in jobs]
    lives = follow(run.attempts, submitted)
    return Report(
        attempts=run.attempts,
        over=counted.over,
        lost=lives.lost,
        doubled=lives.doubled,
        tokens=lives.tokens,
        broken=[*run.broken, *lives.ghosts],
        usage=use(run.attempts, values, submitted or [], room),
        shares=shares(run.attempts, submitted or []),
        unjudged=counted.unjudged,
        jobs=len(submitted) if submitted is not None else len({a.job for a in run.attempts}),
        slack=slack,
        slack_mattered=counted.slack_mattered,
        kill_mattered=counted.kill_mattered,
        explained=lives.explained,
    )

"""Places under caps: what a job that counts takes, and gives back.

A cap is exact because each place is one row with a key of its own, and not by a count. Who holds
a place is not told when it stops to count: whether it does is asked when somebody wants the place
(is the holder over? does it run?), so a job without caps has nothing to do with any of this, and
no end of a job, however it comes about, can leave a place behind. That places of ended jobs are
cleared here saves a search later, no more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.jobs import CapRule, CapUse
from headgate.stores.relational.transaction import Transaction

HELD = "\x01held"
"""Under this name, which no task has, stands in `unrouted` who waits for another to leave."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that a cap counts."""

    group: str
    rule: CapRule
    cap: int
    when_full: str
    seconds: float = 0.0


def rules_of(caps: Iterable[CapUse]) -> list[Rule]:
    """In the one order in which everybody takes places, so that no two wait for each other."""
    rules: list[Rule] = []
    for cap in caps:
        if cap.max_total is not None:
            rules.append(Rule(cap.group, "total", cap.max_total, cap.when_full))
        if cap.max_waiting is not None:
            rules.append(Rule(cap.group, "waiting", cap.max_waiting, cap.when_full))
        if cap.unique_for is not None:
            rules.append(Rule(cap.group, "period", 1, cap.when_full, cap.unique_for))
    return sorted(rules, key=lambda rule: (rule.group.encode(), rule.rule, rule.cap))


def to_text(caps: Sequence[CapUse]) -> str | None:
    """The rules as they are kept with the job."""
    if not caps:
        return None
    cells = [[r.group, r.rule, r.cap, r.when_full, r.seconds] for r in rules_of(caps)]
    return json.dumps(cells, ensure_ascii=False, separators=(",", ":"))


def from_text(text: str | None) -> list[Rule]:
    cells: list[Any] = json.loads(text or "[]")
    return [Rule(*cell) for cell in cells]


def clear(tx: Transaction, jobs: Sequence[str]) -> None:
    """These are over: nobody need look them up to know that their places are free."""
    tx.run(tx.sql.caps.clear, {"jobs": json.dumps(jobs)})
    tx.ring("room")


def count_again(tx: Transaction, job: str, caps: str | None) -> None:
    """The job waits once more (a retry, an attempt given back or lost, a second life): it counts,
    and nothing refuses it. Where somebody took its place meanwhile it stands above the cap, and
    moves down before the next place is given out."""
    rules = [rule for rule in from_text(caps) if rule.rule != "period"]
    if not rules:
        return
    # Locked where many write at once: a row that is being taken over is not ours any more.
    rows = tx.rows(tx.sql.caps.own, {"job": job})
    own = {(row["grp"], row["rule"]) for row in rows}
    for rule in rules:
        if (rule.group, rule.rule) not in own:
            tx.run(tx.sql.caps.append, {"grp": rule.group, "rule": rule.rule, "job": job})

"""What the checker found, as data and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.checker.counts import Over
from headgate.checker.lives import Doubled, Lost, TokenFault
from headgate.checker.log import Attempt
from headgate.checker.usage import Usage

SHOWN = 10
TELLING = 20
"""Fewer starts than this say nothing about shares."""


@dataclass(slots=True)
class Report:
    """The verdict on a run. `ok` is true when nothing at all was found.

    >>> check([], limits={}).text()                    # doctest: +SKIP
    'ok: 0 jobs, 0 attempts, 0 groups, 0 over limit, 0 lost, 0 doubled'
    """

    attempts: list[Attempt]
    over: list[Over]
    lost: list[Lost]
    doubled: list[Doubled]
    tokens: list[TokenFault]
    broken: list[str]
    """What makes the log itself doubtful."""
    usage: dict[str, Usage]
    shares: dict[str, dict[str, int]]
    """Starts by turn, of every limit that several turns shared."""
    unjudged: set[str]
    """Groups in the log of which no value is known: nothing can be said about them."""
    jobs: int
    slack: float
    slack_mattered: int
    """Starts that only the highest value in the second before them allows."""
    kill_mattered: int
    """Starts between the sending of a kill and the moment the process was seen gone."""
    explained: int
    """Attempts that ended with a killed process."""

    @property
    def ok(self) -> bool:
        return not (self.over or self.lost or self.doubled or self.tokens or self.broken)

    @property
    def groups(self) -> int:
        """How many groups were held at all."""
        return len({group for attempt in self.attempts for group in attempt.groups})

    def text(self) -> str:
        """The whole report, in words."""
        lines = [
            f"{'ok' if self.ok else 'NOT OK'}: {self.jobs} jobs, {len(self.attempts)} attempts,"
            f" {self.groups} groups, {len(self.over)} over limit, {len(self.lost)} lost,"
            f" {len(self.doubled)} doubled"
        ]
        for title, found in (
            ("over limit", self.over),
            ("lost", self.lost),
            ("doubled", self.doubled),
            ("tokens that do not grow", self.tokens),
            ("doubtful in the log", self.broken),
        ):
            lines += _listed(title, found)
        lines += self._remarks()
        lines += [_use(usage) for _, usage in sorted(self.usage.items())]
        lines += [
            _shares(name, turns)
            for name, turns in sorted(self.shares.items())
            if sum(turns.values()) >= TELLING
        ]
        return "\n".join(lines)

    def _remarks(self) -> list[str]:
        lines: list[str] = []
        if self.slack_mattered:
            lines.append(
                f"{self.slack_mattered} starts were allowed only by a value that was in force"
                f" in the {self.slack:g} s before them"
            )
        if self.kill_mattered:
            lines.append(f"{self.kill_mattered} starts fell between a kill and its effect")
        if self.explained:
            lines.append(f"{self.explained} attempts ended with a killed process")
        if self.unjudged:
            names = ", ".join(sorted(self.unjudged)[:SHOWN])
            lines.append(f"no value is known for {len(self.unjudged)} groups: {names}")
        return lines


def _listed(title: str, found: Sequence[object]) -> list[str]:
    if not found:
        return []
    lines = [f"{title}:", *(f"  {item}" for item in found[:SHOWN])]
    if len(found) > SHOWN:
        lines.append(f"  … and {len(found) - SHOWN} more")
    return lines


def _use(usage: Usage) -> str:
    groups = f" over {usage.groups} groups" if usage.groups > 1 else ""
    line = f"limit {usage.name}: {usage.starts} starts{groups}, at most {usage.peak} at once"
    if usage.ratio is None:
        return line
    return f"{line}, {usage.ratio:.1%} of what fits used in {usage.contended:.1f} s of waiting work"


def _shares(name: str, turns: dict[str, int]) -> str:
    total = sum(turns.values())
    ranked = sorted(turns.items(), key=lambda item: -item[1])
    text = ", ".join(f"{turn or '(none)'} {n / total:.0%}" for turn, n in ranked[:SHOWN])
    more = f" and {len(ranked) - SHOWN} more" if len(ranked) > SHOWN else ""
    return f"turns on {name}: {total} starts while all had work: {text}{more}"

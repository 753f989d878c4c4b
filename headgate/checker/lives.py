"""Was a job lost, or run twice without cause? Every job is followed through its attempts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from headgate.checker.given import Job
from headgate.checker.log import Attempt


@dataclass(frozen=True, slots=True)
class Lost:
    """A submitted job that did not become what it had to."""

    job: str
    detail: str

    def __str__(self) -> str:
        return f"job {self.job}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Doubled:
    """A job that ran again without cause, or twice at the same time."""

    job: str
    detail: str

    def __str__(self) -> str:
        return f"job {self.job}: {self.detail}"


@dataclass(frozen=True, slots=True)
class TokenFault:
    """A later attempt whose token is not greater than the one before."""

    job: str
    earlier: int
    later: int

    def __str__(self) -> str:
        return f"job {self.job}: token {self.later} started after token {self.earlier}"


@dataclass(slots=True)
class Lives:
    lost: list[Lost] = field(default_factory=list[Lost])
    doubled: list[Doubled] = field(default_factory=list[Doubled])
    tokens: list[TokenFault] = field(default_factory=list[TokenFault])
    ghosts: list[str] = field(default_factory=list[str])
    explained: int = 0
    """Attempts that ended with a killed process."""


def follow(attempts: list[Attempt], jobs: list[Job] | None) -> Lives:
    lives = Lives(explained=sum(a.kill is not None for a in attempts))
    by_job: defaultdict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_job[attempt.job].append(attempt)
    for own in by_job.values():
        own.sort(key=lambda a: a.start)
        _order(own, lives)
    if jobs is not None:
        known: set[str] = set()
        for job in jobs:
            if job.job in known:
                lives.ghosts.append(f"job {job.job} stands twice in the list of jobs")
            known.add(job.job)
            _outcome(job, by_job.get(job.job, []), lives)
        lives.ghosts += [
            f"job {job} ran and was never submitted" for job in by_job if job not in known
        ]
    return lives


def _order(own: list[Attempt], lives: Lives) -> None:
    latest = own[0]
    for earlier, later in pairwise(own):
        if later.token <= earlier.token:
            lives.tokens.append(TokenFault(later.job, earlier.token, later.token))
        if earlier.until > latest.until:
            latest = earlier
        if later.start < latest.surely_until:
            lives.doubled.append(
                Doubled(
                    later.job,
                    f"token {later.token} started at {later.start:.6f} while token"
                    f" {latest.token} ran (until {latest.until:.6f})",
                )
            )
        elif earlier.ok and not earlier.cut_off_before(later.start):
            lives.doubled.append(
                Doubled(
                    later.job,
                    f"token {later.token} started at {later.start:.6f} after token"
                    f" {earlier.token} had ended well at {earlier.until:.6f}",
                )
            )


def _outcome(job: Job, own: list[Attempt], lives: Lives) -> None:
    well = any(a.ok for a in own)
    if job.expect == "succeeded" and not well:
        lives.lost.append(Lost(job.job, _what_happened(own)))
    elif job.expect == "failed" and not own:
        lives.lost.append(Lost(job.job, "was to fail, and never started"))
    elif job.expect in ("failed", "cancelled", "unrun") and well:
        lives.lost.append(Lost(job.job, f"ended well, {job.expect} was expected"))
    elif job.expect == "unrun" and own:
        lives.lost.append(Lost(job.job, "was not to run, and started"))
    killed = sum(a.kill is not None for a in own)
    # The attempt that used up the allowance is lost too; only then does the job fail.
    if killed > job.lost + (not well):
        lives.doubled.append(
            Doubled(job.job, f"lost {killed} attempts with killed processes, {job.lost} allowed")
        )


def _what_happened(own: list[Attempt]) -> str:
    if not own:
        return "was submitted and never started"
    last = own[-1]
    ending = "was killed" if last.kill else "never ended" if last.end is None else "ended badly"
    return f"never ended well: the last of {len(own)} attempts (token {last.token}) {ending}"

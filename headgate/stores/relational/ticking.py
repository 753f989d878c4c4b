"""Ticks: each is recorded once, together with the job that it becomes.

Any number of processes tick at once and nobody leads. What makes a tick exactly one is that the
row of its schedule is locked while it is decided (others pass it over), that nothing is done unless
the schedule is still as the ticker saw it, and in the end the primary key of `ticks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from headgate.errors import StoreError
from headgate.jobs import NewJob, Submitted
from headgate.schedules.template import tick_of
from headgate.stores.protocol import (
    Due,
    ScheduleSpec,
    Ticking,
    TickOutcome,
    TickRecord,
)
from headgate.stores.relational import merging
from headgate.stores.relational.events import record
from headgate.stores.relational.scheduling import names_text, not_found, read_spec, to_record
from headgate.stores.relational.transaction import Row, Transaction

Tx = TypeVar("Tx", bound=Transaction)
Submit = Callable[[Tx, Sequence[NewJob]], Sequence[Submitted]]


def due(tx: Transaction, limit: int, without: frozenset[str]) -> Due:
    params = {"now": tx.now, "limit": limit, "without": names_text(sorted(without))}
    rows = tx.rows(tx.sql.schedules.due, params)
    next_at = tx.value(tx.sql.schedules.next, {"now": tx.now})
    return Due(tx.now, tuple(to_record(row, []) for row in rows), next_at)


@dataclass(slots=True)
class _Hand:
    """One schedule while its ticks are decided."""

    ticking: Ticking
    spec: ScheduleSpec
    waiting: str | None = None
    """The run that has not started, if there is one."""
    active: str | None = None
    """A run that is not over."""
    records: list[TickRecord] = field(default_factory=list[TickRecord])
    jobs: list[NewJob] = field(default_factory=list[NewJob])
    kept: set[str] = field(default_factory=set[str])
    """Those of them that stand for one tick each, and for no other."""

    def decide(self, now: float, known: set[float]) -> None:
        for tick in self.ticking.ticks:
            if tick.at in known:
                continue  # the clock was set back: it has been, and is not again
            if tick.job is None:
                outcome, job = "missed", None
            else:
                outcome, job = self._become(tick.job, keep=tick.keep)
            what = cast("TickOutcome", outcome)
            through, count = tick.through, tick.count
            self.records.append(TickRecord(self.spec.name, tick.at, what, job, now, through, count))

    def _become(self, job: NewJob, *, keep: bool = False) -> tuple[str, str]:
        if keep and not self.spec.skip_if_running:
            self.kept.add(job.id)
            self.jobs.append(job)
            return "run", job.id
        # The run that waits is held where it is, so it starts after the moment of this tick and
        # stands for it too.
        if self.waiting is not None and not self.spec.pile_up:
            return "merged", self.waiting
        if self.active is not None and self.spec.skip_if_running:
            return "skipped", self.active
        self.jobs.append(job)
        self.waiting = self.active = job.id
        return "run", job.id


def tick(tx: Tx, tickings: Sequence[Ticking], submit: Submit[Tx]) -> list[TickRecord]:
    hands = _locked(tx, tickings)
    if not hands:
        return []
    # In statements after the one that locked: what they see is all that was done before.
    _see_runs(tx, hands)
    known = _known(tx, hands)
    for hand in hands.values():
        hand.decide(tx.now, known.get(hand.spec.name, set()))
    jobs = [job for hand in hands.values() for job in hand.jobs]
    done = dict(zip((job.id for job in jobs), submit(tx, jobs), strict=True)) if jobs else {}
    for hand in hands.values():
        _keep(tx, hand, done)
    return [found for hand in hands.values() for found in hand.records]


def _locked(tx: Transaction, tickings: Sequence[Ticking]) -> dict[str, _Hand]:
    """Those that are as they were seen, locked."""
    wanted = {ticking.schedule: ticking for ticking in tickings}
    hands: dict[str, _Hand] = {}
    for row in tx.rows(tx.sql.schedules.lock, {"names": names_text(sorted(wanted))}):
        ticking = wanted[row["name"]]
        seen = row["next_at"] if row["planned"] else None
        # Somebody else may have ticked it, changed it or paused it between the look of this
        # ticker and the lock: then its ticks are not ours any more.
        if not row["paused"] and row["digest"] == ticking.digest and seen == ticking.expected:
            hands[row["name"]] = _Hand(ticking, read_spec(row["spec"]))
    return hands


def _see_runs(tx: Transaction, hands: dict[str, _Hand]) -> None:
    waiting: dict[str, str] = {}
    for row in tx.rows(tx.sql.schedules.open_runs, {"names": names_text(sorted(hands))}):
        hand, job = hands[row["schedule"]], row["job"]
        if row["state"] == "over":
            tx.run(tx.sql.schedules.drop_run, {"schedule": row["schedule"], "job": job})
            continue
        hand.active = job
        if row["state"] == "waiting" and not hand.spec.pile_up:
            waiting[job] = row["schedule"]
    # A claim that is under way is not seen: it would take a run from under this tick, begun before
    # it. So each run is held in its place until our commit, or, if it cannot be, counts as begun.
    held: dict[str, list[str]] = {}
    can_start = merging.hold(tx, list(waiting))
    for job in can_start:
        held.setdefault(waiting[job], []).append(job)
    if held:
        tx.ring("work")  # who wanted one meanwhile has passed it over
    for name, jobs in held.items():
        # What waits for a retry, maybe for hours, does not take over what can start now.
        first, *others = sorted(filter(can_start.__getitem__, jobs)) or sorted(jobs)
        hands[name].waiting = first
        # One came back into line while a tick had hold of the other.
        merging.merge(tx, name, first, others)


def _known(tx: Transaction, hands: dict[str, _Hand]) -> dict[str, set[float]]:
    firsts = [hand.ticking.ticks[0].at for hand in hands.values() if hand.ticking.ticks]
    known: dict[str, set[float]] = {}
    if firsts:
        params = {"names": names_text(sorted(hands)), "since": min(firsts)}
        for row in tx.rows(tx.sql.schedules.known_ticks, params):
            known.setdefault(row["schedule"], set()).add(row["at"])
    return known


def _keep(tx: Transaction, hand: _Hand, done: dict[str, Submitted]) -> None:
    name = hand.spec.name
    hand.records = [_settled(found, done) for found in hand.records]
    if hand.records:
        tx.many(tx.sql.schedules.add_tick, [_cells(found) for found in hand.records])
    runs = [found for found in hand.records if found.outcome == "run"]
    # What is kept for itself is nobody's to merge: it is not among the runs that one looks at.
    counted = [found.job for found in runs if found.job not in hand.kept]
    if _counts_runs(hand.spec) and counted:
        tx.many(tx.sql.schedules.add_run, [{"schedule": name, "job": job} for job in counted])
    ticks = hand.ticking.ticks
    last = ticks[-1] if ticks else None
    tx.run(
        tx.sql.schedules.move,
        {
            "name": name,
            "next_at": hand.ticking.next_at,
            "last_at": None if last is None else last.through or last.at,
            "last_run_at": runs[-1].at if runs else None,
            "last_job": runs[-1].job if runs else None,
        },
    )
    missed = [found for found in hand.records if found.outcome == "missed"]
    if missed:
        first, end = missed[0], missed[-1]
        record(
            tx, "schedule_missed", name, first=first.at, last=end.through or end.at,
            count=sum(found.count for found in missed),
        )  # fmt: skip


def _counts_runs(spec: ScheduleSpec) -> bool:
    """Does it matter whether its runs are over?"""
    return spec.skip_if_running or not spec.pile_up


def _settled(found: TickRecord, done: dict[str, Submitted]) -> TickRecord:
    """What the submit said: a cap of the task may have refused the job, or met another."""
    result = done.get(found.job or "")
    if result is None or (result.refused is None and not result.existing):
        return found
    outcome: TickOutcome = "refused" if result.refused is not None else "merged"
    job = result.refused.existing if result.refused is not None else result.id
    return TickRecord(found.schedule, found.at, outcome, job, found.recorded_at)


def _cells(found: TickRecord) -> dict[str, Any]:
    return {
        "schedule": found.schedule,
        "at": found.at,
        "outcome": found.outcome,
        "job": found.job,
        "recorded_at": found.recorded_at,
        "through": found.through,
        "count": found.count,
        "who": found.by,
    }


def run_now(tx: Tx, name: str, job: NewJob, by: str, submit: Submit[Tx]) -> TickRecord:
    """A tick of somebody's own, at the moment that the job tells."""
    row = tx.row(tx.sql.schedules.lock_one, {"name": name})
    if row is None:
        raise not_found(name)
    said = tick_of(job.options)
    if said is None or said[0] != name:
        raise StoreError(f"the job is not one of schedule {name!r}; make it from its template")
    hand = _Hand(Ticking(name, "", None, None), read_spec(row["spec"]))
    _see_runs(tx, {name: hand})
    outcome, id = hand._become(job)
    found = TickRecord(name, said[1], cast("TickOutcome", outcome), id, tx.now, by=by)
    if hand.jobs:
        found = _settled(found, {job.id: submit(tx, hand.jobs)[0]})
        found = TickRecord(name, said[1], found.outcome, found.job, tx.now, by=by)
    tx.run(tx.sql.schedules.add_tick, _cells(found))
    if found.outcome == "run":
        if _counts_runs(hand.spec):
            tx.run(tx.sql.schedules.add_run, {"schedule": name, "job": found.job})
        tx.run(tx.sql.schedules.ran, {"name": name, "at": found.at, "job": found.job})
    record(tx, "schedule_run_now", name, by, outcome=found.outcome, job=found.job)
    return found


def last(tx: Transaction, name: str, limit: int) -> list[TickRecord]:
    rows: Sequence[Row] = tx.rows(tx.sql.schedules.ticks, {"name": name, "limit": limit})
    return [
        TickRecord(
            row["schedule"], row["at"], row["outcome"], row["job"], row["recorded_at"],
            row["through"], row["count"], row["who"],
        )
        for row in rows
    ]  # fmt: skip

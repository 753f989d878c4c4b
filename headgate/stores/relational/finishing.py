"""The end of an attempt: fenced by its token, whole in one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from headgate.jobs import Failure, Finish, NewJob, Progress, Refusal, Submitted
from headgate.rates import RATE_SLOT
from headgate.stores.protocol import Passed
from headgate.stores.relational import capping, merging, moves, succession
from headgate.stores.relational.events import record
from headgate.stores.relational.transaction import Row, Transaction

Submit = Callable[[Transaction, Sequence[NewJob]], Sequence[Submitted]]
"""Stores the jobs that follow from an attempt, in the transaction that ends it."""


def pass_on(tx: Transaction, worker: str, passed: Sequence[Passed]) -> set[int]:
    """What was reserved ahead has started, in the slots of attempts that ended; the tokens
    that are not this worker's any more are stale.

    Comes before the finishes of the same round trip: they delete the slots that are still
    under their token, and by then these are under the token of who uses them now.
    """
    return {one.token for one in passed if not pass_one(tx, worker, one)}


def pass_one(tx: Transaction, worker: str, passed: Passed) -> bool:
    own = tx.row(tx.sql.finish.mine, {"token": passed.token, "worker": worker})
    if own is None:
        return False
    if not own["reserved"]:
        return True  # told before, and the answer was lost: it runs in its slots already
    at, slots = tx.now - max(0.0, passed.ago), own["slots"]
    if passed.owner is not None:
        owner = tx.row(tx.sql.finish.mine, {"token": passed.owner, "worker": worker})
        # The fence on the other side: an owner that was declared lost has given its slots
        # away, and who took them over has none.
        if owner is None:
            return False
        slots = owner["slots"]
        # The end that `extend_lease` gave them was for the attempt before.
        tx.run(
            tx.sql.finish.pass_slots,
            {"token": passed.token, "owner": passed.owner, "at": at, "slots": slots},
        )
    tx.run(tx.sql.finish.start_reserved, {"token": passed.token, "at": at, "slots": slots})
    return True


def finish_all(
    tx: Transaction, worker: str, name: str, finishes: Sequence[Finish], submit: Submit,
    refused: dict[int, Refusal] | None = None,
) -> set[int]:  # fmt: skip
    """Finish each attempt that is still this worker's; the tokens of the others are stale.
    `refused` gets those whose follow-ups did not fit under a cap: they go on running."""
    stale: set[int] = set()
    for finish in finishes:
        if not any(job.caps for job in finish.followups):
            if not finish_one(tx, worker, name, finish, submit):
                stale.add(finish.token)
            continue
        tx.run("SAVEPOINT followups")
        freed = tx.freed.copy()
        try:
            if not finish_one(tx, worker, name, finish, submit):
                stale.add(finish.token)
        except FollowUpRefused as error:
            # All or nothing: neither the end of the attempt nor any job that follows from it.
            tx.undo("followups")
            tx.freed.clear()
            tx.freed.update(freed)
            if refused is not None:
                refused[finish.token] = error.refusal
        tx.run("RELEASE SAVEPOINT followups")
    return stale


class FollowUpRefused(Exception):
    """A job that was to follow from an attempt did not fit under a cap."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.group)
        self.refusal = refusal


def finish_one(tx: Transaction, worker: str, name: str, finish: Finish, submit: Submit) -> bool:
    running = tx.row(tx.sql.finish.running, {"token": finish.token})
    # The fence: an attempt that was declared lost has no row here any more, and its job
    # may be running again under a higher token. Its late word changes nothing.
    if running is None or running["worker"] != worker:
        return False
    job, attempt, outcome = running["job"], running["attempt"], finish.outcome
    # Looked up by a statement of its own, after the one that locked the attempt: who cancels
    # a running job holds that lock, so by now the word is either here or comes too late.
    cancelled = tx.value(tx.sql.finish.cancelled, {"job": job})
    leave(tx, running)
    if running["reserved"] and outcome in ("cancelled", "returned"):
        give_back(tx, running, finish.reason if outcome == "cancelled" else cancelled)
        return True
    if cancelled is not None and outcome in ("retry", "snoozed", "interrupted", "returned"):
        # Somebody cancelled it while it ran: it does not come back.
        archive(tx, running, name, "cancelled", cancelled, finish.error)
        moves.conclude(tx, job, "cancelled", cancelled, attempt=attempt)
        _left(tx, running, over=True)
        return True
    if outcome == "returned":
        give_back(tx, running, None)
        return True
    if outcome in ("succeeded", "failed", "cancelled"):
        moves.conclude(
            tx, job, outcome, finish.reason,
            result=finish.result, error=moves.error_text(finish.error), attempt=attempt,
            asked=cancelled is not None, last=_last(running, name, outcome),
        )  # fmt: skip
    else:
        archive(tx, running, name, outcome, finish.reason, finish.error)
        again_at = tx.now + max(0.0, finish.delay)
        if outcome == "interrupted":
            moves.back(tx, job, attempt)
            merging.came_back(tx, job)
        elif outcome == "retry":
            moves.schedule(tx, job, again_at, attempt, keeps_place=True, reason="retry")
        else:
            moves.schedule(tx, job, again_at, attempt, keeps_place=False, reason="snoozed")
    _left(tx, running, over=outcome in ("succeeded", "failed", "cancelled"))
    if finish.followups:
        for done in submit(tx, finish.followups):
            if done.refused is not None:
                raise FollowUpRefused(done.refused)
    return True


def _left(tx: Transaction, running: Row, *, over: bool) -> None:
    """What the end of an attempt means to caps, for jobs that have any."""
    if running["caps"] is None:
        return
    if over:
        capping.clear(tx, [running["id"]])
    else:
        capping.count_again(tx, running["id"], running["caps"])
    if succession.waits(tx):
        succession.settle(tx)


def leave(tx: Transaction, running: Row, *, lost: bool = False) -> None:
    """The attempt runs no more: give its slots back.

    Slots of a *lost* attempt that was given a lease of its own (`extend_lease`) count until
    that ends, though the worker is gone.
    """
    token = running["token"]
    tx.run(tx.sql.finish.delete_running, {"token": token})
    if running["slots"] != "[]":
        params = {"token": token, "slots": running["slots"], "now": tx.now}
        if lost:
            ends = {"boot": tx.boot, "boot_id": tx.boot_id}
            tx.run(tx.sql.finish.keep_extended_slots, {**params, **ends})
            gone = tx.run(tx.sql.finish.free_lost_slots, params).rowcount
        else:
            gone = tx.run(tx.sql.finish.free_slots, params).rowcount
        # None: they were passed on, and somebody runs in them.
        if gone:
            cells = json.loads(running["slots"])
            tx.freed.update({group: units for group, slot, units in cells if slot != RATE_SLOT})


def give_back(tx: Transaction, running: Row, cancelled: str | None) -> None:
    """The attempt never started: as if it had not been granted, unless somebody cancelled it."""
    job, attempt = running["job"], running["attempt"] - 1
    if cancelled is not None:
        moves.conclude(tx, job, "cancelled", cancelled, attempt=attempt)
    else:
        moves.back(tx, job, attempt, since=running["ready_at"])
        merging.came_back(tx, job)
    _left(tx, running, over=cancelled is not None)


def archive(
    tx: Transaction, running: Row, worker: str, outcome: str, reason: str, error: Failure | None
) -> None:
    """Keep the attempt: start, end, worker, groups, error. The one that ends its job stands
    with the end of the job instead, where all that is told of both is the same."""
    tx.run(
        tx.sql.finish.insert_attempt,
        {
            **_last(running, worker, outcome),
            "job": running["job"],
            "attempt": running["attempt"],
            "ended_at": tx.now,
            "reason": reason,
            "error": moves.error_text(error),
        },
    )


def _last(running: Row, worker: str, outcome: str) -> dict[str, Any]:
    return {
        "token": running["token"],
        "outcome": "error" if outcome in ("failed", "retry") else outcome,
        "worker": worker,
        "started_at": running["started_at"],
        "slots": running["slots"],
    }


def lose(
    tx: Transaction,
    token: int,
    worker: str,
    reason: str,
    started: frozenset[int] | None = None,
) -> None:
    """The attempt is lost with its worker: the job goes back, or fails as lost. What was
    reserved ahead goes back unspent when it is known that it is not among the `started`."""
    running = tx.row(tx.sql.finish.running, {"token": token})
    if running is None:
        return
    job, attempt = running["job"], running["attempt"]
    cancelled = tx.value(tx.sql.finish.cancelled, {"job": job})
    if running["reserved"] and started is not None and token not in started:
        leave(tx, running)
        give_back(tx, running, cancelled)
        return
    leave(tx, running, lost=True)
    archive(tx, running, worker, "lost", reason, None)
    record(tx, "attempt_lost", running["id"], worker, token=token, reason=reason)
    over = True
    if cancelled is not None:
        moves.conclude(tx, job, "cancelled", cancelled, attempt=attempt)
    elif (
        tx.value(tx.sql.finish.count_attempts, {"job": job, "outcome": "lost"})
        > running["max_lost"]
    ):
        message = f"lost with its worker {running['max_lost'] + 1} times, last: {reason}"
        moves.conclude(tx, job, "failed", "lost", error=moves.plain_error(message), attempt=attempt)
    else:
        over = False
        moves.back(tx, job, attempt)
        merging.came_back(tx, job)
    _left(tx, running, over=over)


def report_progress(tx: Transaction, worker: str, reports: Sequence[Progress]) -> set[int]:
    stale: set[int] = set()
    for report in reports:
        params = {
            "fraction": report.fraction,
            "text": report.text,
            "token": report.token,
            "worker": worker,
        }
        if tx.run(tx.sql.finish.progress, params).rowcount == 0:
            stale.add(report.token)
    return stale

"""Attempts whose code ran on after they were lost: more than the limit may have run then."""

from __future__ import annotations

import time
from collections.abc import Callable

from headgate.jobs import AttemptRecord
from headgate.stores.relational import inspecting
from headgate.stores.relational.events import record
from headgate.stores.relational.transaction import Transaction

KIND = "attempt_overran"
SHOWN_FOR = 86400.0
"""Seconds for which `doctor` names an over-run."""
_MARK = "; its code ran on"


def since(ago: float) -> Callable[[], float]:
    """How long ago something is that was `ago` seconds before this call; 0 stays 0.

    A transaction may have to be waited for. Without that wait in the account, an end from before
    the loss would look like one from after it.
    """
    asked = time.monotonic()
    return lambda: ago and ago + time.monotonic() - asked


def over_ran(
    tx: Transaction, job: str, token: int, worker: str, ended: Callable[[], float]
) -> bool:
    """Record it, unless it is recorded already or the attempt was not lost by then. `ended`: how
    long ago, as `since` gives it."""
    ago = ended()
    found = next((a for a in inspecting.attempts(tx, job) if a.token == token), None)
    if found is None:
        # Somebody else has run the job to its end since, and nothing is kept of it. Then only
        # code that still ran when its worker heard of the loss has over-run for certain.
        if ago == 0.0:
            _record(tx, job, token, worker)
        return ago == 0.0
    # An end that the store has, though its answer was lost on the way, is no over-run; nor is
    # one that only came too late, of code that had ended before the attempt was lost.
    lost = found.outcome.removesuffix(" (before)") == "lost"
    if not lost or found.ended_at is None or (ago and tx.now - ago <= found.ended_at):
        return False
    # Told twice (the answer to the first was lost), the second finds the mark: one event each.
    params = {"job": job, "token": token, "old": found.reason, "new": found.reason + _MARK}
    if found.reason.endswith(_MARK) or tx.run(tx.sql.overruns.mark, params).rowcount == 0:
        return False
    _record(tx, job, token, worker, found)
    return True


def _record(
    tx: Transaction, job: str, token: int, worker: str, found: AttemptRecord | None = None
) -> None:
    groups = [] if found is None else list(found.groups)
    lost_at = None if found is None else found.ended_at
    record(tx, KIND, job, worker, token=token, groups=groups, lost_at=lost_at)


def recent(tx: Transaction) -> int:
    """How many there were in the last day."""
    return tx.value(tx.sql.overruns.since, {"kind": KIND, "since": tx.now - SHOWN_FOR})

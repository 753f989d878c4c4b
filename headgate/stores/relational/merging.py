"""A schedule has one waiting run at most, also when one that had begun comes back into line.

Its worker was stopped or died, and meanwhile a tick may have found it running and added a run that
waits. The one that comes back is the older, and starts after the moment of that tick: it stands for
it too, as it would had it not begun.
"""

from __future__ import annotations

from headgate.schedules.template import tick_of
from headgate.stores.relational import inspecting, moves
from headgate.stores.relational.events import record
from headgate.stores.relational.scheduling import names_text, read_spec
from headgate.stores.relational.transaction import Transaction


def came_back(tx: Transaction, job: int) -> None:
    """This job is in line again: what else waits of its schedule is merged into it."""
    back = tx.row(tx.sql.schedules.origin, {"job": job})
    origin = None if back is None else tick_of(back["options"])
    if back is None or origin is None:
        return
    schedule = origin[0]
    # Not locked: who ticks it right now would be waited for, with slots in our hands.
    row = tx.row(tx.sql.schedules.one, {"name": schedule})
    if row is None or read_spec(row["spec"]).pile_up:
        return
    rows = tx.rows(tx.sql.schedules.open_runs, {"names": names_text([schedule])})
    if back["id"] not in {row["job"] for row in rows}:
        return  # one that its schedule keeps beside all others
    others = [r["job"] for r in rows if r["state"] == "waiting" and r["job"] != back["id"]]
    merge(tx, schedule, back["id"], list(hold(tx, others)))


def hold(tx: Transaction, jobs: list[str]) -> dict[str, bool]:
    """Those of them that wait and that nobody is claiming; nobody can until our commit. True for
    what could start now, False for what waits for its time: a retry, or a run that is put off."""
    if not jobs:
        return {}
    params = {"jobs": names_text(jobs)}
    now = (tx.sql.schedules.hold_ready, tx.sql.schedules.unrouted)
    later = tx.rows(tx.sql.schedules.hold_scheduled, params)
    return {row["id"]: row["run_at"] <= tx.now for row in later} | {
        row["id"]: True for sql in now for row in tx.rows(sql, params)
    }


def merge(tx: Transaction, schedule: str, into: str, others: list[str]) -> None:
    """Runs that are held where they wait end here; their ticks are those of `into`."""
    for other in sorted(others):
        row = inspecting.job_row(tx, other)
        if not inspecting.take_out_of_line(tx, row):
            continue
        attempt = row["q_attempt"] or row["s_attempt"] or 0
        moves.conclude(tx, row["n"], "cancelled", f"merged into {into}", attempt=attempt)
        cells = {"schedule": schedule, "job": other, "into": into}
        for sql in (tx.sql.schedules.merge_ticks, tx.sql.schedules.merge_last):
            tx.run(sql, cells)
        tx.run(tx.sql.schedules.drop_run, {"schedule": schedule, "job": other})
        record(tx, "run_merged", other, into=into, schedule=schedule)

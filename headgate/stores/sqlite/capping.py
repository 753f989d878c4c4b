"""Does a submission fit under its caps? Whoever writes here is alone, so what is read is true."""

from __future__ import annotations

from typing import Any

from headgate.jobs import NewJob, Refusal
from headgate.stores.relational.capping import Rule, rules_of
from headgate.stores.relational.transaction import Row, Transaction


class Verdict:
    """What the caps say to one submission. Its places are taken as they are found; `withdraw`
    gives them back when a later cap refuses it."""

    def __init__(self, tx: Transaction, job: NewJob) -> None:
        self._tx = tx
        self._job = job
        self._undo: list[dict[str, Any]] = []
        self.refused: Refusal | None = None
        self.existing: str | None = None
        self.after: dict[str, tuple[str, str]] = {}
        """Whom it stands for: (`replace` or `cancel`, group) by the job's id."""
        for rule in rules_of(job.caps):
            if not self._fits(rule):
                self.withdraw()
                return

    def withdraw(self) -> None:
        for place in reversed(self._undo):
            self._tx.run(self._tx.sql.caps.put, place)
        self.after.clear()

    def _fits(self, rule: Rule) -> bool:
        if rule.rule == "period":
            return self._fits_period(rule)
        self._move_down(rule)
        place = self._free(rule)
        if place is not None:
            self._put(rule, place, self._job.id)
            return True
        return self._when_full(rule, [row for row in self._holders(rule) if counts(rule, row)])

    def _fits_period(self, rule: Rule) -> bool:
        now = self._tx.now
        held = self._tx.row(self._tx.sql.caps.place, {**_key(rule), "place": 1})
        if held is None or held["until"] is None or held["until"] <= now:
            self._put(rule, 1, self._job.id, until=now + rule.seconds)
            return True
        return self._when_full(rule, self._holders(rule))

    # --- places ----------------------------------------------------------------------------

    def _holders(self, rule: Rule, above: int = 0) -> list[Row]:
        return list(self._tx.rows(self._tx.sql.caps.holders, {**_key(rule), "above": above}))

    def _move_down(self, rule: Rule) -> None:
        """Who stands above the cap (it was lowered, or the job came back) comes before us."""
        for row in self._holders(rule, above=rule.cap):
            place = self._free(rule) if counts(rule, row) else None
            if counts(rule, row):
                if place is None:
                    return
                self._write(rule, place, row["job"])
            self._write(rule, row["place"], None)

    def _free(self, rule: Rule) -> int | None:
        tx, key = self._tx, {**_key(rule), "cap": rule.cap}
        vacant = tx.value(tx.sql.caps.vacant, key)
        if vacant is not None:
            return vacant
        last: int = tx.value(tx.sql.caps.last, key)
        if last < rule.cap:
            return last + 1
        ended = (r["place"] for r in self._holders(rule) if not counts(rule, r))
        return next((place for place in ended if place <= rule.cap), None)

    def _put(self, rule: Rule, place: int, job: str, until: float | None = None) -> None:
        before = self._tx.row(self._tx.sql.caps.place, {**_key(rule), "place": place})
        old = {"job": before["job"], "until": before["until"]} if before else _NOBODY
        self._undo.append({**_key(rule), "place": place, **old})
        self._write(rule, place, job, until)

    def _write(self, rule: Rule, place: int, job: str | None, until: float | None = None) -> None:
        row = {**_key(rule), "place": place, "job": job, "until": until}
        self._tx.run(self._tx.sql.caps.put, row)

    # --- no place is free --------------------------------------------------------------------

    def _when_full(self, rule: Rule, holders: list[Row]) -> bool:
        other = self._other(rule, holders)
        if other is not None:
            running = other["state"] == "running"
            self.after[other["job"]] = ("cancel" if running else "replace", rule.group)
            if running and rule.rule == "total":
                # It counts until it has really ended, so we stand above the cap until then.
                last: int = self._tx.value(self._tx.sql.caps.last, _key(rule))
                self._put(rule, max(last, rule.cap) + 1, self._job.id)
            else:
                self._put(rule, other["place"], self._job.id, until=other["until"])
            return True
        first = holders[0]["job"] if holders else None
        if rule.when_full == "skip" and first is not None:
            self.existing = first
            return False
        until = holders[0]["until"] if holders and rule.rule == "period" else None
        self.refused = Refusal(rule.group, rule.rule, len(holders), rule.cap, first, until)
        return False

    def _other(self, rule: Rule, holders: list[Row]) -> Row | None:
        """Whom the new job stands for."""
        if rule.when_full not in ("replace", "cancel_running") or rule.cap == 0:
            return None
        for row in holders:
            if row["job"] in self.after:
                return row  # chosen already, under another of its caps
        waiting = [row for row in holders if row["state"] == "waiting"]
        if rule.when_full == "cancel_running":
            # One successor waits at most; who comes later stands for that one.
            held = [row for row in waiting if row["held"]]
            running = [row for row in holders if row["state"] == "running"]
            waiting = held or running or waiting
        return min(waiting, key=lambda row: row["n"], default=None)


_NOBODY = {"job": None, "until": None}


def counts(rule: Rule, row: Row) -> bool:
    """Does the holder of a place count there now?"""
    if rule.rule == "waiting":
        return row["state"] in ("waiting", "reserved")
    return row["state"] != "over"


def _key(rule: Rule) -> dict[str, Any]:
    return {"grp": rule.group, "rule": rule.rule}

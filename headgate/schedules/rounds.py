"""A round of ticking: what is due is found, worked out and recorded. Anybody may, at any time."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from headgate.backoff import grown
from headgate.errors import InvalidSchedule
from headgate.schedules.extra import SchedulesMissing
from headgate.schedules.planning import plan, table_of
from headgate.schedules.timetable import Timetable
from headgate.stores.protocol import ScheduleRecord, Store, Ticking

log = logging.getLogger("headgate.schedules")

SEEN_AT_ONCE = 200
TICKED_AT_ONCE = 50
"""Schedules in one transaction: claims get their turn in between."""
SAFETY = 10.0
"""Seconds after which one looks again, whatever rings or does not."""
_REMEMBERED = 10_000
_EARLY = 0.002
"""Timers are not exact: a look a moment too early would find nothing, and look again."""
_APART = 0.02
"""Seconds over which those who wake for the same tick are spread: most then find it done, by a look
that writes nothing."""
_CONTENDED = 0.005
_LONGEST = 1.0


class Rounds:
    """The rounds of one process. One thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tables: dict[str, tuple[str, Timetable]] = {}
        self._bad: dict[str, str] = {}
        """By name, the digest of what cannot be read here."""
        self.ticked = 0
        self._vain = 0
        """Rounds in a row in which all that was due was in somebody else's hands."""

    def changed(self) -> None:
        """Schedules may be others than before."""
        self._bad.clear()

    def round(self) -> float:
        """Tick what is due; seconds until there may be more. The work of one round is bounded."""
        due = self._store.due_schedules(SEEN_AT_ONCE, frozenset(self._bad))
        if not due.schedules:
            self._vain = 0
            if due.next_at is None:
                return SAFETY
            wait = max(0.0, due.next_at - due.now) + _EARLY + random.uniform(0.0, _APART)
            return min(wait, SAFETY)
        try:
            tickings = self._plan(due.schedules, due.now)
        except SchedulesMissing as error:
            log.error("this process ticks no schedule: %s", error)
            return float("inf")
        # All who tick see the same at the same moment. Each begins elsewhere, so that they share
        # the work instead of meeting at every row.
        pieces = [tickings[n : n + TICKED_AT_ONCE] for n in range(0, len(tickings), TICKED_AT_ONCE)]
        random.shuffle(pieces)
        done = 0
        for piece in pieces:
            done += self._tick(piece)
        if done:
            self._vain = 0
            return 0.0
        # Somebody else is at it, and commits in a moment; or hangs, and is not to be waited for
        # by asking a hundred times a second.
        self._vain += 1
        longest = grown(self._vain, _CONTENDED, _LONGEST)
        return random.uniform(_CONTENDED, longest)

    def _tick(self, tickings: Sequence[Ticking]) -> int:
        records = self._store.tick(tickings)
        self.ticked += len(records)
        for found in records:
            if found.outcome in ("missed", "refused"):
                log.warning(
                    "schedule %s: %d tick(s) were %s", found.schedule, found.count, found.outcome
                )
        return len(records) + sum(1 for ticking in tickings if not ticking.ticks)

    def _plan(self, schedules: Sequence[ScheduleRecord], now: float) -> list[Ticking]:
        tickings: list[Ticking] = []
        for found in schedules:
            try:
                tickings.append(plan(found, self._table(found), now))
            except SchedulesMissing:
                raise
            except InvalidSchedule as error:
                # Declared by a program that knows more than this one. Others may tick it.
                log.error("schedule %s is not ticked here: %s", found.spec.name, error)
                self._bad[found.spec.name] = found.digest
        return tickings

    def _table(self, found: ScheduleRecord) -> Timetable:
        name = found.spec.name
        known = self._tables.get(name)
        if known is not None and known[0] == found.digest:
            return known[1]
        if len(self._tables) >= _REMEMBERED:
            self._tables.clear()
        table = table_of(found.spec)
        self._tables[name] = (found.digest, table)
        return table

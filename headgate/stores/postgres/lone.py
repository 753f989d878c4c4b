"""Jobs that stand alone in line: what they need, said before anybody has looked.

A worker that waits because a group is full knows what its next claim will be about: one job, and
one slot of that group. With the values in force it can be taken by the round trip that finds it;
see `headgate.look_and_take`.
"""

from __future__ import annotations

import json

from headgate.limits import needs_of
from headgate.stores.postgres.view import Seen
from headgate.stores.relational.values import Words

MOST = 4
"""Lanes that are remembered: who is idle has met few."""
WIDEST = 1000
"""Holders that are counted only to see whether it is worth asking."""

Lane = tuple[str, str]
"""The band and the lane of a job, which say what it needs."""


class Lone:
    """Belongs to all threads of a process: what one of them overwrites is met again."""

    def __init__(self) -> None:
        self._lanes: tuple[Lane, ...] = ()
        self._told: tuple[tuple[Lane, ...], Words, str | None] | None = None

    def met(self, seen: Seen) -> None:
        """This was the line, before anything was chosen from it."""
        if len(seen.lanes) == 1:
            lane = seen.lanes[0]
            here = seen.bands[lane.band][2], lane.lane
            if here not in self._lanes:
                self._lanes = (*self._lanes, here)[-MOST:]

    def told(self, words: Words) -> str | None:
        """[band, lane, group, value, units] of each that one slot is enough for."""
        lanes, told = self._lanes, self._told
        if told is None or told[0] is not lanes or told[1] is not words:
            rows = [row for lane in lanes if (row := _row(lane, words)) is not None]
            text = json.dumps(rows, ensure_ascii=False) if rows else None
            self._told = told = (lanes, words, text)
        return told[2]


def _row(lane: Lane, words: Words) -> tuple[str, str, str, int, int] | None:
    needs = needs_of(*lane)
    if len(needs.all) != 1 or needs.one_of:
        return None
    need = needs.all[0]
    said = words.of(need.group)
    if said.value is None or said.paused or said.pace is not None or said.value > WIDEST:
        return None
    return (*lane, need.group, said.value, need.units)

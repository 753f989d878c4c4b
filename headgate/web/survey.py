"""The keys of a keyed limit, with what each has waiting and holds, for sorting and searching.

Nothing counts the backlog of a key, so there is no list of them to read in its order. A survey
walks along all lanes and holders of the limit, some hundred at a time, and remembers what it saw;
pages are served from memory. It rests between its steps, so that it takes a small part of the
store's time whatever there is to see, and ends when nobody looks any more.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from headgate.errors import HeadgateError
from headgate.limits import split_group
from headgate.stores.glances import glancing
from headgate.stores.protocol import GroupPage, LanePage, LanePlace, LaneWalk, Store

log = logging.getLogger("headgate.web")

STEP = 400
COUNTED = 200
AT_ONCE = 0.06
"""Seconds for which who asks first looks itself."""
REST = 4.0
"""A step is followed by a rest of so many times its length."""
AGAIN = 10.0
"""Seconds from one round to the next."""
WANTED = 60.0
KEYS = 300_000
SURVEYS = 8

SORTS = ("waiting", "oldest", "held", "key")


@dataclass(slots=True)
class KeyLoad:
    key: str
    waiting: int = 0
    bounded: bool = False
    oldest: float | None = None
    held: int = 0
    holders: int = 0


@dataclass(frozen=True, slots=True)
class KeyPage:
    keys: tuple[KeyLoad, ...]
    found: int
    known: int
    complete: bool
    """False: the first round is under way, and keys may be missing."""
    more: bool


class Survey:
    """One keyed limit."""

    def __init__(self, store: Callable[[], Store], limit: str) -> None:
        self._store = store
        self._limit = limit
        self._lock = threading.Lock()
        """Of what was seen. Nobody waits for it while the store is asked."""
        self._stepping = threading.Lock()
        self._round: dict[str, KeyLoad] = {}
        self._last: dict[str, KeyLoad] | None = None
        self._lane: LanePlace | None = None
        self._group: str | None = None
        self._lanes_done = self._groups_done = False
        self._ended = 0.0
        self._asked = 0.0
        self._thread: threading.Thread | None = None
        self.stop = threading.Event()

    def page(self, sort: str, search: str, offset: int, limit: int) -> KeyPage:
        self._asked = time.monotonic()
        until = self._asked + AT_ONCE
        while self._last is None and time.monotonic() < until and not self._round_is_long():
            self._try_step()
        with self._lock:
            self._start()
            keys = self._round if self._last is None else self._last
            found = list(keys.values())
            complete = self._last is not None
        known = len(found)
        if search:
            found = [load for load in found if search in load.key]
        wanted = heapq.nsmallest(offset + limit, found, key=_ORDER[sort])[offset:]
        more = len(found) > offset + limit
        return KeyPage(tuple(wanted), len(found), known, complete, more)

    def _start(self) -> None:
        if self._thread is None and not self.stop.is_set():
            self._thread = threading.Thread(target=self._run, name="headgate-survey", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            began, pause = time.monotonic(), 0.05
            with self._lock:
                if began - self._asked > WANTED:
                    self._thread = None
                    return
            if self._last is None or began - self._ended >= AGAIN:
                try:
                    self._try_step()
                except HeadgateError as error:
                    log.warning("the keys of %s could not be seen: %s", self._limit, error)
                    pause = AGAIN
            took = time.monotonic() - began
            if self.stop.wait(max(pause, took * REST)):
                return

    def close(self) -> None:
        self.stop.set()
        thread = self._thread
        if thread is not None:
            thread.join(5.0)

    def _round_is_long(self) -> bool:
        """Then the thread goes on alone: who asks is shown what there is."""
        return len(self._round) >= STEP

    def _try_step(self) -> None:
        """A step, unless somebody is at one."""
        if not self._stepping.acquire(blocking=False):
            time.sleep(0.01)
            return
        try:
            with glancing(AGAIN):
                self._step(self._store())
        finally:
            self._stepping.release()

    def _step(self, store: Store) -> None:
        walk = LaneWalk(self._limit, after=self._lane, lanes=STEP, counted=COUNTED)
        lanes = None if self._lanes_done else store.lanes(walk)
        groups = None
        if not self._groups_done:
            groups = store.held_groups(f"{self._limit}/", self._group, STEP)
        with self._lock:
            self._note(lanes, groups)

    def _note(self, page: LanePage | None, held: GroupPage | None) -> None:
        if page is not None:
            for lane in page.lanes:
                for need in lane.needs:
                    name, key = split_group(need.group)
                    if name == self._limit and key is not None:
                        load = self._load(key)
                        load.waiting += lane.waiting
                        load.bounded = load.bounded or lane.bounded
                        since = lane.since
                        load.oldest = since if load.oldest is None else min(since, load.oldest)
            self._lane, self._lanes_done = page.after, page.after is None
        if held is not None:
            for group in held.groups:
                load = self._load(group.group.partition("/")[2])
                load.held, load.holders = group.held, group.holders
            self._group, self._groups_done = held.after, held.after is None
        if (self._lanes_done and self._groups_done) or len(self._round) >= KEYS:
            self._last, self._round = self._round, {}
            self._lane, self._group = None, None
            self._lanes_done = self._groups_done = False
            self._ended = time.monotonic()

    def _load(self, key: str) -> KeyLoad:
        return self._round.setdefault(key, KeyLoad(key))


_ORDER: dict[str, Callable[[KeyLoad], tuple[float | str, ...]]] = {
    "waiting": lambda load: (-load.waiting, load.oldest or 1e18, load.key),
    "oldest": lambda load: (load.oldest or 1e18, load.key),
    "held": lambda load: (-load.held, -load.waiting, load.key),
    "key": lambda load: (load.key,),
}


class Surveys:
    """Those of the limits that were asked for last."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._surveys: OrderedDict[str, Survey] = OrderedDict()

    def of(self, limit: str) -> Survey:
        with self._lock:
            survey = self._surveys.setdefault(limit, Survey(self._store, limit))
            self._surveys.move_to_end(limit)
            while len(self._surveys) > SURVEYS:
                self._surveys.popitem(last=False)[1].stop.set()
            return survey

    def close(self) -> None:
        with self._lock:
            for survey in self._surveys.values():
                survey.close()

"""What a process remembers between the round trips of its workers."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from headgate.choice import LaneKey, Taken
from headgate.choice.ahead import chain_of, groups_of, held_in
from headgate.jobs import Claimed
from headgate.limits import Band, needs_of
from headgate.rates import RATE_SLOT
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.dues import Dues
from headgate.stores.postgres.lone import Lone
from headgate.stores.postgres.words import OwnWords
from headgate.stores.protocol import Exchange
from headgate.stores.relational.handing import Handed
from headgate.stores.relational.values import Words

Held = tuple[tuple[str, int], ...]
Unheard = list[tuple[int, Exchange]]
"""Round trips: the number of each, and what it told."""


class Books:
    """Who holds what, by what words, and which answers were lost."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._words = OwnWords()
        self._words_lock = threading.Lock()
        self._ops = itertools.count(int.from_bytes(os.urandom(7)) << 4)
        self._held: dict[int, Held] = {}
        """What the attempts of this process hold: a choice counts on what they give back."""
        self._follows: dict[int, str] = {}
        """The chain of each attempt that was reserved, until the store knows its slots."""
        self.capped: dict[int, str] = {}
        """The jobs that count under caps, by their attempts: their end makes room."""
        self.starts = False
        """One of them started that counted among the waiting."""
        self.settled = 0.0
        """When somebody last looked whom jobs that stand for others wait for."""
        self.now = 0.0
        """The store's time as of the last answer."""
        self.dues = Dues()
        self.lone = Lone()
        self._unheard: dict[str, Unheard] = {}
        """Per worker, its round trips that were done, or may have been, and whose answers it has
        not heard."""
        self._unheard_lock = threading.Lock()
        self.handed = Handed()

    def next_op(self) -> int:
        return next(self._ops)

    def words(self, version: int) -> Words:
        with self._words_lock:
            words = self._words.words
            if words is None or words.version != version:
                with self._db.read() as tx:
                    words = self._words.read(tx)
            return words

    def foreknown(self) -> tuple[int | None, str | None]:
        """The version of the limits that is known here, and what it says of lone jobs."""
        words = self._words.words  # once: another thread may read later ones meanwhile
        return (None, None) if words is None else (words.version, self.lone.told(words))

    def take_unheard(self, worker: str) -> Unheard:
        """They are the caller's from now on, to be told or put back. Where two exchanges of one
        worker are under way, only one of them tells what a third had brought."""
        if worker not in self._unheard:
            return []
        with self._unheard_lock:
            return self._unheard.pop(worker, [])

    def put_back(self, worker: str, unheard: Unheard) -> None:
        with self._unheard_lock:
            self._unheard.setdefault(worker, []).extend(unheard)
        for _, exchange in unheard:
            self.handed.unheard(exchange)

    def moved(self, owner: int, token: int) -> None:
        """The store knows the slots by another name."""
        # Told again, after a lost answer or by two at once, it has moved already.
        if owner in self._held:
            self._held[token] = self._held.pop(owner)

    def freed_by(self, exchange: Exchange) -> Counter[str]:
        """The units that this round trip gives back."""
        freed: Counter[str] = Counter()
        if not self._held:
            return freed
        passed = {one.owner for one in exchange.passed}
        for finish in exchange.finishes:
            if finish.token not in passed:
                for group, units in self._held.get(finish.token, ()):
                    freed[group] += units
        return freed

    def settle(self, exchange: Exchange) -> None:
        """The store has heard this: keep what we know of its slots up to it."""
        self.handed.heard(exchange)
        for passed in exchange.passed:
            self._follows.pop(passed.token, None)
            if passed.owner is not None:
                self.moved(passed.owner, passed.token)
        for finish in exchange.finishes:
            self._held.pop(finish.token, None)
            self._follows.pop(finish.token, None)

    def forget(self, tokens: Collection[int]) -> None:
        """Attempts of which no worker ever hears."""
        for token in tokens:
            self._held.pop(token, None)
            self._follows.pop(token, None)
            self.capped.pop(token, None)
        self.handed.forget(tokens)

    def followed(self, token: int) -> str | None:
        """What an attempt held in slots that were never under its name."""
        chain = self._follows.get(token)
        held = held_in(chain) if chain is not None else ()
        return json.dumps([[group, -1, units] for group, units in held]) if held else None

    def claimed(self, key: LaneKey, taken: Taken | None, row: list[Any]) -> Claimed:
        """An attempt as `act` tells it. What was reserved (`taken`) holds nothing yet: it says
        in which chain it waits."""
        token, job, attempt, _, since, created_at, args, options, slots, history, *capped = row
        if capped and capped[0]:
            self.capped[token] = job
            self.starts = self.starts or capped[0] == 2
        errors, lost = 0, 0
        if history:
            errors, lost = history.get("error", 0), history.get("lost", 0)
        if taken is not None:
            chain, picked = taken.chain, taken.grant.picked
            self._follows[token] = chain
            groups = _awaited(chain)
        else:
            # A start under a rate is spent: there is nothing to give back or to pass on.
            kept = [cell for cell in slots if cell[1] != RATE_SLOT]
            held = tuple((group, units) for group, _, units in kept)
            if held:
                self._held[token] = held
            chain = chain_of(key.queue, held)
            groups = tuple((group, slot) for group, slot, _ in kept)
            every = len(needs_of(key.band, key.lane).all) if slots else 0
            picked = tuple(group for group, _, _ in slots[every:])
        queue, priority, band, turn, _ = key
        # By their places: by name they would take twice as long, and these are thousands.
        return Claimed(
            job, token, attempt, Band.parse(band).task, args, queue, priority, turn, options,
            groups, picked, errors, lost, created_at, since, self.now, chain, taken is not None,
        )  # fmt: skip


@lru_cache(maxsize=16384)
def _awaited(chain: str) -> tuple[tuple[str, int], ...]:
    """The groups of a chain, without a slot of theirs yet."""
    return tuple((group, -1) for group in groups_of(chain))

"""One round trip of a worker with several shards: what ended goes where its token says, and room is
dealt out among the shards that have something for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headgate.jobs import Claimed, Finish, Progress, Refusal
from headgate.stores.bucket.shard import Glance, Shard
from headgate.stores.bucket.shards import hashed, shard_of
from headgate.stores.protocol import Claim, Exchange, Exchanged, Passed, QueueShare
from headgate.turns import ClaimState

Run = Callable[[Mapping[int, Callable[[], Exchanged]]], Mapping[int, Exchanged | Exception]]
"""Do these at once, by shard: what each answered, or how it failed."""
SOON = 0.1
"""Seconds after which a worker comes back for a few places that it has left."""
STAY, STAY_LONG = 0.5, 3.0
"""Seconds for which a worker takes short jobs from one shard before it goes to another: soon to one
that nobody serves, later where each is served by somebody."""
AGAIN = 1.0
"""Seconds for which a shard that found no use for a place is not given one at others' expense."""


class States:
    """A worker's turns, shard by shard. They stand in the one state that it keeps."""

    def __init__(self, worker: str, shards: int) -> None:
        self.each = [ClaimState() for _ in range(shards)]
        self.first = 0
        """The shard that is offered what cannot be divided, of those that have as little."""
        self.held: list[set[int]] = [set() for _ in range(shards)]
        """What runs here, as far as it was told."""
        self.took_nothing = [float("-inf")] * shards
        """When each was last offered room and found no use for it."""
        self.stays = hashed(worker, shards)
        """The shard that is offered all, while jobs are short; workers begin at different ones."""
        self.stays_since = float("-inf")

    def stay(self, others: Mapping[int, int], now: float) -> list[int]:
        """Short jobs are taken from one shard for a while and then from the next: so there are few
        writes for them, and few others who write to the same shard at the same moment. `others`:
        of those that have something, how many other workers take it."""
        shards = len(self.each)
        stayed = now - self.stays_since
        alone = any(not count for k, count in others.items() if k != self.stays)
        if self.stays not in others or stayed > (STAY if alone else STAY_LONG):
            after = (self.stays + 1) % shards
            self.stays = min(
                others, key=lambda k: (others[k], (k - after) % shards), default=self.stays
            )
            self.stays_since = now
        return sorted(others, key=lambda k: (k - self.stays) % shards)

    def short(self, ready: Sequence[int], now: float) -> bool:
        """Has one of these much less than its part of this worker's places, and use for more?"""
        part = sum(len(self.held[k]) for k in ready) / max(1, len(ready))
        return any(
            len(self.held[k]) * 2 < part and now - self.took_nothing[k] > AGAIN for k in ready
        )


def states_of(claim: Claim | None, worker: str, shards: int) -> States | None:
    if claim is None:
        return None
    if not isinstance(claim.state.view, States):
        claim.state.view = States(worker, shards)
    return claim.state.view


@dataclass(slots=True)
class Heard:
    """What the shards answered."""

    stale: set[int] = field(default_factory=set[int])
    refused: dict[int, Refusal] = field(default_factory=dict[int, Refusal])
    claimed: list[Claimed] = field(default_factory=list[Claimed])
    cancels: dict[int, str] = field(default_factory=dict[int, str])
    wake_in: dict[int, float | None] = field(default_factory=dict[int, float | None])
    finished: set[int] = field(default_factory=set[int])
    """Tokens of which a shard has been told all there was to tell."""
    back: list[Finish] = field(default_factory=list[Finish])
    """What was granted, and is not wanted any more: to be given back before all else."""
    more: bool = False
    unrouted: bool = False
    recall: bool = False
    dead: bool = False

    def add(self, shard: int, answer: Exchanged) -> None:
        self.stale |= answer.stale
        self.refused.update(answer.refused)
        self.claimed += answer.claimed
        self.cancels.update(answer.cancels)
        self.wake_in[shard] = answer.wake_in
        self.more = self.more or answer.more
        self.unrouted = self.unrouted or answer.unrouted
        self.recall = self.recall or answer.recall
        self.dead = self.dead or answer.dead

    def join(self, other: Heard) -> None:
        """What was answered to another round trip, and not told either."""
        self.stale |= other.stale
        self.refused.update(other.refused)
        self.claimed += other.claimed
        self.cancels.update(other.cancels)
        self.finished |= other.finished
        self.back += other.back
        self.more = self.more or other.more
        self.unrouted = self.unrouted or other.unrouted
        self.recall = self.recall or other.recall
        self.dead = self.dead or other.dead

    def answer(self) -> Exchanged:
        times = [seconds for seconds in self.wake_in.values() if seconds is not None]
        return Exchanged(
            stale=frozenset(self.stale),
            refused=tuple(self.refused.items()),
            claimed=tuple(self.claimed),
            more=self.more,
            wake_in=min(times, default=None),
            cancels=tuple(self.cancels.items()),
            unrouted=self.unrouted,
            recall=self.recall,
            dead=self.dead,
        )


class Deal:
    """One round trip. What was answered is in `heard`, also when a shard failed."""

    def __init__(self, shards: Sequence[Shard], exchange: Exchange, heard: Heard) -> None:
        self._shards = shards
        self._exchange = exchange
        self._claim = exchange.claim
        self._states = states_of(exchange.claim, exchange.worker, len(shards))
        self.heard = heard
        self._one_by_one = False
        """All is offered to one shard, and what it leaves to the next."""
        self._room = 0 if self._claim is None else self._claim.room
        self._ahead = 0 if self._claim is None else self._claim.ahead_room
        queues = () if self._claim is None or self._claim.queues is None else self._claim.queues
        self._queues = {share.name: share for share in queues}
        self._left = Counter({share.name: share.room for share in queues})
        self._spend(heard.claimed)

    def _spend(self, claimed: Sequence[Claimed]) -> None:
        for one in claimed:
            if one.reserved:
                self._ahead -= 1
            else:
                self._room -= 1
                self._left[one.queue] -= 1

    def run(self, at_once: Run) -> None:
        """Raises what a shard raised, when the others have answered."""
        told = self._told()
        glances = {shard.number: self._glance(shard) for shard in self._shards}
        asked: set[int] = set()
        if not all(glance.known for glance in glances.values()):
            # Who is dead for one of them is told so, and is granted nothing by the others.
            asked = {k for k, glance in glances.items() if not glance.known}
            self._claim = None
        if self._claim is not None:
            self.heard.wake_in = {k: glance.wake_in for k, glance in glances.items()}
            asked = {k for k, glance in glances.items() if glance.ask}
        if self._states is not None:
            for k, glance in glances.items():
                if glance.ready:
                    # What ended by a round trip that asked for nothing was not noted here.
                    self._states.held[k] &= glance.running
        open_ = [k for k in asked if glances[k].ready]
        if self._states is not None and self._claim is not None and self._claim.ahead:
            self._one_by_one = True
            others = {k: glances[k].others for k in open_}
            open_ = self._states.stay(others, time.monotonic())
        else:
            open_ = self._in_turn(open_)
            self._make_way(open_)
        # Where something ended, something else may follow it, or nothing: who waits for the room
        # by hand is woken only if no job takes it, and that is found out by an offer of one place.
        offers = self._offers(open_, [k for k in told if k not in open_])
        for k in (*told, *asked):
            offers.setdefault(k, self._offer(0, 0, {}))
        while offers:
            before = len(self.heard.claimed)
            taken = self._trip(offers, told, at_once)
            late = [k for k in asked if k not in open_ and self._glance(self._shards[k]).ready]
            open_ = [k for k in open_ if not self._exhausted(offers.get(k), taken.get(k, ()))]
            open_, asked, told = open_ + self._in_turn(late), set[int](), {}
            if self.heard.dead or self._room <= 0 or not open_:
                return
            if len(self.heard.claimed) > before:
                self._come_back()
                return
            # Nothing was granted, so nothing was written: the next of them is asked.
            offers = self._offers(open_)

    def _make_way(self, ready: list[int]) -> None:
        """What is reserved behind the jobs of one shard runs on and on in their places: where there
        is no place for another shard's, one is freed. Each shard does so for its own jobs."""
        claim, states = self._claim, self._states
        if claim is None or states is None or self._room > 0 or not claim.chains:
            return
        if states.short(ready, time.monotonic()):
            most = max(claim.chains, key=lambda chain: claim.chains[chain].places)
            if claim.chains[most].places > 1:
                claim.state.gives_way = most

    def _come_back(self) -> None:
        """There is room left, and somebody may have more: it is asked again, soon if it is worth a
        write of its own."""
        assert self._claim is not None
        if 8 * self._room >= self._claim.room:
            self.heard.more = True
        else:
            self.heard.wake_in[-1] = SOON

    def _glance(self, shard: Shard) -> Glance:
        state = None if self._states is None else self._states.each[shard.number]
        return shard.glance(self._exchange.worker, state)

    def _told(self) -> dict[int, Exchange]:
        """What each shard is to be told."""
        finishes: dict[int, list[Finish]] = {}
        for finish in self._exchange.finishes:
            if finish.token not in self.heard.finished:
                finishes.setdefault(self._of(finish.token), []).append(finish)
        progress: dict[int, list[Progress]] = {}
        for report in self._exchange.progress:
            progress.setdefault(self._of(report.token), []).append(report)
        passed: dict[int, list[Passed]] = {}
        for one in self._exchange.passed:
            if one.token not in self.heard.finished:
                passed.setdefault(self._of(one.token), []).append(one)
        worker = self._exchange.worker
        return {
            k: Exchange(worker, finishes.get(k, ()), progress.get(k, ()), passed.get(k, ()))
            for k in sorted({*finishes, *progress, *passed})
        }

    def _of(self, token: int) -> int:
        # A number that no shard gives is stale in any of them.
        return min(shard_of(token), len(self._shards) - 1)

    # --- room -------------------------------------------------------------------------------------

    def _in_turn(self, shards: list[int]) -> list[int]:
        if self._states is None or not shards:
            return shards
        first = self._states.first = (self._states.first + 1) % len(self._shards)
        held = self._states.held
        return sorted(shards, key=lambda k: (len(held[k]), (k - first) % len(self._shards)))

    def _offers(self, open_: list[int], one: Sequence[int] = ()) -> dict[int, Claim]:
        """What is left, in equal parts; to who comes first in turn what cannot be divided. To some
        only one place, if there are more than enough."""
        if self._claim is None or (self._room <= 0 and self._ahead <= 0):
            return {}
        if not open_:
            open_, one = list(one), ()
        one = one if self._room > len(open_) + len(one) else ()
        some = open_[: max(1, self._room)] if self._room > 0 else open_
        some = some[:1] if self._one_by_one else some
        if not some:
            return {}
        single = {k: self._offer(1, 0, {name: min(1, left) for name, left in self._left.items()})
                  for k in one} if not self._queues else {}  # fmt: skip
        rooms = _parts(self._room - len(single), len(some))
        aheads = _parts(self._ahead, len(some))
        queues = {name: _parts(self._left[name], len(some)) for name in self._queues}
        return single | {
            k: self._offer(rooms[i], aheads[i], {name: parts[i] for name, parts in queues.items()})
            for i, k in enumerate(some)
        }

    def _offer(self, room: int, ahead: int, queues: Mapping[str, int]) -> Claim:
        assert self._claim is not None or not room
        claim = self._claim or Claim(0, frozenset(), ClaimState())
        shares: tuple[QueueShare, ...] | None = None
        if claim.queues is not None:
            shares = tuple(replace(q, room=queues.get(q.name, 0)) for q in claim.queues)
        return replace(claim, room=room, ahead_room=ahead, queues=shares)

    def _exhausted(self, offer: Claim | None, taken: Sequence[Claimed]) -> bool:
        """Did this shard leave something of what it was offered, and not because of the way in
        which it was divided?"""
        if offer is None:
            return False
        starts = [one for one in taken if not one.reserved]
        if len(starts) >= offer.room:
            return False
        by_queue = Counter(one.queue for one in starts)
        return all(by_queue[q.name] < q.room or self._left[q.name] <= 0 for q in offer.queues or ())

    def _trip(
        self, offers: Mapping[int, Claim], told: Mapping[int, Exchange], at_once: Run
    ) -> dict[int, tuple[Claimed, ...]]:
        trips: dict[int, Callable[[], Exchanged]] = {}
        for k, offer in offers.items():
            base = told.get(k, Exchange(self._exchange.worker))
            claim = None
            if self._claim is not None and self._states is not None:
                claim = replace(offer, state=self._states.each[k])
            asked = replace(base, claim=claim)
            trips[k] = lambda shard=self._shards[k], asked=asked: shard.exchange(asked)
        failed: Exception | None = None
        taken: dict[int, tuple[Claimed, ...]] = {}
        for k, answer in at_once(trips).items():
            if isinstance(answer, Exception):
                failed = failed or answer
                continue
            self.heard.add(k, answer)
            taken[k] = answer.claimed
            self._spend(answer.claimed)
            if k in told:
                self.heard.finished |= {finish.token for finish in told[k].finishes}
            if self._claim is not None and self._states is not None:
                self._note(self._states, k, offers[k], told.get(k), answer)
        if failed is not None:
            raise failed
        return taken

    def _note(
        self, states: States, k: int, offer: Claim, told: Exchange | None, answer: Exchanged
    ) -> None:
        assert self._claim is not None
        way, states.each[k].gives_way = states.each[k].gives_way, None
        self._claim.state.gives_way = self._claim.state.gives_way or way
        held = states.held[k]
        if told is not None:
            held |= {passed.token for passed in told.passed}
            held -= {finish.token for finish in told.finishes}
        held -= answer.stale
        starts = {one.token for one in answer.claimed if not one.reserved}
        held |= starts
        if offer.room > 0 and not starts:
            states.took_nothing[k] = time.monotonic()


def beyond(claimed: Sequence[Claimed], room: int) -> tuple[list[Claimed], list[Finish]]:
    """Of what was granted and not heard of, what there is room for; the rest is given back, and so
    is what was to follow others."""
    kept = [one for one in claimed if not one.reserved][: max(0, room)]
    tokens = {one.token for one in kept}
    return kept, [Finish(one.token, "returned") for one in claimed if one.token not in tokens]


def _parts(whole: int, shards: int) -> list[int]:
    """
    >>> _parts(5, 3), _parts(0, 2)
    ([2, 2, 1], [0, 0])
    """
    each, rest = divmod(max(0, whole), shards)
    return [each + (i < rest) for i in range(shards)]

"""Short jobs one after the other through the same slots, without a round trip in between.

A claim may bring jobs that are *reserved*: each waits in the pool of its chain until an
attempt of that chain has ended here, and then runs in the slots of that one. The store is
told with the next round trip. Until it has confirmed, it knows the slots under the token of
the attempt that held them before, their *owner*: that is the one thing to keep exactly.

Nothing here calls a store or runs code. All of it belongs to the event loop of the worker.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from headgate.jobs import Claimed
from headgate.stores.protocol import Chain, Passed
from headgate.stores.protocol.claims import AHEAD
from headgate.worker.pace import Pace
from headgate.worker.tempo import FEW

LONGEST_WAIT = 5
"""Times the work that may be reserved behind a slot: a reserved job that has not started by then is
given back."""


@dataclass(slots=True, eq=False)
class Hold:
    """The slots in which attempts run, one after the other."""

    chain: str
    owner: int
    """The token under which the store knows them."""
    slots: bool
    """False: there are none, the chain is of jobs without limits."""
    user: int | None
    """Who runs in them now."""
    number: int = 0
    """The start that made `owner` their owner; 0: the grant itself."""
    lost: bool = False
    """The store says that they are not ours."""

    @staticmethod
    def of(claimed: Claimed) -> Hold:
        return Hold(claimed.chain, claimed.token, bool(claimed.groups), claimed.token)


class Start(msgspec.Struct, frozen=True, eq=False):
    """A reserved job that has started, and of which the store is not known to know."""

    token: int
    hold: Hold
    at: float
    number: int

    @property
    def owns(self) -> bool:
        """Does it run in slots that have to be moved to its name?"""
        return self.hold.slots and self.hold.user == self.token


@dataclass(frozen=True, slots=True)
class Sent:
    """What one round trip says about starts. `owners`: of those that were running when it was
    put together, and are the owners of their slots once it is confirmed."""

    passed: tuple[Passed, ...] = ()
    starts: tuple[Start, ...] = ()
    owners: tuple[Start, ...] = ()


Waiting = tuple[Claimed, float]
"""A reserved job, and when the round trip that brought it was sent."""


class Line:
    """Reserved jobs that wait: the keys take turns here too, so that who comes in later does not
    wait for all that was reserved for others before.

    >>> line = Line()
    >>> for job, turn in (("a1", "a"), ("a2", "a"), ("b1", "b")):
    ...     line.append((Claimed(job, 1, 1, "t", "{}", "q", 0, turn, "{}"), 0.0))
    >>> [line.popleft()[0].job for _ in range(3)]
    ['a1', 'b1', 'a2']
    """

    def __init__(self) -> None:
        self._turns: dict[str, deque[Waiting]] = {}
        self._order: deque[str] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def keyed(self) -> int:
        """How many of them belong to a key."""
        return self._count - len(self._turns.get("", ()))

    def __iter__(self) -> Iterator[Waiting]:
        for turn in self._order:
            yield from self._turns[turn]

    def append(self, waiting: Waiting) -> None:
        turn = waiting[0].turn
        found = self._turns.get(turn)
        if found is None:
            self._turns[turn] = deque((waiting,))
            self._order.append(turn)
        else:
            found.append(waiting)
        self._count += 1

    def popleft(self) -> Waiting:
        turn = self._order.popleft()
        found = self._turns[turn]
        waiting = found.popleft()
        self._count -= 1
        if found:
            self._order.append(turn)
        else:
            del self._turns[turn]
        return waiting

    def remove(self, waiting: Waiting) -> None:
        turn = waiting[0].turn
        self._turns[turn].remove(waiting)
        self._count -= 1
        if not self._turns[turn]:
            del self._turns[turn]
            self._order.remove(turn)


@dataclass(slots=True, eq=False)
class _Pool:
    waiting: Line
    low: int = 0
    """So few, and it is time to ask for more."""


class Chains:
    """The pools, and who runs in whose slots.

    `give_back(claimed, reason)` is called for each reserved job that will not be started
    here; `note_start(token)` right before one is, for whoever must know if we die in it.
    """

    def __init__(
        self,
        give_back: Callable[[Claimed, str], None],
        note_start: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        ahead: float = AHEAD,
    ) -> None:
        self._give_back = give_back
        self._note_start = note_start
        self._clock = clock
        self.pace = Pace(ahead)
        self.longest_wait = LONGEST_WAIT * ahead
        """Seconds after which a reserved job that has not started is given back."""
        self.waiting = 0
        """Reserved jobs that have not started."""
        self.untold: dict[int, Start] = {}
        """In order of their start. Other threads may ask whether a token is in it."""
        self.low: set[str] = set()
        """Chains of which something ended and little or nothing is left to follow."""
        self.gives_way: str | None = None
        """The chain of which one attempt is to end without a follower: somebody who comes before
        it waits for the place."""
        self.lets_go: dict[str, int] = {}
        """By chain, how many attempts are to end without a follower: their slots are offered to
        others."""
        self._pools: dict[str, _Pool] = {}
        self._users: dict[str, int] = {}
        """By chain, the attempts that run."""
        self._most: dict[str, int] = {}
        """The same, at most, since the last round trip was put together."""
        self._ends: dict[str, int] = {}
        """By chain, the attempts that ended since then."""
        self._free: dict[str, list[Hold]] = {}
        """Slots whose attempt ended since the last round trip was put together, with nothing
        to follow. The store still counts them: what it reserves meanwhile can go on in them."""
        self._sent = Sent()
        self._starts = 0

    @property
    def users(self) -> Mapping[str, int]:
        """By chain, the attempts that run."""
        return self._users

    def pressing(self, running: int) -> bool:
        """Have the chains of which little is left a good part in what runs? Else the others go on,
        and a round trip of its own for those few would make all the others' smaller."""
        low = sum(self._most.get(chain, 0) for chain in self.low)
        return bool(self.low) and FEW * low >= running

    @property
    def keyed(self) -> int:
        """Of those that wait, how many belong to a key."""
        return sum(pool.waiting.keyed for pool in self._pools.values())

    # --- start, end ---------------------------------------------------------------------------

    def granted(self, claimed: Claimed) -> Hold:
        """An attempt starts in slots of its own."""
        self._join(claimed.chain)
        return Hold.of(claimed)

    def _join(self, chain: str) -> None:
        users = self._users[chain] = self._users.get(chain, 0) + 1
        self._most[chain] = max(users, self._most.get(chain, 0))

    def ended(self, hold: Hold, *, passes: bool) -> Claimed | None:
        """The attempt that ran in these slots has ended. The job that starts in them now, if
        there is one; `passes=False`: the slots are not there to be passed on."""
        chain = hold.chain
        hold.user = None
        users = self._users[chain] = self._users[chain] - 1
        self._ends[chain] = self._ends.get(chain, 0) + 1
        if users and (chain == self.gives_way or chain in self.lets_go):
            # Its slots are not kept for what is on its way here either, or that would take the
            # place. The others of the chain go on: there is no hurry to ask for more.
            self._let_go(chain)
            return None
        if passes and not hold.lost:
            follower = self._follow(hold)
            if follower is not None:
                return follower
            self._free.setdefault(chain, []).append(hold)
        self.low.add(chain)
        if users == 0:
            # Nobody is left whose end could let them start.
            del self._users[chain]
            self._empty(chain, "nothing to follow")
        return None

    def _let_go(self, chain: str) -> None:
        if chain == self.gives_way:
            self.gives_way = None
        elif self.lets_go[chain] > 1:
            self.lets_go[chain] -= 1
        else:
            del self.lets_go[chain]

    def _follow(self, hold: Hold) -> Claimed | None:
        pool = self._pools.get(hold.chain)
        if pool is None:
            return None
        now = self._clock()
        while pool.waiting:
            claimed, sent = pool.waiting.popleft()
            self.waiting -= 1
            if now - sent > self.longest_wait:
                # The loop stood still: what held when it was reserved may not hold any more.
                self._give_back(claimed, "waited too long")
                continue
            if len(pool.waiting) <= pool.low:
                self.low.add(hold.chain)
            self._starts += 1
            hold.user = claimed.token
            self._join(hold.chain)
            self.untold[claimed.token] = Start(claimed.token, hold, now, self._starts)
            # Before the code starts: killed after this line, it counts as started.
            self._note_start(claimed.token)
            return claimed
        del self._pools[hold.chain]
        return None

    # --- reserved -----------------------------------------------------------------------------

    def reserve(self, claimed: Claimed, sent: float) -> None:
        """It came with a round trip that was sent at that time. Call `fill` after the last."""
        # However long that was under way, it may wait here for a while.
        sent = max(sent, self._clock() - self.longest_wait / 2)
        pool = self._pools.get(claimed.chain)
        if pool is None:
            pool = self._pools[claimed.chain] = _Pool(Line())
        pool.waiting.append((claimed, sent))
        self.waiting += 1

    def fill(self) -> Iterable[tuple[Hold, Claimed]]:
        """What can start at once: its chain's attempts ended while it was on its way."""
        for chain, pool in list(self._pools.items()):
            free = self._free.get(chain, [])
            dry = bool(free)
            while free and (follower := self._follow(free[-1])) is not None:
                yield free.pop(), follower
            if chain not in self._users:
                self._empty(chain, "nothing to follow")
            # As many as ended during this round trip will end during the next.
            pool.low = max(len(pool.waiting) * 3 // 4, self._ends.get(chain, 0))
            if len(pool.waiting) > pool.low and not dry:
                self.low.discard(chain)

    def remove(self, token: int) -> bool:
        """Take one out that has not started; False: there is no such."""
        for chain, pool in self._pools.items():
            for found in pool.waiting:
                if found[0].token == token:
                    pool.waiting.remove(found)
                    self.waiting -= 1
                    self.low.add(chain)
                    return True
        return False

    def give_all_back(self, reason: str) -> None:
        for chain in list(self._pools):
            self._empty(chain, reason)

    def give_late_back(self) -> None:
        """Those that waited too long: what runs before them takes longer than it used to."""
        late = self._clock() - self.longest_wait
        for pool in self._pools.values():
            for waiting in [one for one in pool.waiting if one[1] < late]:
                pool.waiting.remove(waiting)
                self.waiting -= 1
                self._give_back(waiting[0], "waited too long")

    def _empty(self, chain: str, reason: str) -> None:
        pool = self._pools.pop(chain, None)
        if pool is not None:
            self.waiting -= len(pool.waiting)
            for claimed, _ in pool.waiting:
                self._give_back(claimed, reason)

    def describe(self, places: Mapping[str, int]) -> dict[str, Chain]:
        """What a claim says of each chain that has `places`, or something waiting."""
        short = self.pace.short
        seconds = {
            chain: sum(short.get(claimed.task, self.pace.bound) for claimed, _ in pool.waiting)
            for chain, pool in self._pools.items()
        }
        return {
            chain: Chain(places.get(chain, 0), seconds.get(chain, 0.0))
            for chain in {*places, *seconds}
        }

    # --- what the store hears -----------------------------------------------------------------

    def send(self) -> Sent:
        """What the round trip that is being put together has to say."""
        now = self._clock()
        starts = tuple(self.untold.values())
        owners: list[Start] = []
        passed: list[Passed] = []
        for start in starts:
            owner = None
            if start.owns:
                owners.append(start)
                owner = start.hold.owner
            passed.append(Passed(start.token, owner, now - start.at))
        # The finishes that travel along give these slots back.
        self._free.clear()
        self.low.clear()
        self._most = dict(self._users)
        self._ends.clear()
        self._sent = Sent(tuple(passed), starts, tuple(owners))
        return self._sent

    def confirmed(self, sent: Sent, stale: frozenset[int] = frozenset()) -> list[int]:
        """The store did exactly this, but for the `stale`; what happened here meanwhile is in
        the next one. The tokens of attempts that run in slots which are not ours any more."""
        for start in sent.starts:
            self.untold.pop(start.token, None)
        lost: list[int] = []
        for start in sent.owners:
            hold = start.hold
            if start.token in stale:
                hold.lost = True
                self._free[hold.chain] = [h for h in self._free.get(hold.chain, ()) if h != hold]
                lost += [] if hold.user is None else [hold.user]
            # Told once more by `send_one` while this was under way, a later start is the owner.
            elif start.number > hold.number:
                hold.owner, hold.number = start.token, start.number
        return lost

    def send_one(self, token: int) -> Sent:
        """What makes the store know this one attempt, beside the round trip under way.

        Whichever of the two is first: if that one makes another attempt of these slots their
        owner, this one says the same before it goes on from there.
        """
        start = self.untold[token]
        hold, now = start.hold, self._clock()
        if not hold.slots:
            return Sent((Passed(token, None, now - start.at),), (start,))
        before = [s for s in self._sent.owners if s.hold is hold and s.number > hold.number]
        if before and before[0] is not start:
            first = before[0]
            passed = (
                Passed(first.token, hold.owner, now - first.at),
                Passed(token, first.token, now - start.at),
            )
        else:
            passed = (Passed(token, hold.owner, now - start.at),)
        return Sent(passed, (start,), (start,))

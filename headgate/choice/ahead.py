"""Short jobs: which of the next may be reserved, to run through slots that are held already.

A *chain* is a queue and the groups with their units that an attempt holds. When an attempt
ends, the next job of the same chain may go on in its slots without asking the store, if it
was reserved before. What stands here says for which chains, and how much.

A chain goes on only as long as nobody else has a claim to what it holds: a lane of another
chain that waits for one of its groups, a worker that is in want of it, a wide lane that
gathers units there, or anyone at all who waits for a place in this worker.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from headgate.limits import Need, Needs
from headgate.stores.protocol import Claim

SHORTEST = 0.0001
MANY_PLACES = 20
"""So many places in one chain, and one of them can be left to somebody else meanwhile."""


def chain_of(queue: str, held: Iterable[tuple[str, int]]) -> str:
    """The text of a chain.

    >>> chain_of("mail", [("tenant/acme", 1), ("api", 1)])
    '["mail",["api",1],["tenant/acme",1]]'
    """
    return _text(queue, tuple(sorted(held)))


@lru_cache(maxsize=16384)
def _text(queue: str, held: tuple[tuple[str, int], ...]) -> str:
    cells = [queue, *([group, units] for group, units in held)]
    return json.dumps(cells, ensure_ascii=False, separators=(",", ":"))


@lru_cache(maxsize=16384)
def held_in(chain: str) -> tuple[tuple[str, int], ...]:
    """The groups and units of a chain.

    >>> held_in('["mail",["api",1],["tenant/acme",1]]')
    (('api', 1), ('tenant/acme', 1))
    """
    return tuple((group, units) for group, units in json.loads(chain)[1:])


@lru_cache(maxsize=16384)
def groups_of(chain: str) -> tuple[str, ...]:
    """
    >>> groups_of('["mail",["api",1],["tenant/acme",1]]')
    ('api', 'tenant/acme')
    """
    return tuple(group for group, _ in held_in(chain))


def ways(queue: str, needs: Needs) -> Iterator[tuple[str, Sequence[Need]]]:
    """The chains that a job of these needs could go on in, and what it would hold there."""
    plans: list[list[Need]] = [list(needs.all)]
    for members in needs.one_of:
        plans = [
            [*plan, member]
            for plan in plans
            for member in members
            if all(member.group != other.group for other in plan)
        ]
    for plan in plans:
        yield chain_of(queue, ((need.group, need.units) for need in plan)), plan


class Ahead:
    """What one claim may reserve: seconds of work, chain by chain."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self.room = claim.ahead_room
        self._keyed = claim.ahead_room if claim.ahead_keyed is None else claim.ahead_keyed
        self._fresh: defaultdict[str, float] = defaultdict(float)
        self._granted: Counter[str] = Counter()
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._waiting: defaultdict[str, set[frozenset[str]]] = defaultdict(set)
        """By group, for each lane found waiting for it the chains that it could go on in."""
        self._wanted_elsewhere: set[str] = set()
        self._most: dict[str, float] = {}
        """By chain, the seconds that may be reserved in all, as far as they were asked for."""

    @property
    def open(self) -> bool:
        return self.room > 0 and bool(self._claim.ahead)

    @property
    def chains(self) -> set[str]:
        """All that could go on: what runs, and what this claim has granted."""
        held = {chain for chain, now in self._claim.chains.items() if now.places}
        return held | set(self._fresh)

    def can_give_way(self) -> str | None:
        """A chain with so many places that it can leave one to somebody else."""
        places = Counter({chain: now.places for chain, now in self._claim.chains.items()})
        places.update(self._granted)
        chain, most = max(places.items(), key=lambda one: one[1], default=(None, 0))
        return chain if most >= MANY_PLACES else None

    def granted(self, chain: str, task: str) -> None:
        """A slot was granted in this claim: whoever else waits, this much may follow."""
        self._granted[chain] += 1
        self._fresh[chain] += self._claim.ahead_work if task in self._claim.ahead else 0.0
        self._most.clear()

    def found_waiting(self, group: str, chains: Iterable[str]) -> None:
        """A lane waits for this group; it could go on in one of these chains, if in any."""
        self._waiting[group].add(frozenset(chains))
        self._most.clear()

    def wanted_elsewhere(self, groups: Iterable[str]) -> None:
        self._wanted_elsewhere.update(groups)
        self._most.clear()

    def seconds(self, task: str) -> float | None:
        """How long such a job takes at most as a rule; None: it must not be reserved."""
        seconds: Mapping[str, float] = self._claim.ahead
        return max(SHORTEST, seconds[task]) if task in seconds else None

    def room_for(self, turn: str) -> int:
        """How many more may be reserved of this turn."""
        return min(self.room, self._keyed) if turn else self.room

    def left(self, chain: str) -> float:
        """Seconds of work that may still be reserved behind the slots of this chain."""
        most = self._most.get(chain)
        if most is None:
            most = self._most[chain] = self._reckon(chain)
        return most - self._spent[chain]

    def _reckon(self, chain: str) -> float:
        now = self._claim.chains.get(chain)
        held = 0.0
        if now is not None:
            work = self._claim.ahead_work * now.places
            held = (0.0 if self._others_wait(chain) else work) - now.waiting
        return held + self._fresh[chain]

    def spend(self, chain: str, turn: str, jobs: int, seconds: float) -> None:
        """So many were reserved, each of so many seconds."""
        self.room -= jobs
        self._keyed -= jobs if turn else 0
        self._spent[chain] += jobs * seconds

    def _others_wait(self, chain: str) -> bool:
        return any(
            group in self._wanted_elsewhere
            or any(chain not in chains for chains in self._waiting[group])
            for group in groups_of(chain)
        )

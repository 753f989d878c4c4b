"""What several shards hold, looked at as one store: each is asked, or the one it concerns, and the
answers are laid together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from headgate.errors import JobNotFound
from headgate.jobs import (
    AttemptRecord,
    JobFilter,
    JobRecord,
    State,
    Unrouted,
)
from headgate.limits import check_group, split_group
from headgate.stores.bucket import merged
from headgate.stores.bucket.delivery import Delivery
from headgate.stores.bucket.shard import LAST, Shard
from headgate.stores.bucket.shards import (
    OWN_GROUPS,
    Directory,
    shard_of,
)
from headgate.stores.bucket.together import Together
from headgate.stores.protocol import (
    Costs,
    Due,
    Ended,
    EndRecord,
    EventRecord,
    GroupPage,
    JobPage,
    LanePage,
    LaneWalk,
    LimitLoad,
    LimitPage,
    LimitRecord,
    OutputRecord,
    QueueRecord,
    ScheduleRecord,
    SlotRecord,
    TaskSpec,
    TickRecord,
    Trouble,
    Why,
    Words,
    WorkerRecord,
)

T = TypeVar("T")

EVENTS_LOOK = 5000


class ShardedLooks:
    """The operations that change nothing."""

    shards: list[Shard]
    directory: Directory
    delivery: Delivery
    _together: Together

    def now(self) -> float:
        return self.shards[0].now()

    def _each(self, work: Callable[[Shard], T]) -> list[T]:
        """Of every shard, in their order."""
        self.delivery.wait()
        works = {shard.number: lambda shard=shard: work(shard) for shard in self.shards}
        return list(self._together.do(works).values())

    # --- where things are ------------------------------------------------------------------------

    def _of_token(self, token: int) -> Shard:
        # A number that no shard gives is unknown to any of them.
        return self.shards[min(max(0, shard_of(token)), len(self.shards) - 1)]

    def _of_group(self, group: str) -> Shard:
        """To look at it: what has no home yet is nowhere, and any shard says so."""
        self.directory.home("limit", split_group(group)[0])
        return self.shards[self._limit_home(group)]

    def _of_job(self, id: str) -> Shard:
        """The shard that has this job; of one that nobody has, any of them says so."""
        self.delivery.wait()
        for shard in self.shards:
            if shard.has(id):
                return shard
        has = self._each(lambda shard: shard.has_now(id))
        return self.shards[has.index(True) if True in has else 0]

    def _limit_home(self, group: str) -> int:
        # Without a home of its own it may be one that a submission named for itself.
        homes = self.directory.homes.limits
        return homes.get(split_group(group)[0], homes.get(OWN_GROUPS, 0))

    # --- limits, tasks, queues, workers ----------------------------------------------------------

    def task(self, name: str) -> TaskSpec | None:
        return self.shards[self.directory.home("task", name) or 0].task(name)

    def tasks(self) -> list[TaskSpec]:
        self.directory.refresh()
        homes = self.directory.homes.tasks
        told = self._each(lambda shard: shard.tasks())
        return merged.by_home(told, lambda spec: spec.name, lambda name: homes.get(name, 0))

    def values(self, groups: Iterable[str]) -> dict[str, LimitRecord]:
        wanted = list(groups)
        by_shard: dict[int, list[str]] = {}
        known = self.directory.homes.limits
        if not all(split_group(group)[0] in known for group in wanted):
            self.directory.refresh()
        for group in wanted:
            by_shard.setdefault(self._limit_home(group), []).append(group)
        found: dict[str, LimitRecord] = {}
        works = {k: lambda k=k: self.shards[k].values(by_shard[k]) for k in by_shard}
        for records in self._together.do(works).values():
            found |= records
        return {group: found[group] for group in wanted}

    def words(self) -> list[Words]:
        told = self._each(lambda shard: shard.words())
        return sorted((one for ones in told for one in ones), key=lambda one: one.group)

    def limits(self) -> list[LimitRecord]:
        self.directory.refresh()
        told = self._each(lambda shard: shard.limits())
        return merged.by_home(told, lambda one: one.group, self._limit_home)

    def group(self, group: str) -> tuple[LimitRecord, list[SlotRecord]]:
        return self._of_group(check_group(group)).group(group)

    def groups(self) -> list[str]:
        return sorted({group for groups in self._each(lambda s: s.groups()) for group in groups})

    def queues(self) -> list[QueueRecord]:
        return merged.queues(self._each(lambda shard: shard.queues()))

    def workers(self) -> list[WorkerRecord]:
        return merged.workers(self._each(lambda shard: shard.workers()))

    def events(
        self, kind: str | None = None, limit: int = 100, subject: str | None = None
    ) -> list[EventRecord]:
        return self._events(kind or "", subject or "", None, limit, LAST)

    def past_events(
        self, kind: str = "", subject: str = "", before: int | None = None, limit: int = 100
    ) -> list[EventRecord]:
        return self._events(kind, subject, before, limit, EVENTS_LOOK)

    def _events(
        self, kind: str, subject: str, before: int | None, limit: int, look: int
    ) -> list[EventRecord]:
        told = self._each(lambda shard: shard.told(kind, subject, before, limit, look))
        every = [event for events in told for event in events]
        return sorted(every, key=lambda event: event.seq, reverse=True)[:limit]

    # --- watch -----------------------------------------------------------------------------------

    def loads(self) -> list[LimitLoad]:
        self.directory.refresh()
        told = self._each(lambda shard: shard.loads())
        return merged.by_home(told, lambda one: one.limit.group, self._limit_home)

    def limit_page(
        self, limit: int = 100, after: str | None = None, *, said: bool = False
    ) -> LimitPage:
        self.directory.refresh()
        told = self._each(lambda shard: shard.limit_page(limit, after, said=said))
        return merged.limit_page(told, limit, self._limit_home)

    def lanes(self, walk: LaneWalk) -> LanePage:
        return merged.lanes(self._each(lambda shard: shard.lanes(walk)), walk.lanes)

    def held_groups(self, start: str, after: str | None = None, limit: int = 100) -> GroupPage:
        told = self._each(lambda shard: shard.held_groups(start, after, limit))
        return merged.held_groups(told, limit)

    def ended(self, edges: Sequence[float], bound: int = 1000) -> list[Ended]:
        return merged.ended(self._each(lambda shard: shard.ended(edges, bound)))

    def ends(self, since: float = 0.0, limit: int = 1000) -> list[EndRecord]:
        told = self._each(lambda shard: shard.ends(since, limit))
        every = [end for ends in told for end in ends]
        return sorted(every, key=lambda end: end.at, reverse=True)[:limit]

    def browse(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> JobPage:
        return merged.Browse(self.shards, filter, limit, after).page(self._each)

    def listing(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> JobPage:
        if after is None or "~" in after or ":" in after:
            return merged.Listing(self.shards, filter, limit, after).page(self._each)
        home = self._of_job(after)
        moment = home.created_at(after)
        if moment is None:
            raise JobNotFound(
                f"{after!r} names no job after which to go on: take what the page before gave"
            )
        places = [
            after if shard is home
            # Of one moment the first shard's come first, so the later ones' are all to come.
            else shard.since(moment, included=shard.number < home.number) or merged.START
            for shard in self.shards
        ]  # fmt: skip
        return merged.Listing(self.shards, filter, limit, "~".join(places)).page(self._each)

    # --- schedules -------------------------------------------------------------------------------

    def due_schedules(self, limit: int = 100, without: frozenset[str] = frozenset()) -> Due:
        return merged.due(self._each(lambda shard: shard.due_schedules(limit, without)), limit)

    def schedules(self) -> list[ScheduleRecord]:
        told = self._each(lambda shard: shard.schedules())
        return sorted((one for ones in told for one in ones), key=lambda one: one.spec.name)

    def schedule(self, name: str) -> ScheduleRecord | None:
        home = self.directory.home("schedule", name)
        return None if home is None else self.shards[home].schedule(name)

    def ticks(self, name: str, limit: int = 20) -> list[TickRecord]:
        home = self.directory.home("schedule", name)
        return [] if home is None else self.shards[home].ticks(name, limit)

    # --- jobs ------------------------------------------------------------------------------------

    def job(self, id: str) -> JobRecord | None:
        return self._of_job(id).job(id)

    def attempts(self, id: str) -> list[AttemptRecord]:
        return self._of_job(id).attempts(id)

    def output(
        self, id: str, after: tuple[int, int] = (0, -1), limit: int = 100
    ) -> list[OutputRecord]:
        return self._of_job(id).output(id, after, limit)

    def last_output(
        self, id: str, before: tuple[int, int] | None = None, limit: int = 100
    ) -> list[OutputRecord]:
        return self._of_job(id).last_output(id, before, limit)

    def find(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> list[JobRecord]:
        if after is None:
            return merged.newest(self._each(lambda shard: shard.find(filter, limit)), limit)
        home = self._of_job(after)
        moment = home.created_at(after)
        if moment is None:
            return []

        def rest(shard: Shard) -> list[JobRecord]:
            if shard is home:
                return shard.find(filter, limit, after)
            # Of one moment the first shard's come first, so the later ones' are all to come.
            place = shard.since(moment, included=shard.number < home.number)
            return shard.find(filter, limit, place)

        return merged.newest(self._each(rest), limit)

    def latest(self, task: str, state: State, look: int = 10_000) -> JobRecord | None:
        home = self.directory.home("task", task)
        return None if home is None else self.shards[home].latest(task, state, look)

    def count(self, filter: JobFilter, limit: int = 10_000) -> int:
        return min(limit, sum(self._each(lambda shard: shard.count(filter, limit))))

    def why(self, id: str) -> Why:
        return self._of_job(id).why(id)

    def unrouted(self, tasks: frozenset[str], limit: int = 100) -> list[Unrouted]:
        told = self._each(lambda shard: shard.unrouted(tasks, limit))
        return [one for ones in told for one in ones][:limit]

    def remaining(
        self,
        tasks: frozenset[str],
        queues: tuple[str, ...] | None,
        closed: frozenset[str] = frozenset(),
    ) -> int:
        return sum(self._each(lambda shard: shard.remaining(tasks, queues, closed)))

    def oddities(self, older: float = 60.0) -> list[Trouble]:
        found = merged.troubles(self._each(lambda shard: shard.oddities(older)))
        for shard in self.shards:
            if shard.outgoing(older):
                found.append(
                    Trouble(
                        "outbox",
                        f"shard {shard.number} has jobs for other shards that nobody has moved for"
                        f" {older:g} seconds: no worker sweeps",
                    )
                )
        return found

    def costs(self) -> Costs:
        return merged.costs(self._each(lambda shard: shard.costs()))

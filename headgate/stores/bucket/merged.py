"""What several shards tell, as if it were one store's."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from headgate.errors import StoreError
from headgate.jobs import JobFilter, JobRecord
from headgate.stores.bucket.costs import of_million, price
from headgate.stores.bucket.traffic import JOBS
from headgate.stores.protocol import (
    Costs,
    Due,
    Ended,
    GroupLoad,
    GroupPage,
    JobPage,
    LanePage,
    LanePlace,
    LedgerRecord,
    LimitPage,
    QueueRecord,
    Sweep,
    Trouble,
    WorkerRecord,
)

T = TypeVar("T")


def by_home(
    told: Sequence[Sequence[T]], name: Callable[[T], str], home: Callable[[str], int]
) -> list[T]:
    """Of what several shards tell, that of the shard where it is at home; by name."""
    found: dict[str, T] = {}
    for shard, ones in enumerate(told):
        for one in ones:
            if name(one) not in found or home(name(one)) == shard:
                found[name(one)] = one
    return [found[key] for key in sorted(found)]


def queues(told: Sequence[Sequence[QueueRecord]]) -> list[QueueRecord]:
    found: dict[str, QueueRecord] = {}
    for one in (record for records in told for record in records):
        known = found.get(one.name)
        if known is not None:
            oldest = [t for t in (known.oldest_ready_at, one.oldest_ready_at) if t is not None]
            found[one.name] = QueueRecord(
                one.name,
                known.paused or one.paused,
                known.waiting + one.waiting,
                known.running + one.running,
                known.scheduled + one.scheduled,
                min(oldest, default=None),
                known.bounded or one.bounded,
                known.paused_by or one.paused_by,
            )
        else:
            found[one.name] = one
    return [found[name] for name in sorted(found)]


def workers(told: Sequence[Sequence[WorkerRecord]]) -> list[WorkerRecord]:
    found: dict[str, list[WorkerRecord]] = {}
    for one in (record for records in told for record in records):
        found.setdefault(one.id, []).append(one)
    return [_worker(ones, len(told)) for ones in found.values()]


def _worker(ones: list[WorkerRecord], shards: int) -> WorkerRecord:
    first = ones[0]
    # Who was taken away from one of them will be from all: it ends as soon as it hears of it.
    dead = len(ones) < shards or any(one.state == "dead" for one in ones)
    ends = [one.lease_ends for one in ones if one.lease_ends is not None]
    return replace(
        first,
        tasks=tuple(dict.fromkeys(task for one in ones for task in one.tasks)),
        started_at=min(one.started_at for one in ones),
        state="dead" if dead else first.state,
        running=sum(one.running for one in ones),
        lease_ends=min(ends, default=None),
    )


def sweeps(told: Sequence[Sweep]) -> Sweep:
    removed: dict[str, int] = {}
    for task, runs in (one for sweep in told for one in sweep.removed):
        removed[task] = removed.get(task, 0) + runs
    return Sweep(
        tuple(dict.fromkeys(worker for sweep in told for worker in sweep.lost_workers)),
        sum(sweep.lost_attempts for sweep in told),
        sum(sweep.expired_jobs for sweep in told),
        sum(sweep.expired_slots for sweep in told),
        tuple(removed.items()),
    )


def lanes(told: Sequence[LanePage], limit: int) -> LanePage:
    every = sorted((lane for page in told for lane in page.lanes), key=lambda x: _place(x.place))
    kept = tuple(every[:limit])
    more = len(every) > limit or any(page.after is not None for page in told)
    return LanePage(kept, kept[-1].place if more and kept else None)


def _place(place: LanePlace) -> tuple[str, int, str, str, str]:
    return place.queue, place.priority, place.band, place.turn, place.lane


def held_groups(told: Sequence[GroupPage], limit: int) -> GroupPage:
    # What lies behind the end of a page that has more is not known yet.
    ends = [page.after for page in told if page.after is not None]
    end = min(ends, default=None)
    found: dict[str, GroupLoad] = {}
    for one in (group for page in told for group in page.groups):
        if end is None or one.group <= end:
            found[one.group] = one  # a group is held in one shard
    kept = [found[name] for name in sorted(found)][:limit]
    more = end is not None or len(found) > limit
    return GroupPage(tuple(kept), kept[-1].group if more and kept else end)


def limit_page(told: Sequence[LimitPage], limit: int, home: Callable[[str], int]) -> LimitPage:
    end = min((page.after for page in told if page.after is not None), default=None)
    limits = by_home([page.limits for page in told], lambda one: one.group, home)
    every = by_home([page.groups for page in told], lambda one: one.group, home)
    declared = {one.group for one in limits}
    found = [
        one for one in every
        if one.group not in declared and (end is None or one.group <= end)
    ]  # fmt: skip
    if len(found) > limit:
        found, end = found[:limit], found[limit - 1].group
    return LimitPage(tuple(limits), tuple(found), end)


def ended(told: Sequence[Sequence[Ended]]) -> list[Ended]:
    return [
        Ended(
            sum(one.succeeded for one in ones),
            sum(one.failed for one in ones),
            sum(one.cancelled for one in ones),
            any(one.bounded for one in ones),
        )
        for ones in zip(*told, strict=True)
    ]


def newest(told: Sequence[Sequence[JobRecord]], limit: int) -> list[JobRecord]:
    """Jobs of several shards, each the newest first; at the same moment, shard by shard."""
    merged = heapq.merge(
        *([(-job.created_at, shard, i, job) for i, job in enumerate(jobs)]
          for shard, jobs in enumerate(told))
    )  # fmt: skip
    return [job for _, _, _, job in merged][:limit]


def due(told: Sequence[Due], limit: int) -> Due:
    every = [one for due in told for one in due.schedules]
    every.sort(key=lambda one: (one.next_at or 0.0, one.spec.name))
    nexts = [one.next_at for one in told if one.next_at is not None]
    return Due(max(one.now for one in told), tuple(every[:limit]), min(nexts, default=None))


def troubles(told: Sequence[Sequence[Trouble]]) -> list[Trouble]:
    """What all of them tell alike is told once."""
    return list(dict.fromkeys(one for ones in told for one in ones))


def costs(told: Sequence[Costs]) -> Costs:
    requests: Counter[str] = Counter()
    objects: Counter[str] = Counter()
    for one in told:
        requests.update(one.requests)
        objects.update(one.objects)
    jobs = sum(one.jobs for one in told)
    idle: dict[str, float] = {}
    for one in told:
        for kind, count in one.idle.requests.items():
            idle[kind] = idle.get(kind, 0.0) + count
    return Costs(
        days=max(one.days for one in told),
        jobs=jobs,
        requests=dict(requests),
        million=of_million(Counter({**requests, JOBS: jobs})),
        idle=price(idle),
        prices=told[0].prices,
        ledger=_ledgers([one.ledger for one in told]),
        objects=dict(objects),
        unnamed=sum(one.unnamed for one in told),
    )


def _ledgers(told: Sequence[LedgerRecord]) -> LedgerRecord:
    """All of them together; `bytes` is that of the largest, for each is an object of its own."""
    ends = [one.checkpoint for one in told if one.checkpoint is not None]
    return LedgerRecord(
        format=told[0].format,
        seq=sum(one.seq for one in told),
        bytes=max(one.bytes for one in told),
        entries=sum(one.entries for one in told),
        runs=sum(one.runs for one in told),
        run_bytes=sum(one.run_bytes for one in told),
        checkpoint=max(ends, default=None),
        checkpoint_bytes=sum(one.checkpoint_bytes for one in told),
        copy_bytes=sum(one.copy_bytes for one in told),
    )


class Pages(Protocol):
    def browse(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> JobPage: ...
    def listing(self, filter: JobFilter, limit: int = 50, after: str | None = None) -> JobPage: ...


START, END = "", "-"


class Browse:
    """A page of a search through several shards. Where it goes on is where each of them does."""

    def __init__(
        self, shards: Sequence[Pages], filter: JobFilter, limit: int, after: str | None
    ) -> None:
        self._filter = filter
        self._limit = limit
        places = [START] * len(shards) if after is None else after.split("~")
        if len(places) != len(shards):
            raise StoreError(
                f"{after!r} is no place in this list: take the one that the page before gave"
            )
        self._places = {id(shard): place for shard, place in zip(shards, places, strict=True)}

    def page(self, each: Callable[[Callable[[Any], Any]], list[Any]]) -> JobPage:
        pages: list[JobPage] = each(lambda shard: self._look(shard, self._limit))
        merged = heapq.merge(*map(self._keyed, range(len(pages)), pages))
        first = list(itertools.islice(merged, self._limit))
        kept = [job for _, _, _, job in first]
        taken = Counter(shard for _, shard, _, _ in first)
        counts = iter(range(len(pages)))
        by_shard = {place: next(counts) for place in self._places}

        def on(shard: Pages) -> str:
            k = by_shard[id(shard)]
            if taken[k] == len(pages[k].jobs):
                return pages[k].after or END
            # Some of its page are left for the next one: it goes on behind those that were taken.
            if not taken[k]:
                return self._places[id(shard)]
            return self._look(shard, taken[k]).after or END

        places: list[str] = each(on)
        done = all(place == END for place in places)
        return JobPage(tuple(kept), None if done else "~".join(places))

    def _look(self, shard: Pages, limit: int) -> JobPage:
        place = self._places[id(shard)]
        if place == END:
            return JobPage((), None)
        return self._ask(shard, limit, place or None)

    def _ask(self, shard: Pages, limit: int, place: str | None) -> JobPage:
        return shard.browse(self._filter, limit, place)

    def _keyed(self, shard: int, page: JobPage) -> list[tuple[float, int, int, JobRecord]]:
        return [(self._key(job), shard, i, job) for i, job in enumerate(page.jobs)]

    def _key(self, job: JobRecord) -> float:
        """In the order of each shard: by when it came into its state, the latest first."""
        if len(self._filter.states) == 1:
            if job.done:
                return -(job.finished_at or 0.0)
            if job.state == "running":
                return -(job.started_at or 0.0)
            if job.state == "scheduled":
                return job.run_at or 0.0
        return -job.created_at


class Listing(Browse):
    """The same of listings: the newest first, as long as each of them lists so. Where one stops
    before a page is full, what comes next of it may be newer than what others gave."""

    def page(self, each: Callable[[Callable[[Any], Any]], list[Any]]) -> JobPage:
        page = super().page(each)
        by_state = page.after is None or ":" in page.after
        if by_state or len(page.jobs) < self._limit:
            return page
        return replace(page, after=page.jobs[-1].id)

    def _ask(self, shard: Pages, limit: int, place: str | None) -> JobPage:
        return shard.listing(self._filter, limit, place)

    def _key(self, job: JobRecord) -> float:
        return -job.created_at

"""Several shards as one store: `s3://bucket/prefix?shards=4`.

A task, all its limits with all their keys and its jobs live in one shard, a whole store of its own
below `prefix/shard-K/`; nothing spans two of them, and nobody coordinates them: any worker serves
all. What is asked of the one store is asked of the shard that it concerns, or of all at once.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from typing import TypeVar

from headgate.clock import Clock
from headgate.errors import ConfigError, HeadgateError, WrongConnection
from headgate.jobs import (
    AttemptRecord,
    JobFilter,
    JobRecord,
    NewJob,
    Retention,
    Routing,
    State,
    Submitted,
    Unrouted,
)
from headgate.limits import check_group, split_group
from headgate.schedules.template import task_of
from headgate.stores.bucket import merged, probe
from headgate.stores.bucket.dealing import Deal, Heard, beyond
from headgate.stores.bucket.following import Sharded
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.objects import Objects
from headgate.stores.bucket.outbox import LEFT, Part
from headgate.stores.bucket.replica import folder_of
from headgate.stores.bucket.s3 import S3
from headgate.stores.bucket.shard import LAST, Shard
from headgate.stores.bucket.shards import (
    OWN_GROUPS,
    TOKENS,
    Directory,
    Joined,
    of_job,
    of_needs,
    of_publication,
    shard_of,
)
from headgate.stores.bucket.store import BucketStore
from headgate.stores.bucket.url import of_shard, parse
from headgate.stores.protocol import (
    Bell,
    Costs,
    Due,
    Ended,
    EndRecord,
    EventRecord,
    Exchange,
    Exchanged,
    GroupPage,
    JobPage,
    LanePage,
    LaneWalk,
    LimitChange,
    LimitLoad,
    LimitRecord,
    NewWorker,
    Output,
    OutputRecord,
    Publication,
    QueueRecord,
    Registration,
    ScheduleRecord,
    Schedules,
    SlotRecord,
    SlotRequest,
    Sweep,
    TaskSpec,
    Ticking,
    TickRecord,
    Trouble,
    Why,
    Words,
    WorkerRecord,
)
from headgate.stores.protocol import Store as StoreProtocol
from headgate.stores.relational.routing import conflict
from headgate.stores.relational.scheduling import not_found
from headgate.stores.relational.store import check_chunk
from headgate.stores.sqlite.bell import Bells

T = TypeVar("T")
log = logging.getLogger("headgate.store")

EVENTS_LOOK = 5000


def open_bucket(
    url: str, *, clock: Clock | None = None, objects: Objects | None = None
) -> StoreProtocol:
    """The store at this url, of one shard or of several."""
    shards = parse(url).shards
    if shards is not None and shards > 1:
        return ShardedStore(url, clock=clock, objects=objects)
    try:
        return BucketStore(url, clock=clock, objects=objects)
    except Sharded as error:
        if shards == 1:
            raise ConfigError(f"{error}; the url asks for one: leave shards= out") from error
        return ShardedStore(url, clock=clock, objects=objects)


class ShardedStore:
    """A prefix of a bucket with several shards, shared by any number of machines."""

    capabilities = BucketStore.capabilities

    def __init__(
        self, url: str, *, clock: Clock | None = None, objects: Objects | None = None
    ) -> None:
        address = parse(url)
        self.url = address.shown
        self._objects = objects or S3(address)
        layout, folder = Layout(address.prefix), folder_of(address)
        probe.check(self._objects, layout, folder, self.url)
        self.directory = Directory(self._objects, layout, self.url)
        self.directory.open(address.shards)
        self._bells = Bells(folder)
        self._fresh()

        def shard(number: int) -> Shard:
            part = Part(number, number << TOKENS, self._bells, self.home)
            return Shard(of_shard(url, layout.shard(number)), self._objects, clock, part)

        count = self.directory.homes.shards
        with ThreadPoolExecutor(count) as pool:
            self.shards = list(pool.map(shard, range(count)))
        self.directory.in_use = lambda home, group: self.shards[home].in_use(group)

    def _fresh(self) -> None:
        """As it is in a new process; threads of a parent do not exist in a fork."""
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._moving: Future[None] | None = None
        self._to_move = False
        self._unheard: dict[str, Heard] = {}

    def close(self) -> None:
        self._moved()
        if self._threads is not None and self._pid == os.getpid():
            self._threads.shutdown()
        for shard in self.shards:
            shard.close()
        self._objects.close()

    def now(self) -> float:
        return self.shards[0].now()

    # --- many at once -----------------------------------------------------------------------------

    def _pool(self) -> ThreadPoolExecutor:
        if self._pid != os.getpid():
            self._fresh()
        with self._guard:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(8 * len(self.shards), "headgate-shards")
            return self._threads

    def _try(self, works: Mapping[int, Callable[[], T]]) -> dict[int, T | Exception]:
        """Each in a thread of its own, but for the last: what it answered, or how it failed."""
        if not works:
            return {}
        *others, last = works.items()
        pool = self._pool() if others else None
        begun: dict[int, Future[T | Exception]] = {}
        if pool is not None:
            # Each in a copy of this thread's context: `glancing` is meant for all of them.
            for k, work in others:
                begun[k] = pool.submit(copy_context().run, _caught, work)
        found = {last[0]: _caught(last[1])}
        return {k: begun[k].result() if k in begun else found[k] for k in works}

    def _do(self, works: Mapping[int, Callable[[], T]]) -> dict[int, T]:
        """The same; raises what the first of them raised, when all have ended."""
        found: dict[int, T] = {}
        failed: Exception | None = None
        for k, answer in self._try(works).items():
            if isinstance(answer, Exception):
                failed = failed or answer
            else:
                found[k] = answer
        if failed is not None:
            raise failed
        return found

    def _each(self, work: Callable[[Shard], T]) -> list[T]:
        """Of every shard, in their order."""
        self._moved()
        works = {shard.number: lambda shard=shard: work(shard) for shard in self.shards}
        return list(self._do(works).values())

    # --- where things are -------------------------------------------------------------------------

    def home(self, job: NewJob) -> int:
        return self.directory.settle([of_job(job)])[0]

    def _of_token(self, token: int) -> Shard:
        # A number that no shard gives is unknown to any of them.
        return self.shards[min(max(0, shard_of(token)), len(self.shards) - 1)]

    def _of_group(self, group: str) -> Shard:
        """To look at it: what has no home yet is nowhere, and any shard says so."""
        self.directory.home("limit", split_group(group)[0])
        return self.shards[self._limit_home(group)]

    def _by_hand(self, group: str) -> Shard:
        return self.shards[self.directory.by_hand(group)]

    def _of_job(self, id: str) -> Shard:
        """The shard that has this job; of one that nobody has, any of them says so."""
        self._moved()
        for shard in self.shards:
            if shard.has(id):
                return shard
        has = self._each(lambda shard: shard.has_now(id))
        return self.shards[has.index(True) if True in has else 0]

    def _of_schedule(self, name: str) -> Shard:
        home = self.directory.home("schedule", name)
        if home is None:
            raise not_found(name)
        return self.shards[home]

    def _limit_home(self, group: str) -> int:
        # Without a home of its own it may be one that a submission named for itself.
        homes = self.directory.homes.limits
        return homes.get(split_group(group)[0], homes.get(OWN_GROUPS, 0))

    # --- declare ----------------------------------------------------------------------------------

    def publish(self, publication: Publication) -> None:
        """All shards know all tasks and values; only what is counted is in one of them."""
        self.directory.settle(of_publication(publication))
        self._each(lambda shard: shard.publish(publication))

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
        for records in self._do(works).values():
            found |= records
        return {group: found[group] for group in wanted}

    # --- submit -----------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob]) -> list[Submitted]:
        """One transaction for each shard: if one fails the others are stored, and the same submit
        again stores the rest, for a job that is there is not stored twice."""
        check_chunk(jobs)
        homes = self.directory.settle([of_job(job) for job in jobs])
        by_shard: dict[int, list[int]] = {}
        for i, home in enumerate(homes):
            by_shard.setdefault(home, []).append(i)
            self._check_key(jobs[i], home)
        works = {
            k: lambda k=k: self.shards[k].submit([jobs[i] for i in by_shard[k]]) for k in by_shard
        }
        results: dict[int, Submitted] = {}
        for k, answers in self._do(works).items():
            results.update(zip(by_shard[k], answers, strict=True))
        return [results[i] for i in range(len(jobs))]

    def _check_key(self, job: NewJob, home: int) -> None:
        """A key that another shard knows is another task's: as far as this machine has heard."""
        if job.idempotency_key is None:
            return
        for shard in self.shards:
            known = None if shard.number == home else shard.with_key(job.idempotency_key)
            if known is not None:
                raise conflict(job.idempotency_key, known)

    def submit_with(self, conn: object, jobs: Sequence[NewJob]) -> list[Submitted]:
        raise WrongConnection(
            f"conn= is for jobs that live in the database of your own transactions; those of"
            f" {self.url} live in a bucket. Submit without conn=, after your commit, or use a store"
            " on PostgreSQL"
        )

    async def asubmit_with(self, conn: object, jobs: Sequence[NewJob]) -> list[Submitted]:
        return self.submit_with(conn, jobs)

    def unrouted(self, tasks: frozenset[str], limit: int = 100) -> list[Unrouted]:
        told = self._each(lambda shard: shard.unrouted(tasks, limit))
        return [one for ones in told for one in ones][:limit]

    def route(self, routings: Sequence[Routing]) -> int:
        by_shard: dict[int, list[Routing]] = {}
        for routing in routings:
            shard = self._of_job(routing.job)
            by_shard.setdefault(shard.number, []).append(self._fitting(routing, shard.number))
        works = {k: lambda k=k: self.shards[k].route(by_shard[k]) for k in by_shard}
        return sum(self._do(works).values())

    def _fitting(self, routing: Routing, home: int) -> Routing:
        """A job that turns out to need what lives elsewhere can never run where it is."""
        record = None
        if not routing.needs and routing.task is None:
            return routing
        if routing.task is None:
            record = self.shards[home].job(routing.job)
        task = routing.task or ("" if record is None else record.task)
        names = (
            (("task", task), *of_needs(routing.needs)) if task else tuple(of_needs(routing.needs))
        )
        try:
            found = self.directory.settle([Joined(f"job {routing.job}", names)])[0]
        except HeadgateError as error:
            return replace(routing, error=routing.error or str(error))
        if found == home:
            return routing
        error = f"job {routing.job} lives in shard {home}, what it needs in shard {found}"
        return replace(routing, error=routing.error or error)

    # --- work -------------------------------------------------------------------------------------

    def register(self, worker: NewWorker) -> Registration:
        works = {s.number: lambda s=s: s.register(worker) for s in self.shards}
        answers = self._try(works)
        failed = next((a for a in answers.values() if isinstance(a, Exception)), None)
        if failed is not None:
            for k, answer in answers.items():
                if not isinstance(answer, Exception):
                    _caught(lambda k=k: self.shards[k].unregister(worker.id))
            raise failed
        return Registration(worker.id)

    def renew(self, worker: str) -> bool:
        works = {s.number: lambda s=s: s.renew(worker) for s in self.shards}
        return all(self._do(works).values())

    def mark(self, worker: str, state: str) -> None:
        self._each(lambda shard: shard.mark(worker, state))

    def unregister(self, worker: str) -> None:
        self._unheard.pop(worker, None)
        self._each(lambda shard: shard.unregister(worker))
        self._move_some(*self.shards)

    def declare_dead(self, worker: str, reason: str, started: frozenset[int] | None = None) -> None:
        self._unheard.pop(worker, None)
        self._each(lambda shard: shard.declare_dead(worker, reason, started))
        self._move_some(*self.shards)

    def exchange(self, exchange: Exchange) -> Exchanged:
        # Homes are given before the round trip: within it somebody waits for us.
        follow = [job for finish in exchange.finishes for job in finish.followups]
        if follow:
            self.directory.settle([of_job(job) for job in follow])
        heard = self._take_up(exchange)
        deal = Deal(self.shards, exchange, heard)
        try:
            deal.run(self._try)
            if follow or any(shard.outgoing(LEFT) for shard in self.shards):
                self._move()
        except Exception:
            # The others have answered, and the worker is told of it with its next round trip: what
            # they granted it holds, and what they were told must not be told again.
            self._keep_unheard(exchange.worker, heard)
            raise
        return heard.answer()

    def _take_up(self, exchange: Exchange) -> Heard:
        """What the last round trip of this worker was answered, if nobody has heard of it."""
        before = self._unheard.pop(exchange.worker, None)
        if before is None:
            return Heard()
        room = 0 if exchange.claim is None else exchange.claim.room
        kept, back = beyond(before.claimed, room)
        before.claimed = kept
        before.back += back
        before.wake_in = {}
        try:
            for k in {shard_of(finish.token) for finish in before.back}:
                mine = [finish for finish in before.back if shard_of(finish.token) == k]
                self.shards[k].exchange(Exchange(exchange.worker, mine))
            before.back.clear()
        except Exception:
            # Whether they were given back or not, they are never told: again is once too often at
            # the most, and then refused as stale.
            self._keep_unheard(exchange.worker, before)
            raise
        return before

    def _keep_unheard(self, worker: str, heard: Heard) -> None:
        while self._unheard.setdefault(worker, heard) is not heard:
            # Of another thread's round trip for the same worker, which failed meanwhile.
            before = self._unheard.pop(worker, None)
            if before is not None:
                heard.join(before)

    def extend(self, token: int, seconds: float) -> bool:
        return self._of_token(token).extend(token, seconds)

    def release_groups(self, token: int) -> bool:
        return self._of_token(token).release_groups(token)

    def retake_groups(self, token: int, waited: float = 0.0) -> bool:
        return self._of_token(token).retake_groups(token, waited)

    def overdue(self, token: int, reason: str) -> None:
        self._of_token(token).overdue(token, reason)

    def over_ran(self, job: str, token: int, worker: str, ago: float = 0.0) -> bool:
        return self._of_token(token).over_ran(job, token, worker, ago)

    def put_output(self, told: Sequence[Output]) -> frozenset[int]:
        by_shard: dict[int, list[Output]] = {}
        for output in told:
            by_shard.setdefault(self._of_token(output.token).number, []).append(output)
        works = {k: lambda k=k: self.shards[k].put_output(by_shard[k]) for k in by_shard}
        return frozenset[int]().union(*self._do(works).values())

    def sweep(self) -> Sweep:
        swept = merged.sweeps(self._each(lambda shard: shard.sweep()))
        self.deliver()
        return swept

    def prune(self, retention: Retention, limit: int = 1000) -> int:
        return sum(self._each(lambda shard: shard.prune(retention, limit)))

    def compact(self) -> None:
        """Nothing to do, as in each of them."""

    # --- jobs on their way ------------------------------------------------------------------------

    def deliver(self) -> int:
        """Move what waits in the outboxes to where it lives; how many jobs."""
        count = 0
        for shard in self.shards:
            if not shard.outgoing():
                continue
            # As it is now: what an old copy shows may have come elsewhere so long ago that this is
            # noted there no more.
            seen_at = Clock().boot()
            for home, jobs in shard.outbox().items():
                # There first, then gone from here: who dies in between has lost nothing, and who
                # does it again finds it noted there that the job has come.
                left = shard.outgoing_ids()
                if self.shards[home].take_in(shard.number, jobs, left, seen_at):
                    shard.arrived(jobs)
                    count += len(jobs)
        return count

    def _move(self) -> None:
        """Deliver beside what this process does else; one thread at a time."""
        pool = self._pool()
        with self._guard:
            # Who is about to end must see this first, or it would be left lying.
            self._to_move = True
            if self._moving is None:
                self._moving = pool.submit(self._deliver_all)

    def _deliver_all(self) -> None:
        while True:
            with self._guard:
                if not self._to_move:
                    self._moving = None
                    return
                self._to_move = False
            try:
                while self.deliver():
                    continue
            except Exception as error:  # whoever sweeps next tries again
                log.warning("%s: jobs for another shard wait: %s", self.url, error)

    def _move_some(self, *shards: Shard) -> None:
        """Something ended there without its code: who is to be told may live elsewhere."""
        if any(shard.outgoing() for shard in shards):
            self._move()

    def _moved(self) -> None:
        """Whoever looks sees what this process did before, also what is on its way."""
        moving = self._moving if self._pid == os.getpid() else None
        if moving is not None:
            moving.result()

    # --- slots by hand ----------------------------------------------------------------------------

    def take_slot(self, request: SlotRequest) -> SlotRecord | None:
        return self._by_hand(request.group).take_slot(request)

    def drop_slot(self, group: str, slot: int, token: int | None, by: str = "") -> bool:
        return self._of_group(group).drop_slot(group, slot, token, by)

    def extend_slot(self, group: str, slot: int, token: int, seconds: float) -> float | None:
        return self._of_group(group).extend_slot(group, slot, token, seconds)

    def expire_slots(self, group: str) -> int:
        return self._of_group(group).expire_slots(group)

    # --- operate ----------------------------------------------------------------------------------

    def change_limit(self, change: LimitChange) -> LimitRecord:
        return self.change_limits([change])[0]

    def change_limits(self, changes: Sequence[LimitChange]) -> list[LimitRecord]:
        """All of these or none where they concern one shard; else shard by shard."""
        by_shard: dict[int, list[int]] = {}
        for i, change in enumerate(changes):
            home = self._by_hand(check_group(change.group)).number
            by_shard.setdefault(home, []).append(i)
        found: dict[int, LimitRecord] = {}
        for k, mine in by_shard.items():
            found.update(
                zip(mine, self.shards[k].change_limits([changes[i] for i in mine]), strict=True)
            )
        return [found[i] for i in range(len(changes))]

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

    def pause_queue(self, queue: str, paused: bool, by: str = "", reason: str = "") -> None:
        self._each(lambda shard: shard.pause_queue(queue, paused, by, reason))

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

    # --- watch ------------------------------------------------------------------------------------

    def loads(self) -> list[LimitLoad]:
        self.directory.refresh()
        told = self._each(lambda shard: shard.loads())
        return merged.by_home(told, lambda one: one.limit.group, self._limit_home)

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

    # --- schedules --------------------------------------------------------------------------------

    def declare_schedules(self, schedules: Schedules) -> None:
        homes = self.directory.settle(
            [
                Joined(
                    f"schedule {spec.name!r}",
                    (("schedule", spec.name), ("task", task_of(spec.job))),
                )
                for spec in schedules.schedules
            ]
        )
        for shard in self.shards:
            mine = [s for s, k in zip(schedules.schedules, homes, strict=True) if k == shard.number]
            shard.declare_schedules(replace(schedules, schedules=tuple(mine)))

    def due_schedules(self, limit: int = 100, without: frozenset[str] = frozenset()) -> Due:
        return merged.due(self._each(lambda shard: shard.due_schedules(limit, without)), limit)

    def tick(self, tickings: Sequence[Ticking]) -> list[TickRecord]:
        by_shard: dict[int, list[Ticking]] = {}
        for one in tickings:
            home = self.directory.home("schedule", one.schedule)
            if home is not None:
                by_shard.setdefault(home, []).append(one)
        works = {k: lambda k=k: self.shards[k].tick(by_shard[k]) for k in by_shard}
        found = [record for records in self._do(works).values() for record in records]
        order = {one.schedule: i for i, one in enumerate(tickings)}
        return sorted(found, key=lambda record: order[record.schedule])

    def run_now(self, name: str, job: NewJob, by: str = "") -> TickRecord:
        return self._of_schedule(name).run_now(name, job, by)

    def schedules(self) -> list[ScheduleRecord]:
        told = self._each(lambda shard: shard.schedules())
        return sorted((one for ones in told for one in ones), key=lambda one: one.spec.name)

    def schedule(self, name: str) -> ScheduleRecord | None:
        home = self.directory.home("schedule", name)
        return None if home is None else self.shards[home].schedule(name)

    def ticks(self, name: str, limit: int = 20) -> list[TickRecord]:
        home = self.directory.home("schedule", name)
        return [] if home is None else self.shards[home].ticks(name, limit)

    def pause_schedule(self, name: str, paused: bool, by: str = "", reason: str = "") -> None:
        self._of_schedule(name).pause_schedule(name, paused, by, reason)

    # --- jobs -------------------------------------------------------------------------------------

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

    def cancel(self, id: str, by: str = "", reason: str = "") -> JobRecord:
        shard = self._of_job(id)
        cancelled = shard.cancel(id, by, reason)
        self._move_some(shard)
        return cancelled

    def retry(self, id: str, by: str = "") -> JobRecord:
        return self._of_job(id).retry(id, by)

    def relocate(
        self, id: str, *, queue: str | None = None, priority: int | None = None, by: str = ""
    ) -> JobRecord:
        return self._of_job(id).relocate(id, queue=queue, priority=priority, by=by)

    def why(self, id: str) -> Why:
        return self._of_job(id).why(id)

    def remaining(
        self,
        tasks: frozenset[str],
        queues: tuple[str, ...] | None,
        closed: frozenset[str] = frozenset(),
    ) -> int:
        return sum(self._each(lambda shard: shard.remaining(tasks, queues, closed)))

    def doctor(self, repair: bool = False) -> list[Trouble]:
        if repair:
            self.deliver()
        return merged.troubles(self._each(lambda shard: shard.doctor(repair)))

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

    # --- wake-ups ---------------------------------------------------------------------------------

    def bell(self, what: str) -> Bell:
        for shard in self.shards:
            shard.listen()
        return self._bells.listen(what)

    def ring(self, what: str) -> None:
        self._bells.ring(what)


def _caught(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except Exception as error:
        return error

"""Several shards as one store: `s3://bucket/prefix?shards=4`.

A task, all its limits with all their keys and its jobs live in one shard, a whole store of its own
below `prefix/shard-K/`; nothing spans two of them, and nobody coordinates them: any worker serves
all. What is asked of the one store is asked of the shard that it concerns, or of all at once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from headgate.clock import Clock
from headgate.errors import ConfigError, HeadgateError, WrongConnection
from headgate.jobs import (
    JobRecord,
    NewJob,
    Retention,
    Routing,
    Submitted,
)
from headgate.limits import check_group
from headgate.schedules.template import task_of
from headgate.stores.bucket import merged, probe
from headgate.stores.bucket.dealing import Deal, Heard, beyond
from headgate.stores.bucket.delivery import Delivery
from headgate.stores.bucket.following import Sharded
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.looks import ShardedLooks
from headgate.stores.bucket.objects import Objects
from headgate.stores.bucket.outbox import LEFT, Part
from headgate.stores.bucket.replica import folder_of
from headgate.stores.bucket.s3 import S3
from headgate.stores.bucket.shard import Shard
from headgate.stores.bucket.shards import (
    TOKENS,
    Directory,
    Joined,
    of_job,
    of_needs,
    of_publication,
    shard_of,
)
from headgate.stores.bucket.store import BucketStore
from headgate.stores.bucket.together import Together, caught
from headgate.stores.bucket.url import of_shard, parse
from headgate.stores.protocol import (
    Bell,
    Exchange,
    Exchanged,
    LimitChange,
    LimitRecord,
    NewWorker,
    Output,
    Publication,
    Registration,
    Schedules,
    SlotRecord,
    SlotRequest,
    Sweep,
    Ticking,
    TickRecord,
    Trouble,
)
from headgate.stores.protocol import Store as StoreProtocol
from headgate.stores.relational.routing import conflict
from headgate.stores.relational.scheduling import not_found
from headgate.stores.relational.store import check_chunk
from headgate.stores.sqlite.bell import Bells

T = TypeVar("T")
log = logging.getLogger("headgate.store")


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


class ShardedStore(ShardedLooks):
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
        self._unheard: dict[str, Heard] = {}

        def shard(number: int) -> Shard:
            part = Part(number, number << TOKENS, self._bells, self.home)
            return Shard(of_shard(url, layout.shard(number)), self._objects, clock, part)

        count = self.directory.homes.shards
        with ThreadPoolExecutor(count) as pool:
            self.shards = list(pool.map(shard, range(count)))
        self._together = Together(count)
        self.delivery = Delivery(self.shards, self._together, self.url)
        self.directory.in_use = lambda home, group: self.shards[home].in_use(group)

    def close(self) -> None:
        self.delivery.wait()
        self._together.close()
        for shard in self.shards:
            shard.close()
        self._objects.close()

    # --- where things are -------------------------------------------------------------------------

    def home(self, job: NewJob) -> int:
        return self.directory.settle([of_job(job)])[0]

    def _by_hand(self, group: str) -> Shard:
        return self.shards[self.directory.by_hand(group)]

    def _of_schedule(self, name: str) -> Shard:
        home = self.directory.home("schedule", name)
        if home is None:
            raise not_found(name)
        return self.shards[home]

    # --- declare ----------------------------------------------------------------------------------

    def publish(self, publication: Publication) -> None:
        """All shards know all tasks and values; only what is counted is in one of them."""
        self.directory.settle(of_publication(publication))
        self._each(lambda shard: shard.publish(publication))

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
        for k, answers in self._together.do(works).items():
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

    def route(self, routings: Sequence[Routing]) -> int:
        by_shard: dict[int, list[Routing]] = {}
        for routing in routings:
            shard = self._of_job(routing.job)
            by_shard.setdefault(shard.number, []).append(self._fitting(routing, shard.number))
        works = {k: lambda k=k: self.shards[k].route(by_shard[k]) for k in by_shard}
        return sum(self._together.do(works).values())

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
        answers = self._together.attempt(works)
        failed = next((a for a in answers.values() if isinstance(a, Exception)), None)
        if failed is not None:
            for k, answer in answers.items():
                if not isinstance(answer, Exception):
                    caught(lambda k=k: self.shards[k].unregister(worker.id))
            raise failed
        return Registration(worker.id)

    def renew(self, worker: str) -> bool:
        works = {s.number: lambda s=s: s.renew(worker) for s in self.shards}
        return all(self._together.do(works).values())

    def mark(self, worker: str, state: str) -> None:
        self._each(lambda shard: shard.mark(worker, state))

    def unregister(self, worker: str) -> None:
        self._unheard.pop(worker, None)
        self._each(lambda shard: shard.unregister(worker))
        self.delivery.begin_from(*self.shards)

    def declare_dead(self, worker: str, reason: str, started: frozenset[int] | None = None) -> None:
        self._unheard.pop(worker, None)
        self._each(lambda shard: shard.declare_dead(worker, reason, started))
        self.delivery.begin_from(*self.shards)

    def exchange(self, exchange: Exchange) -> Exchanged:
        # Homes are given before the round trip: within it somebody waits for us.
        follow = [job for finish in exchange.finishes for job in finish.followups]
        if follow:
            self.directory.settle([of_job(job) for job in follow])
        heard = self._take_up(exchange)
        deal = Deal(self.shards, exchange, heard)
        try:
            deal.run(self._together.attempt)
            if follow or any(shard.outgoing(LEFT) for shard in self.shards):
                self.delivery.begin()
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
        return frozenset[int]().union(*self._together.do(works).values())

    def sweep(self) -> Sweep:
        swept = merged.sweeps(self._each(lambda shard: shard.sweep()))
        self.delivery.deliver()
        return swept

    def prune(self, retention: Retention, limit: int = 1000) -> int:
        return sum(self._each(lambda shard: shard.prune(retention, limit)))

    def compact(self) -> None:
        """Nothing to do, as in each of them."""

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

    def pause_queue(self, queue: str, paused: bool, by: str = "", reason: str = "") -> None:
        self._each(lambda shard: shard.pause_queue(queue, paused, by, reason))

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

    def tick(self, tickings: Sequence[Ticking]) -> list[TickRecord]:
        by_shard: dict[int, list[Ticking]] = {}
        for one in tickings:
            home = self.directory.home("schedule", one.schedule)
            if home is not None:
                by_shard.setdefault(home, []).append(one)
        works = {k: lambda k=k: self.shards[k].tick(by_shard[k]) for k in by_shard}
        found = [record for records in self._together.do(works).values() for record in records]
        order = {one.schedule: i for i, one in enumerate(tickings)}
        return sorted(found, key=lambda record: order[record.schedule])

    def run_now(self, name: str, job: NewJob, by: str = "") -> TickRecord:
        return self._of_schedule(name).run_now(name, job, by)

    def pause_schedule(self, name: str, paused: bool, by: str = "", reason: str = "") -> None:
        self._of_schedule(name).pause_schedule(name, paused, by, reason)

    # --- jobs -------------------------------------------------------------------------------------

    def cancel(self, id: str, by: str = "", reason: str = "") -> JobRecord:
        shard = self._of_job(id)
        cancelled = shard.cancel(id, by, reason)
        self.delivery.begin_from(shard)
        return cancelled

    def retry(self, id: str, by: str = "") -> JobRecord:
        return self._of_job(id).retry(id, by)

    def relocate(
        self, id: str, *, queue: str | None = None, priority: int | None = None, by: str = ""
    ) -> JobRecord:
        return self._of_job(id).relocate(id, queue=queue, priority=priority, by=by)

    def doctor(self, repair: bool = False) -> list[Trouble]:
        if repair:
            self.delivery.deliver()
        return merged.troubles(self._each(lambda shard: shard.doctor(repair)))

    # --- wake-ups ---------------------------------------------------------------------------------

    def bell(self, what: str) -> Bell:
        for shard in self.shards:
            shard.listen()
        return self._bells.listen(what)

    def ring(self, what: str) -> None:
        self._bells.ring(what)

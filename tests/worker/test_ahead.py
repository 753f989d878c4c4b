"""Short jobs run through slots that are held, without a round trip in between: seen from the
jobs themselves and from the store, with a worker whose store is watched, never replaced."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from headgate import App, Context, JobHandle, Worker
from headgate.jobs import JobFilter
from headgate.stores.protocol import Exchange, Exchanged, LimitChange
from headgate.stores.protocol.claims import AHEAD
from headgate.worker.runner import Runner
from tests.waiting import PATIENCE, wait_until
from tests.worker.site import Site

WARM = 40
"""Jobs that end at once, so that the task is known to be short."""


def takes(seconds: float) -> None:
    """The work of a job."""
    time.sleep(seconds)


class Watched:
    """The real store; what its answers bring is counted."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.trips = 0
        self.reserved: set[str] = set()
        self.returned: Counter[str] = Counter()
        self.ended: set[int] = set()
        self.early: set[int] = set()
        """Attempts whose slots were handed on before their end was told."""

    def exchange(self, exchange: Exchange) -> Exchanged:
        self.ended.update(finish.token for finish in exchange.finishes)
        if exchange.claim is not None:
            followed = {one.owner for one in exchange.passed} - {None}
            self.early |= followed - self.ended
        answer = self._store.exchange(exchange)
        self.trips += 1
        self.returned.update(f.reason for f in exchange.finishes if f.outcome == "returned")
        self.reserved.update(claimed.job for claimed in answer.claimed if claimed.reserved)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Stage:
    """An app whose only task is a short one, but for the job that waits for `go`."""

    def __init__(self, folder: Path, kind: str, limit: int) -> None:
        self.app = App(f"sqlite:///{folder}/jobs.db")
        self.watched = Watched(self.app.store)
        self.app._store = self.watched  # type: ignore[assignment]
        self.limit = limit
        self.go = threading.Event()
        self.waits = threading.Event()
        self.ran: list[int] = []
        self.at_once = 0
        self.peak = 0
        self.lock = threading.Lock()
        self.extra: Callable[[Context, int], None] = lambda ctx, n: None
        self.handles: list[JobHandle[int]] = []

        if kind == "thread":

            @self.app.task(name="short", max_concurrent=limit)
            def in_thread(ctx: Context, n: int, stay: bool = False) -> int:
                with self.running(n):
                    self.extra(ctx, n)
                    if stay:
                        self.waits.set()
                        assert self.go.wait(PATIENCE)
                return n

            self.task: Any = in_thread
        else:

            @self.app.task(name="short", max_concurrent=limit)
            async def in_loop(ctx: Context, n: int, stay: bool = False) -> int:
                with self.running(n):
                    self.extra(ctx, n)
                    await asyncio.sleep(0)
                    if stay:
                        self.waits.set()
                        while not self.go.is_set():
                            await asyncio.sleep(0.005)
                return n

            self.task = in_loop

    @contextmanager
    def running(self, n: int) -> Iterator[None]:
        self.ran.append(n)
        self.count(+1)
        try:
            yield
        finally:
            self.count(-1)

    def count(self, change: int) -> None:
        with self.lock:
            self.at_once += change
            self.peak = max(self.peak, self.at_once)

    def submit(self, count: int, stay: int | None = None) -> None:
        calls = [self.task.call(n, stay=n == stay) for n in range(count)]
        self.handles += self.app.submit_many(calls)

    def burst(self, concurrency: int = 20) -> None:
        Worker(self.app, "w", concurrency=concurrency, burst=True).run()

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        worker = Worker(self.app, "w", concurrency=20)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield worker
        finally:
            self.go.set()
            if not worker._stop_asked:  # a second time would mean: at once
                worker.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def reserved(self) -> list[int]:
        """Those that the store shows as reserved now."""
        return [
            n
            for n, handle in enumerate(self.handles)
            if n not in self.ran and "has it reserved" in self.app.store.why(handle.id).detail
        ]

    def all_done(self) -> None:
        succeeded = JobFilter(states=frozenset(("succeeded",)))
        count = len(self.handles)
        wait_until(lambda: self.app.store.count(succeeded) == count, why="all succeeded")

    def check_each_ran_once(self) -> None:
        assert sorted(self.ran) == list(range(len(self.handles)))
        assert self.peak <= self.limit
        for handle in self.handles:
            (attempt,) = self.app.store.attempts(handle.id)
            assert (attempt.attempt, attempt.outcome) == (1, "succeeded")
            assert attempt.groups == ("short",)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """After the test no worker, slot or lost job may be left."""
    made: list[Stage] = []

    def stage(kind: str = "loop", limit: int = 1) -> Stage:
        made.append(Stage(tmp_path, kind, limit))
        return made[-1]

    yield stage
    for each in made:
        store = each.app.store
        assert store.workers() == []
        assert store.group("short")[1] == []
        assert store.doctor() == []
        each.app.close()


@pytest.mark.parametrize("kind", ["loop", "thread"])
@pytest.mark.parametrize("limit", [1, 3])
def test_a_small_limit_costs_few_round_trips(
    make: Callable[..., Stage], kind: str, limit: int
) -> None:
    stage = make(kind, limit)
    stage.submit(400)
    stage.burst()
    stage.check_each_ran_once()
    assert stage.peak == limit or kind == "thread"  # whose threads may take turns
    assert len(stage.watched.reserved) > 200
    assert stage.watched.trips < 400 / limit / 2


def test_who_tells_that_slots_were_handed_on_tells_who_ended_in_them(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the store would see attempts run that hold nothing. What ended is written down after
    what follows has begun; where a round trip comes before that, it is written down first."""
    monkeypatch.setattr(Runner, "_account_behind", lambda runner: None)  # as if it always did
    stage = make(limit=3)
    stage.extra = lambda ctx, n: takes(0.001)
    stage.submit(WARM + 400)
    with stage.worker():
        for n in range(WARM + 400, WARM + 500):  # each rings, and a round trip answers it
            trips = stage.watched.trips
            stage.handles.append(stage.task.submit(n))
            wait_until(lambda trips=trips: stage.watched.trips > trips)
        stage.all_done()
    stage.check_each_ran_once()
    assert len(stage.watched.reserved) > 200
    assert stage.watched.early == set()


def test_unlimited_jobs_are_fetched_ahead_too(make: Callable[..., Stage]) -> None:
    stage = make()
    ran: list[int] = []

    @stage.app.task
    async def free(n: int) -> None:
        ran.append(n)

    stage.app.submit_many([free.call(n) for n in range(500)])
    stage.burst(concurrency=5)
    assert sorted(ran) == list(range(500))
    assert len(stage.watched.reserved) > 300


@pytest.mark.parametrize("kind", ["loop", "thread"])
def test_what_follows_finds_what_the_start_of_the_worker_left_and_nothing_of_others(
    make: Callable[..., Stage], kind: str
) -> None:
    mine: ContextVar[str] = ContextVar("mine", default="nothing")
    stage = make(kind, 2)
    stage.app.on_worker_start(lambda: mine.set("the worker's"))
    found: Counter[str] = Counter()

    def look(ctx: Context, n: int) -> None:
        found[mine.get()] += 1
        mine.set(f"job {n}'s")

    stage.extra = look
    stage.submit(300)
    stage.burst()
    stage.all_done()
    assert stage.watched.reserved, "some followed others without a round trip"
    assert found == {"the worker's": 300}


def test_what_a_job_left_is_not_kept_until_the_time_out_of_the_next(
    make: Callable[..., Stage],
) -> None:
    """The next one's timers are made where the last one ends."""
    stage = make()
    mine: ContextVar[Watched | None] = ContextVar("mine", default=None)
    left: WeakSet[Watched] = WeakSet()
    kept: list[int] = []

    @stage.app.task(max_concurrent=1, timeout=3600)
    async def timed(ctx: Context, last: bool) -> None:
        large = Watched(ctx)
        left.add(large)
        mine.set(large)
        await asyncio.sleep(0)
        if last:
            gc.collect()
            kept.append(len(left))

    stage.app.submit_many([timed.call(n == WARM) for n in range(WARM + 1)])
    stage.burst()
    assert stage.watched.reserved, "some followed others without a round trip"
    assert kept == [1]


@pytest.mark.parametrize(
    ("kind", "what"), [("loop", "extend"), ("thread", "extend"), ("thread", "release")]
)
def test_what_followed_in_others_slots_can_extend_and_release_them(
    make: Callable[..., Stage], kind: str, what: str
) -> None:
    """The store must know first whose they are now."""
    stage = make(kind)
    found: list[tuple[int, list[str]]] = []

    def holders() -> list[str]:
        return [slot.holder for slot in stage.app.store.group("short")[1]]

    def extra(ctx: Context, n: int) -> None:
        if n % 7:
            return
        if what == "extend":
            ctx.extend_lease(30)
            found.append((n, holders()))
        else:
            stage.count(-1)  # before: once they are given back, another may run at once
            with ctx.released():
                found.append((n, holders()))
            stage.count(+1)

    stage.extra = extra
    stage.submit(200)
    stage.burst()
    stage.check_each_ran_once()
    assert len(found) > 20
    for n, seen in found:
        assert (stage.handles[n].id in seen) == (what == "extend")
    assert stage.watched.reserved & {stage.handles[n].id for n, _ in found}


def test_the_same_without_blocking_the_loop(make: Callable[..., Stage]) -> None:
    stage = make()
    seen: list[tuple[bool, bool]] = []

    def holds(ctx: Context) -> bool:
        return ctx.job_id in [slot.holder for slot in stage.app.store.group("short")[1]]

    @stage.app.task(limits=["short"])
    async def waits(ctx: Context, n: int) -> None:
        # So seldom that the task counts as short, however long these few take.
        if n % 30 == 0:
            await ctx.aextend_lease(5)
            before = holds(ctx)
            async with ctx.released():
                seen.append((before, holds(ctx)))

    stage.app.submit_many([waits.call(n) for n in range(300)])
    stage.burst()
    assert seen == [(True, False)] * 10
    assert stage.watched.reserved


def test_what_is_reserved_is_shown_as_ready(make: Callable[..., Stage]) -> None:
    stage = make()
    stage.submit(100, stay=WARM)
    with stage.worker():
        assert stage.waits.wait(PATIENCE)
        n = wait_until(stage.reserved)[0]
        job = stage.app.get_job(stage.handles[n].id)
        why = stage.app.store.why(job.id)
        if "reserved" in why.detail:  # they go back within the second
            assert (job.state, job.attempt, job.worker, job.started_at) == ("ready", 0, None, None)
            assert (why.code, "worker w" in why.detail) == ("turn", True)

        def shown() -> tuple[int, int, int]:
            (queue,), (worker,) = stage.app.store.queues(), stage.app.store.workers()
            return queue.running, queue.waiting, worker.running

        # What ended a moment ago may still be on its way to the store.
        wait_until(lambda: shown() == (1, 100 - WARM - 1, 1))
        stage.go.set()
        stage.all_done()
    stage.check_each_ran_once()


def test_what_waits_behind_a_long_one_is_given_back(make: Callable[..., Stage]) -> None:
    stage = make()
    stage.submit(100, stay=WARM)
    with stage.worker():
        assert stage.waits.wait(PATIENCE)
        wait_until(lambda: stage.watched.returned["waited too long"] > 0)
        wait_until(lambda: not stage.reserved())
        assert stage.app.get_job(stage.handles[-1].id).attempt == 0
        stage.go.set()
        stage.all_done()
    stage.check_each_ran_once()


def test_a_stop_gives_back_what_has_not_started(make: Callable[..., Stage]) -> None:
    stage = make()
    stage.submit(100, stay=WARM)
    with stage.worker() as worker:
        assert stage.waits.wait(PATIENCE)
        wait_until(stage.reserved)
        worker.stop()
        wait_until(lambda: not stage.reserved())
        assert stage.watched.returned["shutdown"] > 0
    assert sorted(stage.ran) == list(range(WARM + 1))
    rest = stage.handles[WARM + 1 :]
    assert {stage.app.get_job(handle.id).state for handle in rest} == {"ready"}
    stage.burst()
    stage.check_each_ran_once()


def test_a_cancelled_one_never_starts(make: Callable[..., Stage]) -> None:
    stage = make()
    stage.submit(100, stay=WARM)
    with stage.worker():
        assert stage.waits.wait(PATIENCE)
        n = wait_until(stage.reserved)[-1]
        handle = stage.handles[n]
        handle.cancel()
        wait_until(lambda: stage.app.get_job(handle.id).state == "cancelled")
        stage.handles.remove(handle)
        stage.go.set()
        stage.all_done()
    assert n not in stage.ran
    assert stage.app.store.attempts(handle.id) == []
    assert stage.app.get_job(handle.id).attempt == 0


def test_a_pause_is_heeded_at_once(make: Callable[..., Stage]) -> None:
    stage = make(limit=2)
    stage.extra = lambda ctx, n: takes(0.002)
    stage.submit(700)
    with stage.worker():
        wait_until(lambda: len(stage.ran) > 100)
        stage.app.store.change_limit(LimitChange("short", paused=True))
        paused = len(stage.ran)
        wait_until(lambda: not stage.app.store.group("short")[1] and not stage.reserved())
        late = len(stage.ran) - paused
        print(f"{late} jobs started after the pause")
        assert late <= 2 * AHEAD / 0.002, "no more than had been reserved"
        assert len(stage.ran) < 700, "more to do than can be done meanwhile"
        stage.app.store.change_limit(LimitChange("short", paused=False))
        stage.all_done()
    stage.check_each_ran_once()


def test_a_process_starts_no_more_jobs_than_it_may(site: Site) -> None:
    from tests.worker import sample

    handles = site.app.submit_many([sample.worker_pid.call() for _ in range(130)])
    tree = site.start("--max-jobs-per-process", "40", "--concurrency", "4", "--burst")
    assert tree.wait(60) == 0
    pids = Counter(handle.result(timeout=0) for handle in handles)
    assert sorted(pids.values()) == [10, 40, 40, 40]

"""Several shards looked at as one: each thing once, in one order."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import DeclarationError, StoreError
from headgate.jobs import JobFilter, NewJob, State
from headgate.limits import Needs
from headgate.schedules.template import to_text
from headgate.stores.protocol import (
    Schedules,
    ScheduleSpec,
    Tick,
    Ticking,
)
from tests.bucket.memory import MemoryObjects
from tests.bucket.sharding import (
    Hand,
    needs,
    opened,
    publish,
    task,
)


def test_pages_of_jobs_and_events_go_through_all_shards_once(tmp_path: Path) -> None:
    with opened(tmp_path, "x", shards=3) as (store,):
        ids: list[str] = []
        for i in range(40):
            (one,) = store.submit([NewJob("aabcbca"[i % 7])])
            ids.append(one.id)
            store.cancel(one.id, by="me") if i % 2 else None
        wanted = ids[::-1]
        found: list[str] = []
        while page := store.find(JobFilter(), 7, found[-1] if found else None):
            found += [job.id for job in page]
        assert found == wanted
        for states, expected in (
            (frozenset[State](), wanted), (frozenset(("cancelled",)), wanted[::2]),
        ):  # fmt: skip
            found, after = [], None
            while True:
                page = store.browse(JobFilter(states=states), 7, after)  # type: ignore[arg-type]
                found += [job.id for job in page.jobs]
                after = page.after
                if after is None:
                    break
            assert found == expected
        told: list[str] = []
        before: int | None = None
        while events := store.past_events("job_cancelled", before=before, limit=6):
            told += [event.subject for event in events]
            before = events[-1].seq
        assert told == wanted[::2]
        assert told == [event.subject for event in store.events("job_cancelled")]
        with pytest.raises(StoreError, match="no place"):
            store.browse(JobFilter(), 5, "1_2")


def test_workers_queues_and_limits_are_told_once(tmp_path: Path) -> None:
    with opened(tmp_path, "x", shards=3) as (store,):
        publish(store, task("a", "db"), task("b"), db=5, idle=7)
        store.submit(
            [NewJob(name, needs=needs("db") if name == "a" else Needs()) for name in "aab"]
        )
        hand = Hand(store)
        hand.claim(2)
        (worker,) = store.workers()
        assert (worker.running, worker.state) == (2, "alive")
        store.pause_queue("default", True, by="me")
        (queue,) = store.queues()
        assert (queue.waiting, queue.running, queue.paused) == (1, 2, True)
        assert len(store.events("queue_paused")) == len(store.events("worker_started")) == 1
        limits = {one.group: one for one in store.limits()}
        assert sorted(limits) == ["db", "idle"]
        assert (limits["db"].held, limits["db"].value, limits["idle"].value) == (1, 5, 7)
        assert [load.limit.group for load in store.loads()] == ["db", "idle"]
        assert sorted(spec.name for spec in store.tasks()) == ["a", "b"]
        assert store.doctor() == []
        store.shards[1].unregister(hand.id)
        assert store.workers()[0].state == "dead"
        store.pause_queue("default", False)
        got = hand.ask()
        assert (got.dead, got.claimed) == (True, ())


def test_a_schedule_lives_with_its_task(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with opened(tmp_path, "x", "y", objects=objects) as (store, other):
        publish(store, task("a"), task("b"))
        specs = tuple(
            ScheduleSpec(f"every-{name}", "* * * * *", job=to_text(NewJob(name))) for name in "ab"
        )
        store.declare_schedules(Schedules("test", schedules=specs))
        assert [len(shard.schedules()) for shard in store.shards] == [1, 1]
        due = other.due_schedules()
        assert [one.spec.name for one in due.schedules] == ["every-a", "every-b"]
        tickings = [
            Ticking(
                one.spec.name, one.digest, one.next_at, due.now + 60,
                (Tick(due.now, NewJob(one.spec.name[-1])),),
            )
            for one in due.schedules
        ]  # fmt: skip
        both = [*other.tick(tickings), *store.tick(tickings)]
        assert [one.outcome for one in both] == ["run", "run"], "each once"
        assert store.count(JobFilter()) == 2
        assert [len(store.ticks(f"every-{name}")) for name in "ab"] == [1, 1]
        moved = ScheduleSpec("every-a", "* * * * *", job=to_text(NewJob("b")))
        with pytest.raises(DeclarationError, match="schedule 'every-a'"):
            store.declare_schedules(Schedules("test", schedules=(moved,)))

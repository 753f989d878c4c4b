"""Two machines that write at once, each with many threads: what holds on one holds on both."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.errors import HeadgateError
from headgate.jobs import CapUse, Finish, JobFilter, NewJob
from headgate.schedules.template import to_text
from headgate.stores.bucket import keeping
from headgate.stores.protocol import Schedules, ScheduleSpec, SlotRequest, Tick, Ticking
from tests.bucket.machines import Machine, need, opened, same
from tests.bucket.memory import MemoryObjects


def at_once(*works: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        if failed:  # the others may be waiting for the one that failed
            raise failed[0]
        assert not thread.is_alive()


class Inside:
    """How many were in at once, at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def enter(self, what: str) -> None:
        with self._lock:
            self._now[what] += 1
            self.most[what] = max(self.most[what], self._now[what])

    def leave(self, what: str) -> None:
        with self._lock:
            self._now[what] -= 1


def test_a_limit_is_never_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "SEAL_ENTRIES", 8)
    inside = Inside()
    ran: Counter[str] = Counter()
    with opened(tmp_path, MemoryObjects(), "a", "b") as machines:
        first = machines[0]
        first.limit("narrow", 3)
        jobs = first.add(60, needs=need("narrow")) + first.add(30, needs=need("narrow", "k"))

        def work(machine: Machine, name: str) -> None:
            worker = machine.worker(name, lease=1e6)
            done: list[Finish] = []
            while machine.count(JobFilter(states=frozenset(("ready", "running"))), limit=1000):
                claimed = machine.claim(worker, 4, done)
                # Whoever ended had left before it said so.
                for one in claimed:
                    ran[one.job] += 1
                    inside.enter(str(one.groups))
                for one in claimed:
                    inside.leave(str(one.groups))
                done = [Finish(one.token, "succeeded") for one in claimed]
            if done:
                machine.claim(worker, 1, done)

        at_once(*(lambda m=m, n=n: work(m, f"{m.name}{n}") for m in machines for n in range(3)))
        assert ran == Counter(jobs), "each once"
        assert inside.most
        assert max(inside.most.values()) <= 3
        assert first.doctor() == []
        same(*machines)


def test_a_cap_is_never_passed(tmp_path: Path) -> None:
    stored: list[str] = []
    with opened(tmp_path, MemoryObjects(), "a", "b") as machines:

        def submit(machine: Machine) -> None:
            for _ in range(5):
                job = NewJob("task", caps=(CapUse("few", max_total=7),))
                (done,) = machine.submit([job])
                if done.refused is None:
                    stored.append(done.id)

        at_once(*(lambda m=m: submit(m) for m in machines * 3))
        assert len(stored) == 7
        same(*machines)


def test_an_idempotency_key_stores_one_job(tmp_path: Path) -> None:
    ids: dict[str, set[str]] = {f"k{n}": set() for n in range(10)}
    with opened(tmp_path, MemoryObjects(), "a", "b") as machines:

        def submit(machine: Machine) -> None:
            for key, known in ids.items():
                (done,) = machine.submit([NewJob("task", idempotency_key=key)])
                known.add(done.id)

        at_once(*(lambda m=m: submit(m) for m in machines * 3))
        assert {len(known) for known in ids.values()} == {1}
        assert machines[0].count(JobFilter()) == 10
        same(*machines)


def test_a_tick_becomes_one_job(tmp_path: Path) -> None:
    """Both machines work out the same tick, and each offers its own job for it."""
    with opened(tmp_path, MemoryObjects(), "a", "b") as machines:
        spec = ScheduleSpec("tidy", "* * * * *", job=to_text(NewJob("task")))
        machines[0].declare_schedules(Schedules("test", schedules=(spec,)))
        stored: list[str] = []

        def tick(machine: Machine) -> None:
            while True:
                found = machine.schedule("tidy")
                assert found is not None
                at = 60.0 if found.next_at in (None, 0) else found.next_at
                if at > 600.0:
                    return
                due = Tick(at, NewJob("task"), keep=True)
                expected = None if found.next_at in (None, 0) else found.next_at
                ticking = Ticking("tidy", found.digest, expected, at + 60.0, (due,))
                stored.extend(one.job for one in machine.tick([ticking]) if one.job)

        at_once(*(lambda m=m: tick(m) for m in machines * 2))
        assert len(stored) == len(set(stored)) == 10
        assert machines[0].count(JobFilter()) == 10
        assert len(machines[1].ticks("tidy")) == 10
        same(*machines)


def test_slots_by_hand(tmp_path: Path) -> None:
    inside = Inside()
    taken = Counter[str]()
    with opened(tmp_path, MemoryObjects(), "a", "b") as machines:

        def take(machine: Machine, who: str) -> None:
            while taken[who] < 6:
                slot = machine.take_slot(
                    SlotRequest("door", who, who, 60.0, limit=2, carries_limit=True)
                )
                if slot is None:
                    continue
                inside.enter("door")
                taken[who] += 1
                inside.leave("door")
                assert machine.drop_slot("door", slot.slot, slot.token)

        at_once(*(lambda m=m, n=n: take(m, f"{m.name}{n}") for m in machines for n in range(3)))
        assert inside.most["door"] <= 2
        assert set(taken.values()) == {6}
        same(*machines)


def test_one_transaction_that_fails_harms_no_other_of_its_commit(tmp_path: Path) -> None:
    with opened(tmp_path, MemoryObjects(), "a") as (a,):
        refused = Counter[str]()

        def submit(n: int) -> None:
            for _ in range(10):
                if n % 2:
                    a.add(1)
                    continue
                try:
                    a.submit([NewJob("task", args=b"no text")])  # type: ignore[arg-type]
                except HeadgateError:
                    refused["refused"] += 1

        at_once(*(lambda n=n: submit(n) for n in range(6)))
        assert refused["refused"] == 30
        assert a.count(JobFilter()) == 30


def test_neither_of_two_machines_starves(tmp_path: Path) -> None:
    """Who lost must read before it writes again: without a pause of the other it would lose for
    ever."""
    ended = threading.Event()
    with opened(tmp_path, MemoryObjects(), "a", "b") as (a, b):
        written: Counter[str] = Counter()

        def write(machine: Machine) -> None:
            try:
                while not ended.is_set():
                    machine.add(1)
                    written[machine.name] += 1
                    if all(written[name] >= 15 for name in "ab"):
                        break
            finally:
                ended.set()

        at_once(lambda: write(a), lambda: write(b))
        same(a, b)

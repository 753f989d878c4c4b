"""Workers and producers in threads, at full load through the store's own operations; every job
that ran is written down, and how many held a limit at once."""

from __future__ import annotations

import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import psycopg

from headgate.jobs import Claimed, Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.postgres.parameters import named
from headgate.stores.postgres.url import parse
from headgate.stores.protocol import Claim, Exchange, NewWorker, Publication, Store
from headgate.turns import ClaimState
from tests.waiting import wait_until

PATIENCE = 60.0
LIMIT = 40
BACKLOG = 1500
CHUNK = 250
TASKS = frozenset(("plain", "narrow"))


def job(number: int) -> NewJob:
    if number % 2:
        return NewJob("plain")
    return NewJob("narrow", needs=Needs((Need("narrow"),)))


def watching(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(parse(url).conninfo, autocommit=True)


class Load:
    """One store under load, compacted as workers do."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = open_store(url)
        self.store.publish(Publication("load", code={"narrow": LIMIT}))
        self.schema = parse(url).schema
        self.watch = watching(url)
        self.submitted: set[str] = set()
        self.ran: Counter[str] = Counter()
        self.most_held = 0
        self.compactions = 0
        """Looks at how worn the tables are."""
        self._held = 0
        self._lock = threading.Lock()
        self._producing = threading.Event()
        self._stop = threading.Event()
        self._troubles: list[BaseException] = []

    # --- what runs ----------------------------------------------------------------------------

    @contextmanager
    def running(self, workers: int = 2, *, producing: bool = True) -> Generator[None]:
        if producing:
            self._producing.set()
        calls = [self._compact, self._produce, *(self._work,) * workers]
        threads = [threading.Thread(target=self._guard, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        assert self._troubles == []

    def close(self) -> None:
        self.watch.close()
        self.store.close()

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            self._troubles.append(error)
            self._stop.set()

    def _compact(self) -> None:
        while not self._stop.wait(0.02):
            self.store.compact()
            self.compactions += 1

    def _produce(self) -> None:
        number = 0
        while not self._stop.is_set():
            if self._producing.is_set() and len(self.submitted) - self.done < BACKLOG:
                jobs = [job(number + i) for i in range(CHUNK)]
                number += CHUNK
                self.submitted |= {one.id for one in self.store.submit(jobs)}
            else:
                self._stop.wait(0.002)

    def _work(self) -> None:
        name = f"w-{secrets.token_hex(4)}"
        self.store.register(NewWorker(name, name, pid=os.getpid(), lease=3600.0))
        state = ClaimState()
        running: list[Claimed] = []
        while not self._stop.is_set() or running:
            room = 0 if self._stop.is_set() else 50
            # What ends is let go of before the store is told: the count is never too high.
            with self._lock:
                self._held -= sum(1 for one in running if one.task == "narrow")
            finishes = [Finish(one.token, "succeeded", keep=False) for one in running]
            claim = Claim(room, TASKS, state, again=True, fresh=not running)
            got = self.store.exchange(Exchange(name, finishes, claim=claim))
            assert not got.stale
            running = list(got.claimed)
            with self._lock:
                self.ran.update(one.job for one in running)
                self._held += sum(1 for one in running if one.task == "narrow")
                self.most_held = max(self.most_held, self._held)
            if not running:
                self._stop.wait(0.005)
        self.store.unregister(name)

    # --- what is seen ---------------------------------------------------------------------------

    @property
    def done(self) -> int:
        return len(self.ran)

    def value(self, sql: str) -> Any:
        row = self.watch.execute(named(sql, self.schema).encode()).fetchone()
        assert row is not None
        return row[0]

    @property
    def generations(self) -> list[int]:
        return self.value(
            "SELECT array_agg(substr(c.relname, 7)::int ORDER BY 1) FROM pg_inherits i"
            " JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'headgate.ready'::regclass"
        )

    @property
    def switches(self) -> int:
        return self.value("SELECT max(n) - 1 FROM headgate.generations")

    @property
    def epochs(self) -> int:
        return self.value("SELECT max(epoch) - 1 FROM headgate.epochs")

    def look(self) -> int:
        """Pages that a look reads. The least of some: a first one has to plan, and one that
        comes just before something is emptied reads that too."""
        explain = (
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT headgate.look('{}', 'nobody', NULL,"
            " '{plain,narrow}', '{}', '{}', 64, 16, 100)"
        )
        plans = [self.value(explain)[0]["Plan"] for _ in range(20)]
        return min(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in plans)

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        wait_until(lambda: self._troubles or reached(), PATIENCE, what)
        assert not self._troubles, self._troubles

    def work_off(self, count: int) -> None:
        """Until so many jobs more have run."""
        goal = self.done + count
        self.wait(lambda: self.done >= goal, f"{count} jobs run")

    def drain(self) -> None:
        """Nothing more is submitted; until all has run."""
        self._producing.clear()
        left = (
            "SELECT EXISTS (SELECT 1 FROM headgate.ready)"
            " OR EXISTS (SELECT 1 FROM headgate.running)"
        )
        self.wait(lambda: not self.value(left), "all have run")


def doctored(store: Store) -> list[str]:
    return [f"{one.what}: {one.detail}" for one in store.doctor()]

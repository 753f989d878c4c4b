"""Caps inside the caller's own transactions, at every level of isolation: exact, without delay
for anybody of another group, and waiting for a rival only where the answer depends on it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import IsolationLevel

from headgate import App, Cap, Context, Worker
from headgate.errors import IdempotencyConflict, SubmitConflict
from headgate.jobs import CapUse, NewJob, Submitted
from headgate.options import Options
from headgate.stores.postgres.url import parse
from headgate.stores.relational import inspecting
from tests.conformance.conftest import Rig
from tests.postgres.caller import Caller, at_every_level, cap, until_decided
from tests.postgres.rival import Rival, Waiter, until_blocked
from tests.waiting import PATIENCE


@pytest.fixture
def clock() -> None:
    """The store goes by the clock that callers' connections go by as well."""


@at_every_level
def test_of_32_open_transactions_five_get_in(rig: Rig, level: IsolationLevel) -> None:
    begun = threading.Barrier(32)
    done: list[Submitted] = []
    retries: list[int] = []

    def produce() -> None:
        with Caller(rig, level) as caller:
            caller.begin()  # all of them see an empty group
            begun.wait(PATIENCE)
            tries = 0

            def decide() -> Submitted:
                nonlocal tries
                tries += 1
                return caller.one(cap(5))

            done.append(until_decided(caller, decide))
            retries.append(tries - 1)

    threads = [threading.Thread(target=produce, daemon=True) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    refusals = [result.refused for result in done if result.refused is not None]
    assert (len(done), len(refusals)) == (32, 27)
    assert {(r.group, r.count, r.cap) for r in refusals} == {("tenant/acme", 5, 5)}
    assert len(rig.hand().claim()) == 5
    if level is IsolationLevel.READ_COMMITTED:
        assert sum(retries) == 0


@at_every_level
def test_a_place_that_nobody_tries_for_is_taken_at_once(rig: Rig, level: IsolationLevel) -> None:
    with ExitStack() as stack:
        callers = [stack.enter_context(Caller(rig, level)) for _ in range(5)]
        for caller in callers:
            caller.begin()
        # None of them ends before all have got in.
        for caller in callers:
            assert caller.one(cap(5)).refused is None
        for caller in callers:
            try:
                caller.commit()
            except psycopg.errors.SerializationFailure:
                # Serializable transactions that looked at the same places may have to be run
                # again, whatever they did there.
                assert level is IsolationLevel.SERIALIZABLE
                caller.rollback()
                done = until_decided(caller, lambda caller=caller: caller.one(cap(5)))
                assert done.refused is None
    assert len(rig.hand().claim()) == 5


@at_every_level
def test_the_last_place_depends_on_the_rival_who_has_it(
    rig: Rig, level: IsolationLevel, watch: Rival
) -> None:
    for commits in (False, True):
        with Caller(rig, level) as first, Caller(rig, level) as second:
            first.begin()
            second.begin()
            assert first.one(cap(1)).refused is None
            waiter = Waiter(lambda second=second: second.one(cap(1)))
            until_blocked(watch)
            # Nobody of another group waits with them, nor those without caps.
            assert rig.store.submit([NewJob("other", caps=(cap(1, "tenant/else"),))])
            assert rig.store.submit([NewJob("other")])
            with Caller(rig, level) as third:
                assert third.one(cap(1, f"tenant/{commits}")).refused is None
                third.rollback()
            assert waiter.waits
            if not commits:
                first.rollback()
                assert waiter.result().refused is None
                second.rollback()
                continue
            first.commit()
            if level is IsolationLevel.READ_COMMITTED:
                assert waiter.result().refused is not None
            else:
                with pytest.raises(SubmitConflict, match=r"tenant/acme.*run it again"):
                    waiter.result()
                second.rollback()
                assert second.one(cap(1)).refused is not None


@at_every_level
def test_a_place_that_was_given_back_is_taken_over_once(rig: Rig, level: IsolationLevel) -> None:
    rig.store.submit([NewJob("task", caps=(cap(1),))])
    worker = rig.hand()
    worker.claim()
    with Caller(rig, level) as first, Caller(rig, level) as second:
        worker.end_all()
        first.begin()
        second.begin()
        assert first.one(cap(1)).refused is None
        first.commit()
        if level is IsolationLevel.READ_COMMITTED:
            assert second.one(cap(1)).refused is not None
        else:
            with pytest.raises(SubmitConflict):
                second.one(cap(1))


def test_one_per_period_depends_on_the_rival(rig: Rig, watch: Rival) -> None:
    with Caller(rig) as first, Caller(rig) as second:
        once = cap(None, unique_for=60.0)
        first.one(once)
        waiter = Waiter(lambda: second.one(once))
        until_blocked(watch)
        first.commit()
        refused = waiter.result().refused
        assert refused is not None
        assert refused.until is not None
        # Who was refused and does not end holds up nobody.
        assert rig.store.submit([NewJob("task", caps=(once,))])[0].refused is not None


def test_who_was_refused_and_goes_on_holds_up_nobody(rig: Rig) -> None:
    rig.store.submit([NewJob("task", caps=(cap(2),)) for _ in range(2)])
    with Caller(rig) as refused:
        assert refused.one(cap(2)).refused is not None
        worker = rig.hand()
        claimed = worker.claim()
        assert worker.end(claimed[0])
        assert rig.store.submit([NewJob("task", caps=(cap(2),))])[0].refused is None
        assert rig.store.submit([NewJob("task", caps=(cap(2),))])[0].refused is not None


def test_workers_end_and_retry_what_an_open_transaction_stands_for(rig: Rig) -> None:
    """Its place is locked by the caller; the job ends, comes back and counts all the same."""
    replace = cap(1, when_full="replace", max_waiting=5)
    (mine,) = rig.store.submit([NewJob("task", caps=(cap(1, max_waiting=5),))])
    worker = rig.hand()
    with Caller(rig) as caller:
        assert caller.one(replace).refused is None
        (claimed,) = worker.claim()
        assert claimed.job == mine.id
        assert worker.end(claimed, "retry", delay=0.0)
        caller.rollback()
    refused = rig.store.submit([NewJob("task", caps=(cap(1),))])[0].refused
    assert refused is not None
    (claimed,) = worker.claim()
    assert worker.end(claimed)
    assert rig.store.submit([NewJob("task", caps=(cap(1),))])[0].refused is None


def test_a_place_is_not_taken_from_a_job_that_is_given_a_second_life(
    rig: Rig, watch: Rival
) -> None:
    (mine,) = rig.store.submit([NewJob("task", caps=(cap(1),))])
    rig.store.cancel(mine.id)
    store: Any = rig.store
    with store._write() as tx:
        inspecting.retry(tx, mine.id, "operator")
        waiter = Waiter(lambda: rig.store.submit([NewJob("task", caps=(cap(1),))]))
        until_blocked(watch)
    refused = waiter.result()[0].refused
    assert refused is not None
    assert refused.existing == mine.id


@at_every_level
def test_a_place_is_not_taken_from_a_job_that_waits_again_since_the_snapshot(
    rig: Rig, level: IsolationLevel
) -> None:
    waiting = CapUse("tenant/acme", max_waiting=1)
    (mine,) = rig.store.submit([NewJob("task", caps=(waiting,))])
    worker = rig.hand()
    (claimed,) = worker.claim()
    with Caller(rig, level) as caller:
        caller.begin()  # it runs, so its place would be free
        worker.end(claimed, "retry", delay=60)
        refused = until_decided(caller, lambda: caller.one(waiting)).refused
    assert refused is not None
    assert refused.existing == mine.id


OPTIONS: list[Options] = [{"caps": [Cap("few", max_total=1)]}, {"idempotency_key": "once"}]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options)))
def test_an_end_whose_follow_up_waits_for_a_transaction_makes_nothing_else_wait(
    postgres_url: str, options: Options
) -> None:
    app = App(postgres_url)

    @app.task
    def child() -> None: ...

    @app.task
    def parent(ctx: Context) -> None:
        ctx.submit(child.using(**options))

    @app.task
    def other(n: int) -> int:
        return n

    app.store.values([])  # the store is made
    with psycopg.connect(parse(postgres_url).conninfo) as connection:
        child.using(conn=connection, **options).submit()
        worker = Worker(app)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        handle = parent.submit()
        for n in range(10):
            assert other.submit(n).result(timeout=PATIENCE) == n
        assert handle.status() == "running"  # it may be stored, or not
        connection.rollback()
    handle.result(timeout=PATIENCE)
    worker.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    app.close()


def test_many_at_once_in_any_order_do_not_wait_in_a_circle(rig: Rig) -> None:
    rounds = 15
    results: list[list[Submitted]] = []
    begin = threading.Barrier(3)

    def produce(turn: int) -> None:
        for n in range(rounds):
            groups = [f"g/{n}-{i}" for i in range(3)]
            order = (groups[turn:] + groups[:turn]) * 4
            begin.wait(60)
            # The last places of each are wanted by all three.
            results.append(rig.store.submit([NewJob("task", caps=(cap(5, g),)) for g in order]))

    threads = [threading.Thread(target=produce, args=(turn,)) for turn in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    done = [one for result in results for one in result]
    assert len(done) == rounds * 3 * 12
    assert sum(one.refused is None for one in done) == rounds * 3 * 5
    assert len(rig.hand().claim(room=1000)) == rounds * 3 * 5


def test_who_stands_above_a_lowered_cap_moves_down_under_an_open_rival(rig: Rig) -> None:
    rig.store.submit([NewJob("task", caps=(cap(5),)) for _ in range(5)])
    worker = rig.hand()
    claimed = worker.claim()
    worker.end(claimed[0])
    worker.end(claimed[1])
    with Caller(rig) as caller:
        assert caller.one(cap(3)).refused is not None
        worker.end(claimed[2])
        assert caller.one(cap(3)).refused is None
        waiter = Waiter(lambda: rig.store.submit([NewJob("task", caps=(cap(3),))]))
        caller.commit()
        assert waiter.result()[0].refused is not None


def test_an_idempotency_conflict_leaves_nothing_and_the_transaction_goes_on(rig: Rig) -> None:
    rig.store.submit([NewJob("task", '{"a":1}', idempotency_key="k")])
    with Caller(rig) as caller:
        jobs = [
            NewJob("task", caps=(cap(1),)),
            NewJob("task", '{"a":2}', idempotency_key="k", caps=(cap(1, "b"),)),
        ]
        with pytest.raises(IdempotencyConflict):
            rig.store.submit_with(caller.connection, jobs)
        assert caller.one(cap(1)).refused is None
        assert caller.one(cap(1, "b")).refused is None
        caller.commit()
    assert len(rig.hand().claim()) == 3


def test_through_an_asynchronous_driver(rig: Rig) -> None:
    told = psycopg.conninfo.conninfo_to_dict(parse(rig.store.url).conninfo)

    async def run() -> None:
        connection: Any = await asyncpg.connect(
            host=told["host"], port=int(told["port"]), user=told["user"], database=told["dbname"]
        )
        try:
            async with connection.transaction():
                jobs = [NewJob("task", caps=(cap(1),)) for _ in range(2)]
                got = await rig.store.asubmit_with(connection, jobs)
                assert [one.refused is None for one in got] == [True, False]
            transaction = connection.transaction(isolation="repeatable_read")
            await transaction.start()
            await connection.fetch("SELECT 1")
            rig.store.submit([NewJob("task", caps=(cap(1, "other"),))])
            with pytest.raises(SubmitConflict):
                await rig.store.asubmit_with(connection, [NewJob("task", caps=(cap(1, "other"),))])
            await transaction.rollback()
        finally:
            await connection.close()

    asyncio.run(run())

"""Promise: a cap refuses loudly, by its own rule, whoever submits and however."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headgate import (
    App,
    Cap,
    ConcurrencyLimitReached,
    Context,
    JobFailed,
    Worker,
)
from headgate.config import Config
from headgate.jobs import JobFilter
from headgate.testing import TestClock, drain
from tests.stores import store_url
from tests.waiting import PATIENCE

# --- refused -----------------------------------------------------------------------------------


def test_one_too_many_is_an_error_that_says_of_what(both: App) -> None:
    @both.task(caps=[Cap("tenant", max_total=2, key="tenant")])
    def send(tenant: str) -> None: ...

    first = send.submit("a")
    send.submit("a")
    with pytest.raises(ConcurrencyLimitReached, match="2 of 'tenant/a'") as refused:
        send.submit("a")
    error = refused.value
    assert (error.group, error.count, error.cap, error.rule) == ("tenant/a", 2, 2, "total")
    assert error.existing == first.id
    send.submit("b")
    drain(both)
    send.submit("a")


def test_tasks_share_a_count_each_under_its_own_number(both: App) -> None:
    @both.task(caps=[Cap("mail", max_total=1)])
    def slow() -> None: ...

    @both.task(caps=[Cap("mail", max_total=3)])
    def fast() -> None: ...

    fast.submit()
    with pytest.raises(ConcurrencyLimitReached, match="1 of 'mail'"):
        slow.submit()
    fast.submit()
    fast.submit()
    with pytest.raises(ConcurrencyLimitReached, match="3 of 'mail'"):
        fast.submit()


def test_in_a_transaction_of_the_caller(tmp_path: Path) -> None:
    import psycopg

    from headgate.stores.postgres.url import parse

    url = store_url("postgres", tmp_path, quick=True)
    with App(url, config=Config(url=url)) as app:

        @app.task(caps=[Cap("one", max_total=1, key="n")])
        def send(n: int) -> None: ...

        with psycopg.connect(parse(url).conninfo) as conn:
            mine = send.using(conn=conn)
            mine.submit(1)
            with pytest.raises(ConcurrencyLimitReached, match="'one/1'"):
                mine.submit(1)
            mine.submit(2)  # the transaction goes on
            many = app.submit_many([mine.call(2), mine.call(3)])
            assert [handle.refused is None for handle in many] == [False, True]
            conn.rollback()
        send.submit(1)
        assert app.store.count(JobFilter()) == 1


def test_in_async_code_too(both: App) -> None:
    @both.task(caps=[Cap("all", max_total=1)])
    async def send() -> None: ...

    async def main() -> None:
        await send.asubmit()
        with pytest.raises(ConcurrencyLimitReached):
            await send.asubmit()
        with pytest.raises(ConcurrencyLimitReached):
            await both.asubmit("send")
        (refused,) = await both.asubmit_many([send.call()])
        assert refused.refused is not None

    asyncio.run(main())


def test_of_many_the_others_are_stored(both: App) -> None:
    @both.task(caps=[Cap("tenant", max_total=2, key="tenant")])
    def send(tenant: str) -> str:
        return tenant

    handles = both.submit_many([send.call(t) for t in "aabababc"])
    assert [h.refused is None for h in handles] == [
        *(True, True, True, False, True, False, False, True)
    ]
    refusal = handles[3].refused
    assert refusal is not None
    assert (refusal.group, refusal.count, refusal.cap) == ("tenant/a", 2, 2)
    for ask in (handles[3].record, handles[3].result, handles[3].cancel, handles[3].status):
        with pytest.raises(ConcurrencyLimitReached):
            ask()
    drain(both)
    assert [h.result() for h in handles if h.refused is None] == ["a", "a", "b", "b", "c"]


def test_skip_gives_the_job_that_is_there(both: App) -> None:
    @both.task(caps=[Cap("one", max_total=1, key="n", when_full="skip")])
    def send(n: int) -> int:
        return n

    first, again, other = send.submit(1), send.submit(1), send.submit(2)
    assert (first == again, again.existing, other.existing) == (True, True, False)
    drain(both)
    assert (again.result(), other.result()) == (1, 2)
    assert send.submit(1) != first


def test_replace_supersedes_the_one_that_waits(both: App) -> None:
    @both.task(caps=[Cap("newest", max_total=1, key="doc", when_full="replace")])
    def index(doc: str, version: int) -> int:
        return version

    old, new = index.submit("a", 1), index.submit("a", 2)
    drain(both)
    assert new.result() == 2
    assert (old.status(), old.record().reason) == ("cancelled", "superseded")


def test_cancel_running_starts_after_the_one_that_ran(both: App) -> None:
    started, order = threading.Event(), list[str]()

    @both.task(caps=[Cap("latest", max_total=1, when_full="cancel_running")])
    async def build(commit: str) -> str:
        order.append(f"{commit} starts")
        if commit == "one":
            started.set()
            try:
                await asyncio.sleep(30)
            finally:
                order.append("one ends")
        return commit

    first = build.submit("one")
    worker = threading.Thread(target=Worker(both, burst=True).run)
    worker.start()
    assert started.wait(PATIENCE)
    second = build.submit("two")
    assert second.result(timeout=PATIENCE) == "two"
    worker.join(PATIENCE)
    assert order == ["one starts", "one ends", "two starts"]
    assert first.status() == "cancelled"


def test_a_period_lets_one_in_until_it_is_over(app: App) -> None:
    @app.task(unique_for=60)
    def send(n: int) -> None: ...

    send.submit(1)
    drain(app)
    with pytest.raises(ConcurrencyLimitReached, match="period") as refused:
        send.submit(1)
    assert refused.value.until == pytest.approx(app.clock.now() + 60)  # pyright: ignore[reportUnknownMemberType]
    send.submit(2)
    assert isinstance(app.clock, TestClock)
    app.clock.advance(61)
    send.submit(1)


# --- follow-ups --------------------------------------------------------------------------------


@pytest.mark.parametrize("worker", [False, True])
def test_a_follow_up_that_is_refused_fails_the_attempt(both: App, worker: bool) -> None:
    @both.task(caps=[Cap("one", max_total=1)])
    def child() -> None: ...

    # Often enough for a driver to have prepared its statements, which a refusal must not undo.
    @both.task(retries=12, retry_delay=0)
    def parent(ctx: Context) -> str:
        ctx.submit(child)
        ctx.submit(child)
        return "done"

    handle = parent.submit()
    if worker:
        Worker(both, burst=True).run()
    else:
        drain(both)
    with pytest.raises(JobFailed, match="1 of 'one'") as failed:
        handle.result(timeout=PATIENCE)
    assert failed.value.error_type == "headgate.errors.ConcurrencyLimitReached"
    assert [a.outcome for a in both.store.attempts(handle.id)] == ["error"] * 13
    assert both.store.count(JobFilter(task="child")) == 0


def test_a_task_that_is_called_by_hand_is_refused_too(app: App) -> None:
    @app.task(caps=[Cap("none", max_total=0)])
    def child() -> None: ...

    @app.task
    def parent(ctx: Context) -> None:
        ctx.submit(child)

    with pytest.raises(ConcurrencyLimitReached, match="is 0"):
        parent()


# --- what is written down ----------------------------------------------------------------------


def test_all_that_a_short_program_was_refused_is_written_down(both: App) -> None:
    program = f"""
from headgate import App, Cap, ConcurrencyLimitReached

app = App({both.store.url!r})


@app.task(caps=[Cap("all", max_total=1)])
def send() -> None: ...


for _ in range(11):
    try:
        send.submit()
    except ConcurrencyLimitReached:
        pass
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    (event,) = both.store.events("cap_refused")
    assert event.data["count"] == 10


# --- the command -------------------------------------------------------------------------------


def test_the_command_says_that_it_was_refused(file_app: App) -> None:
    from click.testing import CliRunner

    from headgate.cli import root

    @file_app.task(caps=[Cap("one", max_total=1)])
    def send() -> None: ...

    drain(file_app)
    run = CliRunner().invoke
    assert run(root, ["--url", file_app.url, "submit", "send"]).exit_code == 0
    refused = run(root, ["--url", file_app.url, "submit", "send"])
    assert refused.exit_code == 5
    assert "1 of 'one' are waiting or running and its cap is 1" in refused.stderr

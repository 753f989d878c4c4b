"""Promise: a cap refuses loudly, by its own rule, whoever submits and however."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate import (
    App,
    Cap,
    CapNeedsCode,
    ConcurrencyLimitReached,
    Context,
    DeclarationError,
    InvalidKey,
    Job,
    JobFailed,
    Worker,
)
from headgate.config import Config
from headgate.jobs import CapUse, JobFilter
from headgate.options import check_options
from headgate.testing import TestClock, drain, inline
from tests.stores import store_url


@pytest.fixture(params=["sqlite", "postgres"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    url = store_url(request.param, tmp_path, quick=True)
    with App(url, config=Config(url=url)) as app:
        yield app


def other_app(app: App) -> App:
    """A program that has the store, and none of the code."""
    return App(app.url, config=Config(url=app.url))


# --- the stamp ---------------------------------------------------------------------------------


def test_caps_are_stamped_with_their_keys(app: App) -> None:
    total = Cap("tenant", max_total=100, key="tenant_id")
    waiting = Cap("mail", max_waiting=10, when_full="skip")
    keyed = Cap("both", max_total=1, key=lambda tenant_id, n: f"{tenant_id}:{n}")

    @app.task(caps=[total, waiting, keyed])
    def send(tenant_id: str, n: int = 7) -> None: ...

    assert send.call("a/b").new_job().caps == (
        CapUse("tenant/a/b", max_total=100),
        CapUse("mail", max_waiting=10, when_full="skip"),
        CapUse("both/a/b:7", max_total=1),
    )


def test_a_task_without_caps_is_stamped_with_none(app: App) -> None:
    @app.task
    def send(n: int) -> None: ...

    assert send.call(1).new_job().caps == ()


def test_using_adds_caps_and_puts_one_in_place_of_its_namesake(app: App) -> None:
    @app.task(caps=[Cap("a", max_total=1), Cap("b", max_total=2)])
    def send() -> None: ...

    used = send.using(caps=[Cap("b", max_total=9), Cap("c", max_total=3)], priority=3)
    assert [(use.group, use.max_total) for use in used.call().new_job().caps] == [
        ("a", 1),
        ("b", 9),
        ("c", 3),
    ]
    assert used.using(delay=1).call().new_job().caps == used.call().new_job().caps
    assert used.call().new_job().options == '{"priority":3}'


def test_a_period_is_one_for_each_set_of_arguments(app: App) -> None:
    @app.task(unique_for=timedelta(minutes=1))
    def send(n: int, text: str = "") -> None: ...

    def group(*args: Any, **kwargs: Any) -> str:
        (use,) = send.call(*args, **kwargs).new_job().caps
        assert use.unique_for == 60
        return use.group

    assert group(1, "x") == group(text="x", n=1)
    assert group(1).startswith("send/")
    assert len({group(1), group(2), group(1, "x"), group(1, text="")}) == 4
    (use,) = send.using(unique_for=5, unique_key="n").call(4).new_job().caps
    assert (use.group, use.unique_for) == ("send/4", 5)
    assert send.using(unique_for=None).call(1).new_job().caps == ()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Cap("", max_total=1), "non-empty"),
        (lambda: Cap("a/b", max_total=1), "'/'"),
        (lambda: Cap("a\0", max_total=1), "control"),
        (lambda: Cap("a"), "caps nothing"),
        (lambda: Cap("a", max_total=-1), "from 0"),
        (lambda: Cap("a", max_total=True), "from 0"),
        (lambda: Cap("a", max_waiting=1.5), "from 0"),
        (lambda: Cap("a", max_total=1, key=3), "callable"),
        (lambda: Cap("a", max_total=1, when_full="wait"), "one of reject"),
        (lambda: Cap("a", unique_for=0), "above 0"),
        (lambda: Cap("a", unique_for=5, when_full="replace"), "unique_for goes with"),
        (lambda: Cap("a", max_waiting=5, when_full="cancel_running"), "give max_total"),
        (lambda: Cap("a", max_total=5, when_full="block", timeout=-1), "at least 0"),
    ],
)
def test_a_cap_that_cannot_work_is_refused(make: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        make()


def test_a_declaration_that_cannot_work_is_refused(app: App) -> None:
    def task(**options: Any) -> None:
        @app.task(**options)
        def never(n: int) -> None: ...

    for options, says in (
        ({"caps": Cap("a", max_total=1)}, "list of Caps"),
        ({"caps": ["a"]}, "list of Caps"),
        ({"caps": [Cap("a", max_total=1, key="m")]}, "'m'"),
        ({"caps": [Cap("a", max_total=1), Cap("a", max_total=2)]}, "twice"),
        ({"unique_for": "5"}, "seconds"),
        ({"unique_for": 5, "unique_key": "m"}, "'m'"),
        ({"unique_key": 5}, "callable"),
        ({"unique_key": "n"}, "without unique_for"),
    ):
        with pytest.raises(DeclarationError, match=says):
            task(**options)
    assert app.tasks == {}


def test_a_key_that_cannot_be_found_is_an_error_where_the_job_is_submitted(app: App) -> None:
    def broken(n: int) -> str:
        raise ValueError("no")

    @app.task(caps=[Cap("a", max_total=1, key=broken)])
    def send(n: int) -> None: ...

    with pytest.raises(InvalidKey, match="ValueError: no"):
        send.submit(1)
    assert app.store.count(JobFilter()) == 0


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
    assert started.wait(20)
    second = build.submit("two")
    assert second.result(timeout=20) == "two"
    worker.join(20)
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


# --- block -------------------------------------------------------------------------------------


def declare_blocking(app: App, timeout: float | None) -> Any:
    @app.task(caps=[Cap("few", max_total=1, when_full="block", timeout=timeout)])
    def send(n: int) -> int:
        return n

    return send


def test_block_gives_up_after_its_timeout(both: App) -> None:
    send = declare_blocking(both, 0.3)
    send.submit(1)
    began = time.monotonic()
    with pytest.raises(ConcurrencyLimitReached):
        send.submit(2)
    assert 0.3 <= time.monotonic() - began < 5
    # And a time-out of 0 does not wait at all.
    quick = send.using(caps=[Cap("few", max_total=1, when_full="block", timeout=0)])
    with pytest.raises(ConcurrencyLimitReached):
        quick.submit(2)


def test_who_blocks_is_counted_once_and_only_when_given_up(both: App) -> None:
    send = declare_blocking(both, timeout=0.3)
    send.submit(1)
    with pytest.raises(ConcurrencyLimitReached):
        send.submit(2)
    (event,) = both.store.events("cap_refused")
    assert event.data["count"] == 1

    thread = threading.Thread(target=lambda: drain(both))
    patient = send.using(caps=[Cap("few", max_total=1, when_full="block", timeout=30)])
    threading.Timer(0.2, thread.start).start()
    patient.submit(3)
    thread.join(30)
    store: Any = both.store
    store._tally.flush()
    (event,) = both.store.events("cap_refused")
    assert event.data["count"] == 1


def test_block_goes_on_when_there_is_room(both: App) -> None:
    send = declare_blocking(both, None)
    first = send.submit(1)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(send.submit(2)))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    drain(both)
    waiting.join(20)
    assert first.result() == 1
    drain(both)
    assert found[0].result() == 2


def test_many_that_block_wait_in_async_code(both: App) -> None:
    send = declare_blocking(both, 20)

    @both.task
    def free() -> None: ...

    async def main() -> None:
        calls = [send.call(1), send.call(2), free.call(), send.call(3)]
        waiting = asyncio.create_task(both.asubmit_many(calls))
        while not waiting.done():
            await asyncio.to_thread(drain, both)
            await asyncio.sleep(0.01)
        await asyncio.to_thread(drain, both)
        handles = await waiting
        assert [h.refused for h in handles] == [None] * 4
        assert [await handles[n].aresult() for n in (0, 1, 3)] == [1, 2, 3]

    asyncio.run(main())


def test_block_inside_inline_finds_room_at_once(app: App) -> None:
    send = declare_blocking(app, None)
    with inline(app):
        assert [send.submit(n).result() for n in range(3)] == [0, 1, 2]


def test_block_has_no_place_in_a_follow_up_or_a_transaction(app: App) -> None:
    send = declare_blocking(app, 5)

    @app.task
    def parent(ctx: Context) -> None:
        ctx.submit(send, 1)

    handle = parent.submit()
    drain(app)
    with pytest.raises(JobFailed, match="blocks when it is full"):
        handle.result()
    with pytest.raises(DeclarationError, match="a transaction of yours cannot wait"):
        send.using(conn=object()).submit(1)


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
        handle.result(timeout=10)
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


# --- by name -----------------------------------------------------------------------------------


def test_by_name_the_catalogue_tells_the_caps(both: App) -> None:
    @both.task(
        caps=[Cap("tenant", max_total=1, key="tenant"), Cap("all", max_waiting=9)], unique_for=60
    )
    def send(tenant: str, n: int) -> None: ...

    drain(both)
    with other_app(both) as other:
        other.submit("send", {"tenant": "a", "n": 1})
        with pytest.raises(ConcurrencyLimitReached, match="'tenant/a'"):
            other.submit("send", {"tenant": "a", "n": 2})
        assert send.call("b", 1).new_job().caps == (
            other._by_name.new_job("send", {"n": 1, "tenant": "b"}, {}, strict=True).caps
        )
        instead = [Cap("tenant", max_total=5, key="tenant")]
        other.submit("send", {"tenant": "a", "n": 3}, caps=instead)


def test_by_name_a_period_is_changed_and_turned_off_as_elsewhere(both: App) -> None:
    @both.task(unique_for=60)
    def send(tenant: str, n: int) -> None: ...

    @both.task
    def free(n: int) -> None: ...

    drain(both)
    with other_app(both) as other:
        options: list[dict[str, Any]] = [
            {},
            {"unique_for": None},
            {"unique_for": 5},
            {"unique_key": "tenant"},
            {"unique_for": 5, "unique_key": "n"},
            {"caps": [Cap("send", max_total=9)]},
        ]
        for given in options:
            there = other._by_name.new_job(
                "send", {"tenant": "a", "n": 1}, check_options(given), strict=True
            )
            here = send.using(**given).call("a", 1).new_job()
            assert sorted(there.caps, key=str) == sorted(here.caps, key=str), given
        with pytest.raises(DeclarationError, match="without unique_for"):
            other.submit("free", {"n": 1}, unique_key="n")


def test_by_name_a_cap_that_needs_code_is_an_error(both: App) -> None:
    @both.task(caps=[Cap("even", max_total=1, key=lambda n: n % 2)])
    def send(n: int) -> None: ...

    @both.task(caps=[Cap("defaults", max_total=1, key="n")])
    def left_out(n: int = 3) -> None: ...

    @both.job
    class Case(Job):
        cap_at_submit = True

        def __init__(self, n: int) -> None:
            self.n = n

        def run(self) -> None: ...

        def get_concurrency_key(self) -> str:
            return str(self.n)

        def get_concurrency_limit(self) -> int | None:
            return 1

    drain(both)
    with other_app(both) as other:
        for name, args, says in (
            ("send", {"n": 1}, "code that is not here"),
            ("left_out", {}, "without its argument 'n'"),
            ("Case", {"n": 1}, "code that is not here"),
        ):
            with pytest.raises(CapNeedsCode, match=says):
                other.submit(name, args)
        with pytest.raises(CapNeedsCode, match="no worker has published"):
            other.submit("unheard", {}, caps=[Cap("a", max_total=1)])
    assert both.store.count(JobFilter()) == 0


def test_a_capped_task_that_was_unheard_of_fails_what_was_submitted_by_name(both: App) -> None:
    with other_app(both) as other:
        handle = other.submit("send", {"n": 1})

        @both.task(caps=[Cap("all", max_total=1)])
        def send(n: int) -> None: ...

        drain(both)
        with pytest.raises(JobFailed, match="Submit it again now"):
            handle.result()
        assert other.submit("send", {"n": 1}).status() == "ready"


def test_caps_hold_for_what_a_worker_stamps_later(both: App) -> None:
    tenant = both.limit("tenant", 5, key=lambda n: n)

    @both.task(limits=[tenant], caps=[Cap("all", max_total=1)])
    def send(n: int) -> int:
        return n

    drain(both)
    with other_app(both) as other:
        handle = other.submit("send", {"n": 1})
        with pytest.raises(ConcurrencyLimitReached):
            other.submit("send", {"n": 2})
        drain(both)
        assert handle.result() == 1


def test_the_catalogue_keeps_what_it_is_told(both: App) -> None:
    @both.task(caps=[Cap("a", max_total=1, key="n", when_full="block", timeout=3)], unique_for=5)
    def send(n: int) -> None: ...

    drain(both)
    assert both.store.task("send") == send.spec()
    assert json.loads(send.call(1).new_job().args) == {"n": 1}


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

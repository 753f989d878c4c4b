"""Promise: a class with a key and a limit is a task; its constructor's arguments are the job's."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from headgate import (
    Aborted,
    App,
    Cap,
    ConcurrencyLimitReached,
    Context,
    DeclarationError,
    InvalidArguments,
    InvalidKey,
    Job,
    JobFailed,
    Limit,
    Worker,
)
from headgate.config import Config
from headgate.jobs import JobFilter, NewJob
from headgate.testing import TestClock, assert_submitted, drain, inline
from tests.face import sample_jobs
from tests.stores import store_url


@pytest.fixture(params=["sqlite", "postgres"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app on a file, and one on PostgreSQL."""
    url = store_url(request.param, tmp_path, quick=True)
    with App(url, config=Config(url=url)) as app:
        yield app


def groups(job: NewJob) -> list[str]:
    return [need.group for need in job.needs]


def advance(app: App, seconds: float) -> None:
    assert isinstance(app.clock, TestClock)
    app.clock.advance(seconds)


# --- arguments, run, result --------------------------------------------------------------------


def test_the_arguments_of_the_constructor_are_the_job(both: App) -> None:
    @both.job
    class Report(Job):
        def __init__(self, day: date, *pages: int, title: str = "none") -> None:
            self.said = (day, pages, title)

        def run(self) -> list[Any]:
            return [self.said[0].year, *self.said[1], self.said[2], self.context.attempt]

    handle = Report(date(2030, 1, 2), 7, 8, title="x").run_in_worker()
    plain = Report(date(2031, 1, 2)).run_in_worker()
    assert handle.record().args == '{"day":"2030-01-02","title":"x","*pages":[7,8]}'
    assert drain(both).succeeded == 2
    assert handle.result() == [2030, 7, 8, "x", 1]
    assert plain.result() == [2031, "none", 1]
    assert Report(date(2030, 1, 2)).said == (date(2030, 1, 2), (), "none")


def test_run_may_be_async_and_is_awaited(both: App) -> None:
    @both.job
    class Fetch(Job):
        def __init__(self, n: int) -> None:
            self.n = n

        async def run(self) -> int:
            await asyncio.sleep(0)
            return self.n + 1

    async def main() -> None:
        handle = await Fetch(1).arun_in_worker(priority=-3)
        assert (await handle.arecord()).priority == -3
        await asyncio.to_thread(drain, both)
        assert await handle.aresult() == 2

    asyncio.run(main())


def test_results_come_back_as_annotated_and_arguments_are_checked(app: App) -> None:
    @dataclass
    class Point:
        x: int

    globals()["Point"] = Point

    @app.job
    class Move(Job):
        def __init__(self, point: Point) -> None:
            self.point = point

        def run(self) -> Point:
            return Point(self.point.x + 1)

    handle = Move(Point(1)).run_in_worker()
    drain(app)
    assert handle.result() == Point(2)
    with pytest.raises(InvalidArguments, match="point"):
        Move("no").run_in_worker()  # pyright: ignore[reportArgumentType]


def test_a_class_without_a_constructor_takes_nothing(app: App) -> None:
    @app.job
    class Tidy(Job):
        def run(self) -> str:
            return "tidy"

    with inline(app):
        assert Tidy().run_in_worker().result() == "tidy"
    with pytest.raises(TypeError):
        Tidy(1)  # pyright: ignore[reportCallIssue]


def test_what_the_object_becomes_later_is_not_stored(app: App) -> None:
    @app.job
    class Keep(Job):
        def __init__(self, n: int) -> None:
            self.n = n

        def run(self) -> int:
            return self.n

    job = Keep(1)
    job.n = 2
    with inline(app):
        assert job.run_in_worker().result() == 1


def test_dataclasses_are_job_classes_frozen_ones_too(app: App) -> None:
    @app.job("copy.file", queue="slow")
    @dataclass(frozen=True)
    class Copy(Job):
        source: str
        times: int = 2

        def run(self) -> str:
            return self.source * self.times

    with inline(app):
        handle = Copy("a").run_in_worker()
    assert handle.result() == "aa"
    record = handle.record()
    assert (record.task, record.queue) == ("copy.file", "slow")
    assert_submitted(app, Copy, source="a")


def test_errors_are_retried_as_the_class_says(app: App) -> None:
    @app.job
    class Fail(Job):
        retries = 2
        retry_delay = 3

        def run(self) -> None:
            raise ValueError(self.context.attempt)

    handle = Fail().run_in_worker()
    again = Fail().run_in_worker(retries=0)
    done = drain(app, advance=True)
    assert (done.retry, done.failed) == (2, 2)
    with pytest.raises(JobFailed, match="ValueError: 3"):
        handle.result()
    with pytest.raises(JobFailed, match="ValueError: 1"):
        again.result()


def test_attributes_are_options_and_the_decorator_wins(app: App) -> None:
    api = app.limit("api", 3)

    class Base(Job):
        queue = "slow"
        priority = 7
        timeout = 60
        expires = 100
        limits = (api,)
        fair_by = "tenant"

        def __init__(self, tenant: str) -> None:
            self.tenant = tenant

        def run(self) -> None: ...

    @app.job(priority=1)
    class First(Base): ...

    @app.job
    class Second(Base):
        queue = "fast"

    first, second = First("a").call().new_job(), Second("b").call().new_job()
    assert (first.queue, first.priority, first.expires, first.turn) == ("slow", 1, 100, "a")
    assert (second.queue, second.priority, second.turn) == ("fast", 7, "b")
    assert groups(first) == ["api"]
    assert app.tasks["First"].timeout == 60


def test_an_attribute_named_context_is_the_classs_own(app: App) -> None:
    @app.job
    class Mine(Job):
        def __init__(self) -> None:
            self.context: Any = "mine"

        def run(self) -> str:
            return self.context

    with inline(app):
        assert Mine().run_in_worker().result() == "mine"


def test_jobs_are_submitted_with_others_and_from_jobs(both: App) -> None:
    @both.job
    class Child(Job):
        def __init__(self, n: int) -> None:
            self.n = n

        def run(self) -> int:
            return self.n

    @both.job
    class Parent(Job):
        def run(self) -> list[str]:
            return [self.context.submit(Child(1)).id, self.context.submit(Child(2).call()).id]

    many = both.submit_many([Child(5).call(), Parent().call(priority=5)])
    drain(both)
    assert [handle.status() for handle in many] == ["succeeded", "succeeded"]
    children = [both.get_job(id) for id in many[1].result()]
    assert [(one.args, one.state, one.parent) for one in children] == [
        ('{"n":1}', "succeeded", many[1].id),
        ('{"n":2}', "succeeded", many[1].id),
    ]


# --- key and limit -----------------------------------------------------------------------------


class Keyed(Job):
    """Declared in each test anew: which key and which limit."""

    def __init__(self, key: str = "", limit: int | None = None) -> None:
        self.key = key
        self.limit = limit

    def run(self) -> None: ...

    def get_concurrency_key(self) -> str:
        return self.key

    def get_concurrency_limit(self) -> int | None:
        return self.limit


def test_the_four_cases_of_key_and_limit(app: App) -> None:
    @app.job
    class Case(Keyed): ...

    assert groups(Case("", None).call().new_job()) == []
    assert groups(Case("", 5).call().new_job()) == ["Case"]
    assert groups(Case("foo", None).call().new_job()) == []
    assert groups(Case("foo", 5).call().new_job()) == ["Case/foo"]
    assert Case("foo", 5).call().new_job().carried == (("Case/foo", 5),)
    assert Case("foo", 5).call().new_job().turn == "foo"


def running(app: App, *jobs: Job) -> list[int]:
    """Submit these, and see how many run side by side of each."""
    for job in jobs:
        job.run_in_worker()
    Worker(app, burst=True, concurrency=8).run()
    return [int(record.result or 0) for record in app.store.find(JobFilter(), limit=100)]


@pytest.mark.parametrize(("limit", "keys", "most"), [(2, ["", ""], 2), (1, ["a", "b"], 2)])
def test_no_more_run_than_the_limit_says(both: App, limit: int, keys: list[str], most: int) -> None:
    now: list[str] = []

    @both.job
    class Busy(Job):
        def __init__(self, key: str, n: int) -> None:
            self.key = key

        async def run(self) -> int:
            now.append(self.key)
            seen = max(now.count(self.key), 0), len(now)
            await asyncio.sleep(0.02)
            now.remove(self.key)
            assert seen[0] <= limit
            return seen[1]

        def get_concurrency_key(self) -> str:
            return self.key

        def get_concurrency_limit(self) -> int | None:
            return limit

    jobs = [Busy(key, n) for n in range(6) for key in keys]
    assert max(running(both, *jobs)) == most
    assert both.store.count(JobFilter(states=frozenset(("succeeded",)))) == 12


def test_a_limit_of_0_keeps_the_jobs_and_starts_none(both: App) -> None:
    @both.job
    class Never(Job):
        def run(self) -> None: ...

        def get_concurrency_limit(self) -> int | None:
            return 0

    handle = Never().run_in_worker()
    assert drain(both).attempts == 0
    assert handle.status() == "ready"


def test_a_limit_that_is_the_same_for_all_is_declared_and_follows_deployments(app: App) -> None:
    @app.job
    class Same(Job):
        most = 3

        def __init__(self, n: int) -> None:
            self.n = n

        def run(self) -> None: ...

        def get_concurrency_limit(self) -> int | None:
            return self.most

    assert app.limits["Same"] == Limit("Same", 3)
    assert app.publication("me").code == {"Same": 3}
    assert Same(1).call().new_job().carried == ()
    Same.most = 4  # differs from what was declared: carried, so that it is shown
    assert Same(1).call().new_job().carried == (("Same", 4),)


def test_a_limit_that_asks_the_arguments_is_carried_by_each_job(app: App) -> None:
    @app.job
    @dataclass
    class Own(Job):
        n: int = 2  # the class has an attribute of that name too

        def run(self) -> None: ...

        def get_concurrency_limit(self) -> int | None:
            return self.n if self.n > 1 else 1

    assert "Own" not in app.limits
    assert Own(5).call().new_job().carried == (("Own", 5),)


def test_keyed_jobs_do_not_count_against_the_class(both: App) -> None:
    @both.job
    class Some(Keyed): ...

    held = [Some("", 1).run_in_worker(delay=0), Some("a", 1).run_in_worker()]
    assert [handle.record().needs.all[0].group for handle in held] == [
        "Some",
        "Some/a",
    ]
    assert drain(both).succeeded == 2


def test_the_key_may_be_given_where_the_job_is_submitted(app: App) -> None:
    @app.job
    class Case(Keyed): ...

    def group(**options: Any) -> list[str]:
        return groups(Case("foo", 5).call(**options).new_job())

    assert group(concurrency_key="bar") == ["Case/bar"]
    assert group(concurrency_key="") == ["Case"]
    assert group(concurrency_group="other", concurrency_limit=1) == ["other"]
    assert Case("a", 5).call(concurrency_limit=9).new_job().carried == (("Case/a", 9),)
    assert group(concurrency_limit=None) == []
    with pytest.raises(DeclarationError, match="give one of them"):
        group(concurrency_key="bar", concurrency_group="other")


@pytest.mark.parametrize("key", ["a/b", "50%", "é\n", "x" * 300])
def test_any_text_is_a_key_and_is_stored_like_that_of_a_limit(app: App, key: str) -> None:
    limit = app.limit("same", 5, key="key")

    @app.job
    class Case(Keyed):
        limits = (limit,)

    own, other = Case(key, 5).call().new_job().needs.all
    assert own.key == other.key


def test_a_key_that_is_none_is_refused(app: App) -> None:
    @app.job
    class Case(Keyed):
        def get_concurrency_key(self) -> str:
            return None  # pyright: ignore[reportReturnType]

    with pytest.raises(InvalidKey, match="NoneType"):
        Case("a", 1).run_in_worker()


def test_a_limit_that_is_no_number_is_refused(app: App) -> None:
    @app.job
    class Case(Keyed): ...

    with pytest.raises(DeclarationError, match="from 0"):
        Case("a", -1).run_in_worker()

    with pytest.raises(DeclarationError, match="whole number"):

        @app.job
        class Wrong(Job):
            def run(self) -> None: ...

            def get_concurrency_limit(self) -> int | None:
                return "5"  # pyright: ignore[reportReturnType]


def test_one_per_is_one_at_a_time_for_each_value(app: App) -> None:
    @app.job
    class Sync(Job):
        one_per = "user_id"

        def __init__(self, user_id: int) -> None:
            self.user_id = user_id

        def run(self) -> None: ...

    assert app.limits["Sync"] == Limit("Sync", 1, key="user_id")
    job = Sync(42).call().new_job()
    assert (groups(job), job.turn, job.fair_limit) == (["Sync/42"], "42", "Sync")
    assert groups(Sync(42).call(concurrency_key="x").new_job()) == ["Sync/x"]
    # Who submits by name comes to the same group, from the catalogue.
    drain(app)
    with_name = app._by_name.new_job("Sync", {"user_id": 42}, {}, strict=True)
    assert (groups(with_name), with_name.turn) == (["Sync/42"], "42")


def test_a_class_is_submitted_by_name_and_stamped_by_a_worker(both: App) -> None:
    @both.job
    class Case(Keyed): ...

    drain(both)
    job = both._by_name.new_job("Case", {"key": "k%", "limit": 3}, {}, strict=True)
    assert not job.routed
    both.store.submit([job])
    assert drain(both).succeeded == 1
    assert both.get_job(job.id).needs.all[0].group == "Case/k%25"
    assert both.store.values(["Case/k%25"])["Case/k%25"].value == 3


# --- caps of a class ---------------------------------------------------------------------------


def test_cap_at_submit_refuses_what_is_beyond_the_limit(app: App) -> None:
    @app.job
    class Case(Keyed):
        cap_at_submit = True

    first = [Case("a", 2).run_in_worker() for _ in range(2)]
    with pytest.raises(ConcurrencyLimitReached) as refused:
        Case("a", 2).run_in_worker()
    assert (refused.value.group, refused.value.count, refused.value.cap) == ("Case/a", 2, 2)
    Case("b", 2).run_in_worker()
    Case("a", None).run_in_worker()
    drain(app)
    assert [handle.status() for handle in first] == ["succeeded", "succeeded"]
    Case("a", 2).run_in_worker()
    with pytest.raises(ConcurrencyLimitReached, match="is 0"):
        Case("z", 0).run_in_worker()


def test_cap_at_submit_may_do_what_a_cap_does(app: App) -> None:
    @app.job(cap_at_submit="skip", one_per="n")
    class Once(Job):
        def __init__(self, n: int) -> None:
            self.n = n

        def run(self) -> None: ...

    first = Once(1).run_in_worker()
    again = Once(1).run_in_worker()
    assert again == first
    assert (first.existing, again.existing) == (False, True)
    assert Once(2).run_in_worker() != first


def test_a_cap_of_the_same_name_stands_in_place_of_the_classs_own(app: App) -> None:
    @app.job
    class Case(Keyed):
        cap_at_submit = True

    wider = Cap("Case", max_total=2, key="key")
    Case("a", 1).run_in_worker()
    Case("a", 1).run_in_worker(caps=[wider])
    with pytest.raises(ConcurrencyLimitReached, match="its cap is 2"):
        Case("a", 1).run_in_worker(caps=[wider])


def test_a_class_has_caps_and_a_period_of_its_own(app: App) -> None:
    @app.job(caps=[Cap("tenant", max_waiting=1, key="tenant")], unique_for=60, unique_key="n")
    class Case(Job):
        def __init__(self, tenant: str, n: int) -> None: ...
        def run(self) -> None: ...

    Case("a", 1).run_in_worker()
    with pytest.raises(ConcurrencyLimitReached, match="'tenant/a'"):
        Case("a", 2).run_in_worker()
    with pytest.raises(ConcurrencyLimitReached, match="'Case/1'"):
        Case("b", 1).run_in_worker()
    Case("b", 2).run_in_worker()


# --- on_aborted --------------------------------------------------------------------------------


def declare_told(app: App, told: list[tuple[int, Aborted]]) -> type[Any]:
    @app.job
    class Told(Job):
        queue = "slow"

        def __init__(self, n: int) -> None:
            self.n = n

        def run(self) -> None:
            if self.n < 0:
                raise ValueError("below zero")

        def on_aborted(self, aborted: Aborted) -> None:
            told.append((self.n, aborted))

    drain(app)  # a worker was there once, so the store knows the class
    return Told


def test_a_class_is_told_of_what_was_cancelled(both: App) -> None:
    told: list[tuple[int, Aborted]] = []
    cls = declare_told(both, told)
    one, two, done, failed = (cls(n).run_in_worker() for n in (1, 2, 3, -1))
    one.cancel("not needed")
    two.cancel()
    assert drain(both).failed == 1
    assert told == [
        (1, Aborted(one.id, "cancelled", "not needed")),
        (2, Aborted(two.id, "cancelled", "cancelled")),
    ]
    assert (done.status(), failed.status()) == ("succeeded", "failed")
    (teller,) = both.store.find(JobFilter(task="Told.on_aborted"), limit=1)
    assert (teller.parent, teller.queue, teller.needs.all) == (two.id, "slow", ())
    drain(both)
    assert len(told) == 2


def test_a_class_is_told_of_what_expired(app: App) -> None:
    told: list[tuple[int, Aborted]] = []
    cls = declare_told(app, told)
    handle = cls(1).run_in_worker(expires=5)
    advance(app, 6)
    drain(app)
    assert told == [(1, Aborted(handle.id, "cancelled", "expired"))]


def test_a_class_is_told_of_what_a_claim_found_expired(both: App) -> None:
    told: list[tuple[int, Aborted]] = []
    cls = declare_told(both, told)
    handle = cls(1).run_in_worker(expires=0.05)
    while both.store.now() <= (handle.record().expires_at or 0):
        time.sleep(0.01)
    drain(both)
    assert told == [(1, Aborted(handle.id, "cancelled", "expired"))]


def test_a_class_is_told_of_what_was_lost_for_good_and_not_before(both: App) -> None:
    from tests.cli.hands import Hands

    told: list[tuple[int, Aborted]] = []
    cls = declare_told(both, told)
    handle = cls(1).run_in_worker(max_lost=1)
    for _ in range(2):
        assert told == []
        hands = Hands(both.store, "Told")
        assert [one.job for one in hands.claim()] == [handle.id]
        both.store.declare_dead(hands.id, "killed")
        for fd in hands.registration.fds:
            os.close(fd)
    drain(both)
    assert told == [(1, Aborted(handle.id, "failed", "lost"))]


def test_a_class_is_told_of_what_a_newer_one_superseded(both: App) -> None:
    told: list[tuple[int, Aborted]] = []

    @both.job
    class Told(Job):
        caps = (Cap("newest", max_total=1, when_full="replace"),)

        def __init__(self, n: int) -> None:
            self.n = n

        def run(self) -> None: ...

        def on_aborted(self, aborted: Aborted) -> None:
            told.append((self.n, aborted))

    drain(both)
    old, new = Told(1).run_in_worker(), Told(2).run_in_worker()
    drain(both)
    drain(both)
    assert told == [(1, Aborted(old.id, "cancelled", "superseded"))]
    assert new.status() == "succeeded"


def test_a_class_is_told_of_what_was_cancelled_while_it_ran(both: App) -> None:
    told: list[Aborted] = []
    started = threading.Event()

    @both.job
    class Told(Job):
        async def run(self) -> None:
            started.set()
            await asyncio.sleep(30)

        async def on_aborted(self, aborted: Aborted) -> None:
            told.append(aborted)

    worker = threading.Thread(target=Worker(both, burst=True).run)
    handle = Told().run_in_worker()
    worker.start()
    assert started.wait(20)
    handle.cancel("enough")
    worker.join(20)
    assert told == [Aborted(handle.id, "cancelled", "enough")]


def test_telling_is_tried_again_as_the_class_says(app: App) -> None:
    tries: list[int] = []

    @app.job(retries=2, retry_delay=1)
    class Told(Job):
        def run(self) -> None: ...

        async def on_aborted(self, aborted: Aborted) -> None:
            tries.append(1)
            if len(tries) < 3:
                raise OSError("not yet")

    drain(app)
    Told().run_in_worker().cancel()
    assert drain(app, advance=True).retry == 2
    assert len(tries) == 3


# --- in processes of their own -----------------------------------------------------------------


def test_a_class_runs_isolated(url: str, tmp_path: Path) -> None:
    app = sample_jobs.app
    app._url, app._config_source = url, Config(url=url)
    with app:
        handle = sample_jobs.Isolated(date(2030, 1, 1), times=2).run_in_worker()
        Worker(app, burst=True).run()
        pid, years, attempt = handle.result()
        assert (years, attempt) == (4060, 1)
        assert pid != os.getpid()

        told = tmp_path / "told"
        sample_jobs.Told(str(told)).run_in_worker(delay=60).cancel("enough")
        Worker(app, burst=True).run()
        reason, teller = told.read_text().split()
        assert reason == "enough"
        assert int(teller) != os.getpid()


# --- what cannot work is said at once ----------------------------------------------------------


def test_what_is_no_job_class_is_refused(app: App) -> None:
    def function() -> None: ...

    with pytest.raises(DeclarationError, match=r"headgate\.Job"):
        app.job(function)  # pyright: ignore[reportArgumentType,reportCallIssue]

    class Plain:
        def run(self) -> None: ...

    with pytest.raises(DeclarationError, match=r"headgate\.Job"):
        app.job(Plain)  # pyright: ignore[reportArgumentType,reportCallIssue]

    class Empty(Job): ...

    with pytest.raises(DeclarationError, match=r"has no run\(\)"):
        app.job(Empty)

    class Asks(Job):
        def run(self, n: int) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]

    with pytest.raises(DeclarationError, match="nothing but self"):
        app.job(Asks)

    class Takes(Job):
        def __init__(self, ctx: Context) -> None: ...
        def run(self) -> None: ...

    with pytest.raises(DeclarationError, match=r"self\.context"):
        app.job(Takes)

    class Local(Job):
        def run(self) -> None: ...

    with pytest.raises(DeclarationError, match="module level"):
        app.job(isolate="process")(Local)
    with pytest.raises(DeclarationError, match=r"with @app\.job"):
        app.task(Local)
    with pytest.raises(DeclarationError, match=r"get_concurrency_limit"):
        app.job(max_concurrent=5)(Local)  # pyright: ignore[reportCallIssue]
    with pytest.raises(DeclarationError, match="unknown option 'colour'"):
        app.job(colour=5)(Local)  # pyright: ignore[reportCallIssue]
    with pytest.raises(DeclarationError, match="'m'"):
        app.job(one_per="m")(Local)
    with pytest.raises(DeclarationError, match="cap_at_submit is one of"):
        app.job(cap_at_submit="maybe")(Local)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DeclarationError, match="is not declared"):
        Local().run_in_worker()
    app.job(Local)
    with pytest.raises(DeclarationError, match="declared twice"):
        app.job("other")(Local)
    with pytest.raises(DeclarationError, match="declared twice"):

        @app.job("Local")
        class Another(Job):
            def run(self) -> None: ...

    class Below(Local): ...

    with pytest.raises(DeclarationError, match="is not declared"):
        Below().run_in_worker()


def test_one_per_and_its_own_rule_exclude_each_other(app: App) -> None:
    with pytest.raises(DeclarationError, match="one_per and get_concurrency_key"):

        @app.job
        class Case(Keyed):
            one_per = "key"


def test_a_name_that_no_group_can_have_is_refused_where_there_is_one(app: App) -> None:
    with pytest.raises(DeclarationError, match="'/'"):

        @app.job("a/b")
        class Case(Keyed): ...

    @app.job("c/d")
    class Free(Job):
        def run(self) -> int:
            return 1

    with inline(app):
        assert Free().run_in_worker().result() == 1

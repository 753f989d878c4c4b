"""Promise: a class is a task; its constructor's arguments are the job's."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from headgate import (
    App,
    Context,
    DeclarationError,
    InvalidArguments,
    Job,
    JobFailed,
    Worker,
)
from headgate.config import Config
from headgate.testing import assert_submitted, drain, inline
from tests.face import sample_jobs
from tests.face.keyed import Keyed, groups

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

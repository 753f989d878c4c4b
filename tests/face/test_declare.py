"""Promise: what cannot work is refused where it is declared, with a message that says why."""

from __future__ import annotations

import functools
from datetime import datetime, timedelta
from typing import Any

import pytest

from headgate import App, Backoff, Context, DeclarationError, HeadgateError, Limit, OneOf
from headgate.tasks import AsyncTask, SyncTask


def module_level(n: int) -> int:
    return n


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"priority": 101}, "priority must be a whole number from -100 to 100"),
        ({"priority": True}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"retries": -1}, "retries"),
        ({"retries": "3"}, "retries"),
        ({"max_lost": -1}, "max_lost"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": "60"}, "timeout must be seconds or a timedelta"),
        ({"expires": -1}, "expires"),
        ({"queue": ""}, "queue"),
        ({"queue": "a\0b"}, "queue"),
        ({"max_concurrent": -1}, "value must be from 0"),
        ({"max_concurrent": True}, "whole number"),
        ({"limits": "api"}, "limits must be a list"),
        ({"limits": [3]}, "a limit is a Limit, a OneOf or a name"),
        ({"limits": [""]}, "limit"),
        ({"limits": ["a/b"]}, "'/'"),
        ({"limits": [Limit("x", 1), Limit("x", 1)]}, "names limit 'x' twice"),
        ({"limits": [Limit("x", 1), OneOf("x", "y")]}, "names limit 'x' twice"),
        ({"limits": [Limit("take", 1)], "max_concurrent": 1}, "names limit 'take' twice"),
        ({"limits": [Limit("x", 1, key="tenant")]}, "keyed by argument 'tenant'"),
        ({"fair_by": "tenant"}, "keyed by argument 'tenant'"),
        ({"isolate": "thread"}, "isolate is None or 'process'"),
        ({"isolate": "process"}, "module level"),
        ({"aliases": "old"}, "aliases must be a list"),
        ({"aliases": ["take"]}, "alias"),
        ({"aliases": ["a", "a"]}, "alias"),
        ({"retry_delay": -1}, "retry_delay"),
        ({"retry_delay": "soon"}, "retry_delay"),
        ({"colour": "red"}, "unknown task option 'colour'"),
    ],
)
def test_wrong_options_are_refused(app: App, options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError) as refused:

        @app.task("take", **options)
        def take(n: int) -> None:
            pass

    assert says in str(refused.value)
    assert "take" not in app.tasks


def test_a_name_is_declared_once(app: App) -> None:
    app.task("one", aliases=["uno"])(module_level)
    for name in ("one", "uno"):
        with pytest.raises(DeclarationError, match="declared twice"):
            app.task(name)(module_level)
    with pytest.raises(DeclarationError, match="declared twice"):
        app.task("two", aliases=["uno"])(module_level)
    assert "two" not in app.tasks
    with pytest.raises(DeclarationError, match="one name"):
        app.task("a", name="b")
    for bad in ("", "x" * 129, "a\nb", " a"):
        with pytest.raises(DeclarationError, match="name of"):
            app.task(bad)(module_level)
    with pytest.raises(DeclarationError, match="has no name"):
        app.task(lambda: None)
    with pytest.raises(DeclarationError, match="made from a function"):
        app.task("x")(3)  # type: ignore[call-overload]


def test_a_limit_has_one_value_in_an_app(app: App) -> None:
    api = app.limit("api", 10)
    assert app.limit("api", 10) == api
    app.task("wide", limits=[api.units(3)])(module_level)
    app.task("inline", limits=[Limit("api", 10)])(module_level)
    for other in (lambda: app.limit("api", 9), lambda: app.limit("api", 10, key="n")):
        with pytest.raises(DeclarationError, match="declared twice"):
            other()
    with pytest.raises(DeclarationError, match="declared twice"):
        app.task("third", limits=[Limit("api", 11)])(module_level)


def test_the_forms_of_the_decorator(app: App) -> None:
    @app.task
    def bare(n: int) -> int:
        """Says something."""
        return n

    @app.task()
    def empty() -> None: ...

    @app.task(name="by-keyword")
    async def named() -> int:
        return 3

    other = app.task("called", max_concurrent=2)(module_level)
    part = app.task("part")(functools.partial(module_level, 4))
    assert set(app.tasks) == {"bare", "empty", "by-keyword", "called", "part"}
    assert bare.__doc__ == "Says something."
    assert bare.__name__ == "bare"
    assert isinstance(bare, SyncTask)
    assert isinstance(named, AsyncTask)
    assert not bare.is_async
    assert named.is_async
    assert bare(3) == 3
    assert other(5) == 5
    assert part() == 4  # type: ignore[call-arg]
    assert module_level(6) == 6


def test_isolated_tasks_can_be_imported(app: App) -> None:
    task = app.task("iso", isolate="process")(module_level)
    assert task.import_path == (__name__, "module_level")


def test_retry_delays(app: App) -> None:
    error = ValueError("x")
    default = app.task("default", retries=3)(module_level)
    delays = [default.retry_delay_for(n, error) for n in range(1, 30)]
    assert all(1.0 <= delay <= 750 for delay in delays)
    assert 1.0 <= delays[0] <= 1.25
    assert 6 <= delays[3] <= 10
    assert min(delays[-5:]) >= 450
    fixed = app.task("fixed", retry_delay=0.1)(module_level)
    assert fixed.retry_delay_for(9, error) == 0.1
    stepped = app.task("stepped", retry_delay=timedelta(seconds=3))(module_level)
    assert stepped.retry_delay_for(9, error) == 3.0
    own = app.task("own", retry_delay=lambda errors, exc: errors * 0.5)(module_level)
    assert own.retry_delay_for(4, error) == 2.0
    shaped = app.task("shaped", retry_delay=Backoff(base=0.01, jitter=0))(module_level)
    assert shaped.retry_delay_for(2, error) == 0.02
    broken = app.task("broken", retry_delay=lambda errors, exc: -1)(module_level)
    with pytest.raises(DeclarationError, match="-1"):
        broken.retry_delay_for(1, error)
    assert Backoff()(10**6, error) <= 750


def test_using_is_the_same_task_with_other_options(app: App) -> None:
    task = app.task("t", timeout=5, retries=1, priority=3)(module_level)
    other = task.using(priority=-5, timeout=None).using(retries=7, queue="slow")
    assert (other.priority, other.timeout, other.retries, other.queue) == (-5, None, 7, "slow")
    assert (task.priority, task.timeout, task.retries, task.queue) == (3, 5.0, 1, "default")
    job = other.call(1).new_job()
    assert (job.priority, job.queue) == (-5, "slow")
    again = task.for_job(job.options)
    assert (again.retries, again.timeout, again.queue) == (7, None, "slow")
    assert task.for_job("{}") is task
    assert task.for_job('{"retries":2,"from_a_newer_program":1}').retries == 2


@pytest.mark.parametrize(
    "options",
    [
        {"colour": 1},
        {"delay": -1},
        {"delay": 1, "run_at": None},
        {"delay": "soon"},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 513},
        {"idempotency_key": 5},
        {"idempotency_key": "a\0b"},
        {"concurrency_group": ""},
        {"concurrency_group": None},
        {"concurrency_limit": -1},
        {"concurrency_limit": "5"},
        {"run_at": "2030-01-01"},
        {"run_at": datetime(2030, 1, 1)},  # naive
        {"queue": "\ud800"},
    ],
)
def test_wrong_options_of_a_submission_are_refused(app: App, options: dict[str, Any]) -> None:
    task = app.task("t")(module_level)
    with pytest.raises(HeadgateError):
        task.using(**options)
    with pytest.raises(HeadgateError):
        app.submit("t", {"n": 1}, **options)
    with pytest.raises(HeadgateError):
        app.submit("unknown", {"n": 1}, **options)


def test_hooks_are_kept_in_order(app: App) -> None:
    @app.on_worker_start
    def start() -> None: ...

    @app.on_worker_stop
    async def stop() -> None: ...

    @app.on_error
    def error(ctx: Context, exc: BaseException) -> None: ...

    assert app.hooks.worker_start == [start]
    assert app.hooks.worker_stop == [stop]
    assert app.hooks.error == [error]


def test_weights(app: App) -> None:
    app.weight("acme", 3)
    app.weight(42, 2)
    assert app.weights == {"acme": 3, "42": 2}
    for bad in (0, -1, 1.5, True, "3"):
        with pytest.raises(HeadgateError, match="weight"):
            app.weight("acme", bad)  # type: ignore[arg-type]
    with pytest.raises(HeadgateError, match="fairness key"):
        app.weight(None, 1)

"""Promise: what a job needs and whose turn it takes are stamped once, the same by everyone."""

from __future__ import annotations

import enum
import json
import uuid
from typing import Any

import pytest

from headgate import (
    App,
    DeclarationError,
    InvalidArguments,
    InvalidKey,
    Limit,
    OneOf,
    TooWide,
    UnknownLimit,
    UnknownTask,
)
from headgate.jobs import JobRecord, NewJob, Unrouted
from headgate.limits import Need, band_of
from headgate.stores.protocol import LimitChange
from headgate.testing import drain


class Size(str, enum.Enum):  # noqa: UP042 - its text is not its value
    BIG = "big"


def needs(job: NewJob | JobRecord) -> list[tuple[str, int]]:
    return [(need.group, need.units) for need in job.needs.all]


def test_limits_become_needs(app: App) -> None:
    tenant = app.limit("tenant", 2, key="tenant_id")
    gpu = app.limit("gpu", 24)
    app.limit("host-a", 2)

    @app.task(max_concurrent=5, limits=[gpu.units(6), tenant, OneOf("host-a", Limit("host-b", 1))])
    def train(tenant_id: str = "nobody", n: int = 1) -> None: ...

    job = train.call("acme").new_job()
    assert needs(job) == [("train", 1), ("gpu", 6), ("tenant/acme", 1)]
    assert job.needs.one_of == ((Need("host-a"), Need("host-b")),)
    assert (job.turn, job.fair_limit) == ("acme", "tenant")
    assert needs(train.call().new_job())[2] == ("tenant/nobody", 1)


def test_a_job_without_limits_asks_the_store_nothing(app: App, monkeypatch: Any) -> None:
    @app.task
    def free(n: int) -> None: ...

    @app.task(max_concurrent=1, limits=[Limit("tenant", 2, key="n")])
    def limited(n: int) -> None: ...

    asked: list[str] = []
    for name in ("values", "task", "limits", "group"):
        monkeypatch.setattr(type(app.store), name, lambda *a, name=name: asked.append(name))
    free.submit(1)
    limited.submit(1)
    assert asked == []


@pytest.mark.parametrize(
    ("value", "group"),
    [
        ("acme", "t/acme"),
        (42, "t/42"),
        (True, "t/true"),
        (Size.BIG, "t/big"),
        (uuid.UUID(int=1), "t/00000000-0000-0000-0000-000000000001"),
        ("a/b", "t/a/b"),
        ("a\nb\0", "t/a%0Ab%00"),
        ("é中", "t/é中"),
        ("", "t/"),
    ],
)
def test_keys_are_the_text_of_a_json_scalar(app: App, value: Any, group: str) -> None:
    app.task("x", limits=[Limit("t", 1, key="k")])(lambda k: None)
    job = app.tasks["x"].call(value).new_job()
    assert needs(job) == [(group, 1)]
    assert job.turn == group.partition("/")[2]
    named = app.tasks["x"].call_payload({"k": json.loads(job.args)["k"]}).new_job()
    assert named.needs == job.needs, "whoever submits by name comes to the same group"


def test_long_keys_are_bounded_and_distinct(app: App) -> None:
    app.task("x", limits=[Limit("t", 1, key="k")])(lambda k: None)
    one = app.tasks["x"].call("k" * 10_000 + "1").new_job()
    two = app.tasks["x"].call("k" * 10_000 + "2").new_job()
    assert len(one.needs.all[0].group) < 200
    assert one.needs != two.needs


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, "\ud800"])
def test_other_keys_are_refused(app: App, value: Any) -> None:
    app.task("x", limits=[Limit("t", 1, key="k")])(lambda k: None)
    with pytest.raises((InvalidKey, InvalidArguments)):
        app.tasks["x"].submit(value)


def test_key_functions_get_the_arguments_they_name(app: App) -> None:
    calls: list[tuple[str, int]] = []

    def key(a: str, b: int) -> str:
        calls.append((a, b))
        return f"{a}-{b}"

    @app.task(limits=[Limit("t", 1, key=key)], fair_by=lambda **every: every["c"])
    def x(a: str, b: int = 7, c: str = "z") -> None: ...

    job = x.call("q").new_job()
    assert (needs(job), job.turn, job.fair_limit) == ([("t/q-7", 1)], "z", "")
    assert calls == [("q", 7)], "a key function is called once per job"

    @app.task(limits=[Limit("bad", 1, key=lambda a: 1 / a)])
    def y(a: int) -> None: ...

    with pytest.raises(InvalidKey, match="key function of limit 'bad' raised ZeroDivisionError"):
        y.submit(0)


def test_the_turn(app: App) -> None:
    tenant = app.limit("tenant", 2, key="tenant_id")
    user = app.limit("user", 2, key="user_id")

    @app.task(limits=[tenant, user], fair_by="user_id")
    def by_user(tenant_id: str, user_id: str) -> None: ...

    @app.task(limits=[user, tenant])
    def by_first(tenant_id: str, user_id: str) -> None: ...

    @app.task(limits=[OneOf(tenant, user)])
    def by_member(tenant_id: str, user_id: str) -> None: ...

    @app.task(fair_by="user_id")
    def unlimited(user_id: str) -> None: ...

    job = by_user.call("acme", "first").new_job()
    assert (job.turn, job.fair_limit) == ("first", "user")
    job = by_first.call("acme", "first").new_job()
    assert (job.turn, job.fair_limit) == ("first", "user")
    job = by_member.call("acme", "first").new_job()
    assert (job.turn, job.fair_limit) == ("acme", ""), "a full member does not block the turn"
    job = unlimited.call("first").new_job()
    assert (job.turn, job.fair_limit) == ("first", "")


def test_concurrency_group_stands_in_place_of_the_tasks_own_limit_only(app: App) -> None:
    api = app.limit("api", 10)

    @app.task(max_concurrent=5, limits=[api])
    def own(n: int) -> None: ...

    @app.task(limits=[api])
    def none(n: int) -> None: ...

    def job(task: Any, **options: Any) -> NewJob:
        return task.using(**options).call(1).new_job()

    assert needs(job(own)) == [("own", 1), ("api", 1)]
    made = job(own, concurrency_group="other", concurrency_limit=3)
    assert (needs(made), made.carried) == ([("other", 1), ("api", 1)], (("other", 3),))
    another = job(own, concurrency_group="another", concurrency_limit=3)
    assert band_of("own", another.needs) == band_of("own", made.needs), "groups make no bands"
    made = job(own, concurrency_limit=3)
    assert (needs(made), made.carried) == ([("own", 1), ("api", 1)], (("own", 3),))
    made = job(none, concurrency_group="heavy/a", concurrency_limit=3)
    assert (needs(made), made.carried) == ([("api", 1), ("heavy/a", 1)], (("heavy/a", 3),))
    made = job(none, concurrency_limit=2)
    assert needs(made) == [("api", 1), ("none", 1)]
    with pytest.raises(DeclarationError, match="group 'api' twice"):
        job(own, concurrency_group="api")
    with pytest.raises(UnknownLimit, match="'nowhere'"):
        job(own, concurrency_group="nowhere")


def test_limit_names_are_resolved_late(app: App) -> None:
    @app.task(limits=["later", OneOf("host-a", "host-b")])
    def x(k: str) -> None: ...

    with pytest.raises(UnknownLimit, match=r"'later' is declared nowhere.*app.limit"):
        x.submit("a")
    app.limit("later", 3, key="k")
    app.limit("host-a", 1)
    with pytest.raises(UnknownLimit, match="'host-b'"):
        x.submit("a")
    app.store.change_limit(LimitChange("host-b", 4, set_value=True, by="test"))
    assert needs(x.call("a").new_job()) == [("later/a", 1)]

    @app.task(limits=["keyed"])
    def y(k: str) -> None: ...

    app.limit("keyed", 3, key="other")
    with pytest.raises(DeclarationError, match="keyed by argument 'other'"):
        y.submit("a")


def test_a_job_wider_than_its_limit_is_refused(app: App) -> None:
    gpu = app.limit("gpu", 4)
    app.limit("small", 1)
    app.limit("zero", 0)
    app.task("fits", limits=[gpu.units(4)])(lambda: None)
    app.task("wide", limits=[gpu.units(5)])(lambda: None)
    app.task("either", limits=[OneOf(Limit("small", 1, units=2), gpu.units(2))])(lambda: None)
    app.task("neither", limits=[OneOf(Limit("small", 1, units=2), gpu.units(5))])(lambda: None)
    app.task("zeroed", limits=[Limit("zero", 0, units=3)])(lambda: None)
    for name in ("fits", "either", "zeroed"):
        app.submit(name)
    for name in ("wide", "neither"):
        with pytest.raises(TooWide, match="units of"):
            app.submit(name)
    app.store.change_limit(LimitChange("gpu", 2, set_value=True, by="test"))
    app.clock.advance(2)  # type: ignore[attr-defined]
    with pytest.raises(TooWide, match="4 units of 'gpu', which has only 2"):
        app.submit("fits")


# --- by name -------------------------------------------------------------------------------


def other_program(app: App) -> App:
    """Another app on the same store, that declares nothing."""
    made = App(app.url, config=app.config, clock=app.clock)
    made._store = app.store
    return made


def test_by_name_from_the_catalogue(app: App) -> None:
    tenant = app.limit("tenant", 2, key="tenant_id")

    @app.task("new-name", aliases=["old-name"], limits=[tenant], queue="slow", priority=4)
    def charge(tenant_id: str, n: int = 1) -> str:
        return f"{tenant_id} {n}"

    far = other_program(app)
    with pytest.raises(UnknownTask, match="'new-name'"):
        far.submit("new-name", {"tenant_id": "a"}, strict=True)
    app.store.publish(app.publication("w"))
    handle = far.submit("new-name", {"tenant_id": "acme", "n": 3}, strict=True, priority=-3)
    record = handle.record()
    assert (record.queue, record.priority, record.turn) == ("slow", -3, "acme")
    assert needs(record) == [("tenant/acme", 1)]
    alias = far.submit("old-name", {"tenant_id": "acme"})
    assert alias.record().task == "new-name"
    with pytest.raises(InvalidArguments, match="mapping"):
        far.submit("new-name", [1])
    assert drain(app).succeeded == 2
    assert handle.result() == "acme 3"


def test_by_name_before_anybody_knows_the_task(app: App) -> None:
    far = other_program(app)
    handle = far.submit(
        "heavy", {"n": 1}, concurrency_group="hp", concurrency_limit=5, queue="q", retries=2
    )
    assert not handle.record().needs

    @app.task(max_concurrent=3)
    def heavy(n: int, ctx: Any = None) -> int:
        return n

    assert drain(app).succeeded == 1
    record = handle.record()
    assert (record.queue, needs(record)) == ("q", [("hp", 1)])
    assert app.slots.get_status("hp").limit == 5
    assert handle.result() == 1


def test_a_callable_key_is_left_to_those_who_have_the_code(app: App) -> None:
    @app.task(limits=[Limit("t", 1, key=lambda n: n % 2)])
    def odd(n: int) -> int:
        return n

    @app.task(limits=[Limit("u", 1, key="k")])
    def defaulted(k: str = "d") -> str:
        return k

    app.store.publish(app.publication("w"))
    far = other_program(app)
    bad = far.submit("odd", {"n": "text"})
    good = far.submit("odd", {"n": 3}, strict=True)
    left_out = far.submit("defaulted")
    assert drain(app).succeeded == 2
    assert needs(good.record()) == [("t/1", 1)]
    assert needs(left_out.record()) == [("u/d", 1)]
    record = bad.record()
    assert (record.state, record.reason) == ("failed", "unroutable")


def test_route_reports_a_key_function_that_raises(app: App) -> None:
    @app.task(limits=[Limit("t", 1, key=lambda n: 1 / n)])
    def inverse(n: int) -> None: ...

    routing = inverse.route(Unrouted("id", "inverse", '{"n":0}', "{}"))
    assert routing.error is not None
    assert "ZeroDivisionError" in routing.error
    routing = inverse.route(Unrouted("id", "inverse", '{"n":2}', '{"priority":7}'))
    assert (routing.error, routing.priority) == (None, 7)


def test_declared_here_wins_over_the_catalogue_and_is_checked(app: App) -> None:
    @app.task
    def local(n: int) -> int:
        return n

    with pytest.raises(InvalidArguments, match="Expected `int`"):
        app.submit("local", {"n": "x"})
    with pytest.raises(InvalidArguments, match="mapping of its arguments"):
        app.submit("local", "x")
    with pytest.raises(DeclarationError, match="name of a task"):
        app.submit("", {})
    with pytest.raises(InvalidArguments, match="payload for task 'other'"):
        app.submit("other", object())


def test_one_key_that_carries_a_value_says_nothing_of_the_others(app: App) -> None:
    app.task("x")(lambda: None)
    task = app.tasks["x"]
    task.using(concurrency_group="user/1", concurrency_limit=2).submit()
    task.using(concurrency_group="user", concurrency_limit=2).submit()
    task.using(concurrency_group="user/1").submit()
    with pytest.raises(UnknownLimit, match="user"):
        task.using(concurrency_group="user/2").submit()

"""Promise: each job is stamped with its caps and their keys, by name as by code."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from headgate import (
    App,
    Cap,
    CapNeedsCode,
    ConcurrencyLimitReached,
    DeclarationError,
    InvalidKey,
    Job,
    JobFailed,
)
from headgate.config import Config
from headgate.jobs import CapUse, JobFilter
from headgate.options import check_options
from headgate.testing import drain


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

"""Promise: a job class says by its key and its limit how many of it run, and how many are taken."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from headgate import (
    App,
    Cap,
    ConcurrencyLimitReached,
    DeclarationError,
    InvalidKey,
    Job,
    Limit,
    Worker,
)
from headgate.jobs import JobFilter
from headgate.testing import drain
from tests.face.keyed import Keyed, groups

# --- key and limit -----------------------------------------------------------------------------


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

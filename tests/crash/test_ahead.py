"""kill -9 in the middle of a chain: what had not started comes back as if never claimed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate import App
from tests.crash import chained
from tests.waiting import wait_until
from tests.worker.site import Site

FATAL = 60
"""The tasks before it made it known as a short one, so there are some reserved behind it."""
LEASE = {"HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS": "3"}
"""Where a lease decides, it need not take half a minute to do so."""


@pytest.fixture(autouse=True)
def app(site: Site) -> Iterator[App]:
    """The app of the tasks, in the store of this test."""
    chained.app.__dict__.pop("config", None)
    yield chained.app
    chained.app.close()


def submit(kills: str) -> list[str]:
    calls = [chained.link.call(kills if n == FATAL else "") for n in range(120)]
    return [handle.id for handle in chained.app.submit_many(calls)]


def outcomes(job: str) -> list[tuple[int, str]]:
    return [(a.attempt, a.outcome) for a in chained.app.store.attempts(job)]


def test_a_killed_process_loses_only_what_had_started(site: Site) -> None:
    """The keeper saw which had, in memory that it shares with the dead process."""
    jobs = submit("process")
    tree = site.start("--concurrency", "10", target="tests.crash.chained:app")
    for job in jobs:
        assert site.until_done(job).state == "succeeded"
    assert tree.stop() == 0
    behind = set(site.events("reserved")[0]["jobs"])
    started = {event["job"] for event in site.events("ran", attempt=1)}
    ran_first = [e["job"] for e in site.events("ran") if e["t"] <= site.events("reserved")[0]["t"]]
    unstarted = behind - set(ran_first)
    assert len(unstarted) > 2, "there was something reserved behind the one that killed"
    for job in unstarted:
        assert outcomes(job) == [(1, "succeeded")], "given back unspent, then run once"
    assert outcomes(jobs[FATAL]) == [(1, "lost"), (2, "succeeded")]
    # Of those before it, what had ended untold is lost too: nobody else knows how it ended.
    assert started == set(jobs)
    for job in ran_first[:-1]:
        assert outcomes(job) in ([(1, "succeeded")], [(1, "lost"), (2, "succeeded")])


def test_with_its_keeper_gone_too_all_that_was_reserved_counts_as_started(site: Site) -> None:
    """In a file the next to come sees that it is gone; on a server its lease ends first."""
    jobs = submit("keeper")
    tree = site.start("--concurrency", "10", target="tests.crash.chained:app", **LEASE)
    behind = set(site.wait_for("reserved")[0]["jobs"])
    assert tree.wait() != 0
    assert wait_until(lambda: not site.processes())
    second = site.start("--concurrency", "10", target="tests.crash.chained:app", **LEASE)
    for job in jobs:
        assert site.until_done(job).state == "succeeded"
    assert second.stop() == 0
    assert len(behind) > 2
    for job in behind:
        assert outcomes(job) == [(1, "lost"), (2, "succeeded")]

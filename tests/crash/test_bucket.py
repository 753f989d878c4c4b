"""Deaths that nobody is left to see, on a bucket: the lease decides."""

from __future__ import annotations

import os
import signal

import pytest

from headgate import kernel
from tests.worker import sample
from tests.worker.site import Site

LEASE = 3
pytestmark = pytest.mark.parametrize("site", ["bucket-server"], indirect=True)
ENV = {"HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS": str(LEASE)}


def test_slots_of_a_whole_tree_are_free_when_its_lease_has_ended(site: Site) -> None:
    """Guard, keeper, worker and all they started are killed at once."""
    job = sample.nest.submit()
    tree = site.start("--name", "first", **ENV)
    site.wait_for("nested")
    other = site.start("--name", "other", **ENV)
    site.ready(2)
    (first,) = [w for w in site.app.store.workers() if w.name == "first"]
    assert first.lease_ends is not None
    pids = [process.pid for process in kernel.below(tree.guard.pid)]
    for pid in (tree.guard.pid, *pids):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    tree.wait()
    again = site.wait_for("again", seconds=LEASE + 15)[0]
    assert again["alive"] == [], "something of the dead worker lived when its slot was granted"
    record = site.until_done(job.id)
    assert (record.state, record.attempt) == ("succeeded", 2)
    first_attempt, second = sorted(site.app.store.attempts(job.id), key=lambda one: one.attempt)
    assert (first_attempt.outcome, second.outcome) == ("lost", "succeeded")
    assert second.started_at >= first.lease_ends, "not before the lease that we saw had ended"
    assert other.stop() == 0


@pytest.mark.skipif(os.environ.get("HEADGATE_PROOF") != "full", reason="a part of the proof")
def test_a_frozen_tree_is_ended_before_its_slots_are_given_away(site: Site) -> None:
    tree = site.start("--name", "frozen", **ENV)
    job = sample.nest.submit()
    site.wait_for("nested")
    other = site.start("--name", "other", **ENV)
    site.ready(2)
    os.kill(tree.keeper(), signal.SIGSTOP)
    again = site.wait_for("again", seconds=LEASE + 15)[0]
    assert again["alive"] == []
    assert site.until_done(job.id).state == "succeeded"
    assert tree.wait() != 0
    assert other.stop() == 0

"""Time-outs and cancels of the three kinds of code: over only when the code has ended."""

from __future__ import annotations

import pytest

from tests.waiting import PATIENCE, wait_until
from tests.worker import sample
from tests.worker.site import Site

KINDS = {
    "async": sample.wait_async,
    "thread": sample.wait_thread,
    "isolated": sample.wait_isolated,
}


# A time-out counts from the claim, so it covers the start of an isolated process too.
TIMEOUTS = {kind: 4.0 if kind == "isolated" else 0.3 for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_timeout(site: Site, kind: str) -> None:
    tree = site.start()
    site.ready()
    job = KINDS[kind].using(timeout=TIMEOUTS[kind]).submit()
    record = site.until_done(job.id)
    assert (record.state, record.reason) == ("failed", "timeout")
    assert record.error is not None
    assert record.error.type == "TimeoutError"
    assert site.events("stopped", kind=kind)
    assert tree.stop() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_timeout_counts_as_an_error(site: Site, kind: str) -> None:
    tree = site.start()
    site.ready()
    job = KINDS[kind].using(timeout=TIMEOUTS[kind], retries=1).submit()
    # On a busy machine a process of its own may take longer to start than it has time.
    record = site.until_done(job.id)
    assert (record.state, record.reason, record.attempt) == ("failed", "timeout", 2)
    assert tree.stop() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_cancel(site: Site, kind: str) -> None:
    tree = site.start()
    site.ready()
    job = KINDS[kind].submit()
    site.wait_for("running")
    job.cancel("not needed")
    record = site.until_done(job.id)
    assert record.state == "cancelled"
    assert "not needed" in record.reason
    assert site.events("stopped", kind=kind)
    assert tree.stop() == 0


@pytest.mark.parametrize("task", [sample.deaf_async, sample.deaf_thread], ids=["async", "thread"])
def test_code_that_does_not_stop_keeps_its_slot(site: Site, task) -> None:
    tree = site.start()
    site.ready()
    job = task.using(timeout=0.2).submit()
    site.wait_for("running")
    store = site.app.store
    wait_until(lambda: [s.overdue for s in store.group("gate")[1]] == [True], why="overdue")
    waiting = sample.probe.submit()
    assert sample.add.submit(1).result(timeout=PATIENCE) == 2
    assert waiting.status() == "ready"
    site.go()
    record = site.until_done(job.id)
    assert (record.state, record.reason) == ("failed", "timeout")
    waiting.result(timeout=PATIENCE)
    assert tree.stop() == 0


def test_an_isolated_task_that_ignores_sigterm_is_killed(site: Site) -> None:
    """And with it what it had started, before the slot is given on."""
    tree = site.start()
    site.ready()
    job = sample.nest.using(timeout=2).submit()
    probe = sample.probe.submit()
    site.wait_for("nested")
    record = site.until_done(job.id)
    assert (record.state, record.reason) == ("failed", "timeout")
    # The warden is ours: it goes when it has told the end.
    assert [who for who in probe.result(timeout=PATIENCE) if not who.startswith("warden")] == []
    assert tree.stop() == 0


def test_children_left_by_a_job_are_gone_before_its_end_is_told(site: Site) -> None:
    tree = site.start()
    site.ready()
    ward = sample.leaves_children.submit().result(timeout=PATIENCE)
    assert sample.alive() == []
    assert sample.whoami.submit().result(timeout=PATIENCE) != ward
    assert tree.stop() == 0


def test_a_thread_left_by_an_isolated_job_ends_with_its_process(site: Site) -> None:
    tree = site.start()
    site.ready()
    ward = sample.leaves_thread.submit().result(timeout=PATIENCE)
    assert not sample.started(ward)
    assert tree.stop() == 0


def test_isolated_processes_are_used_again(site: Site) -> None:
    tree = site.start("--concurrency", "1")
    site.ready()
    pids = {sample.whoami.submit().result(timeout=PATIENCE) for _ in range(5)}
    assert len(pids) == 1
    assert tree.stop() == 0

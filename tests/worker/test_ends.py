"""How code can end, and what becomes of the job then."""

from __future__ import annotations

import pytest

from headgate import JobCancelled, JobFailed
from tests.waiting import PATIENCE
from tests.worker import sample
from tests.worker.site import Site


def test_results_of_every_kind_of_code(site: Site) -> None:
    tree = site.start()
    handles = [
        task.submit(40, b=2)
        for task in (
            sample.add,
            sample.add_sync,
            sample.add_isolated,
            sample.add_isolated_async,
        )
    ]
    assert [handle.result(timeout=PATIENCE) for handle in handles] == [42] * 4
    assert tree.stop() == 0


def test_endings(site: Site) -> None:
    tree = site.start()
    failing = {
        "ValueError": sample.raises.submit("value"),
        "SystemExit": sample.raises.submit("exit"),
        "KeyboardInterrupt": sample.raises.submit("interrupt"),
        "StopIteration": sample.raises.submit("stop"),
    }
    asynchronous = {
        "SystemExit": sample.raises_async.submit("exit"),
        "KeyboardInterrupt": sample.raises_async.submit("interrupt"),
        "asyncio.exceptions.CancelledError": sample.raises_async.submit("cancelled"),
    }
    for kind, handle in [*failing.items(), *asynchronous.items()]:
        with pytest.raises(JobFailed) as failed:
            handle.result(timeout=PATIENCE)
        assert failed.value.error_type == kind
        assert "headgate/worker" not in failed.value.remote_traceback
        assert "sample.py" in failed.value.remote_traceback
    with pytest.raises(JobCancelled, match="the invoice is paid"):
        sample.raises.submit("cancel").result(timeout=PATIENCE)
    assert sample.asks_for_retry.submit().result(timeout=PATIENCE) == 2
    assert sample.snoozes.submit().result(timeout=PATIENCE) == 2
    assert sample.fails_twice.submit().result(timeout=PATIENCE) == 3
    with pytest.raises(JobFailed, match="result of task 'unstorable'"):
        sample.unstorable.submit().result(timeout=PATIENCE)
    (worker,) = tree.processes()
    assert sample.worker_pid.submit().result(timeout=PATIENCE) == worker
    assert len(site.events("worker-start")) == 1, "no ending of a job ended the worker"
    assert tree.stop() == 0


def test_a_background_task_of_a_job_cannot_end_the_worker(site: Site) -> None:
    tree = site.start()
    job = sample.raises_async.submit("background")
    site.until_done(job.id)
    assert sample.add.submit(1).result(timeout=PATIENCE) == 2
    assert len(site.events("worker-start")) == 1
    assert tree.stop() == 0


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("segfault", "the process ended with signal 11 (SIGSEGV)"),
        ("exit", "the process ended with exit code 7"),
    ],
)
def test_an_isolated_process_that_dies(site: Site, how: str, text: str) -> None:
    tree = site.start()
    job = sample.dies.submit(how)
    record = site.until_done(job.id)
    assert (record.state, record.reason) == ("failed", "crashed")
    assert record.error is not None
    assert record.error.message == text
    assert sample.add_isolated.submit(1).result(timeout=PATIENCE) == 2
    assert tree.stop() == 0


def test_arguments_that_do_not_fit_fail_the_job(site: Site) -> None:
    from headgate.jobs import NewJob

    bad = [
        NewJob("add", '{"a": "x"}'),
        NewJob("add", '{"nobody": 1}'),
        NewJob("add", "[1]"),
        NewJob("add_sync", "{}"),
        NewJob("add_isolated", '{"a": null}'),
    ]
    site.app.store.submit(bad)
    tree = site.start("--burst")
    assert tree.wait() == 0
    for job in bad:
        record = site.job(job.id)
        assert (record.state, record.reason, record.attempt) == ("failed", "arguments", 1)
        assert record.error is not None
        assert "add" in record.error.message


def test_followups_come_with_the_finish(site: Site) -> None:
    tree = site.start("--burst")
    first, second = sample.parent.submit(), sample.parent_isolated.submit()
    assert tree.wait() == 0
    assert first.result() == "submitted"
    child = second.result()
    assert site.job(child).result == "42"
    assert site.job(child).parent == second.id


def test_released_slots_serve_others_even_in_a_worker_of_one(site: Site) -> None:
    tree = site.start("--concurrency", "1")
    assert sample.waits_for_other.submit().result(timeout=PATIENCE) == 0
    assert sample.waits_isolated.submit().result(timeout=PATIENCE) == 0
    assert tree.stop() == 0


def test_progress_and_large_arguments(site: Site) -> None:
    tree = site.start()
    job = sample.add_isolated.submit(1)
    job.result(timeout=PATIENCE)
    assert sample.echo_size.submit("x" * 10_000_000).result(timeout=PATIENCE) == 10_000_000
    assert tree.stop() == 0


def test_hooks(site: Site) -> None:
    tree = site.start(TRAIL_HOOKS="1")
    for task in (sample.add, sample.add_sync, sample.add_isolated, sample.add_isolated_async):
        task.submit(1).result(timeout=PATIENCE)
        assert site.events("enter", task=task.name)
        assert site.events("leave", task=task.name)
    site.until_done(sample.raises.submit("value").id)
    assert [e["error"] for e in site.events("error")] == ["ValueError"]
    assert tree.stop() == 0
    assert len(site.events("worker-start")) == len(site.events("worker-stop")) == 1

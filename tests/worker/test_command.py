"""`headgate worker`: burst, processes, replacement, queues, and targets that cannot be used."""

from __future__ import annotations

import pytest

from headgate.errors import ConfigError
from headgate.worker.options import WorkerOptions
from headgate.worker.process import _new_loop
from tests.waiting import PATIENCE, wait_until
from tests.worker import sample
from tests.worker.site import Site


def test_burst_ends_when_nothing_is_left_and_lists_what_it_leaves(site: Site) -> None:
    jobs = [sample.add.submit(n) for n in range(50)]
    retried = sample.fails_twice.submit()
    site.app.submit("nobody-knows", {"n": 1})
    later = sample.add.using(delay=600).submit(1)
    tree = site.start("--burst", "--processes", "2")
    assert tree.wait() == 0
    assert [job.result(timeout=0) for job in jobs] == [n + 1 for n in range(50)]
    assert retried.result(timeout=0) == 3
    assert later.status() == "scheduled"
    assert "left: 2 jobs" in tree.output()
    assert "nobody-knows" in tree.output()
    assert "due later" in tree.output()


def test_burst_waits_for_jobs_that_run_elsewhere(site: Site) -> None:
    other = site.start("--concurrency", "1")
    held = sample.wait_thread.submit()
    site.wait_for("running")
    burst = site.start("--burst")
    site.ready(2)
    assert burst.guard.poll() is None
    site.go()
    assert burst.wait() == 0
    assert held.status() == "succeeded"
    assert other.stop() == 0


def test_burst_on_an_empty_store(site: Site) -> None:
    assert site.start("--burst").wait() == 0


def test_processes_are_replaced_after_so_many_jobs(site: Site) -> None:
    tree = site.start("--max-jobs-per-process", "5", "--concurrency", "3", "--burst")
    pids = [sample.worker_pid.submit() for _ in range(20)]
    assert tree.wait() == 0
    counts: dict[int, int] = {}
    for job in pids:
        pid = job.result(timeout=0)
        counts[pid] = counts.get(pid, 0) + 1
    assert sorted(counts.values()) == [5, 5, 5, 5]
    assert all(site.job(job.id).attempt == 1 for job in pids)


def test_processes_share_the_work_under_names_of_their_own(site: Site) -> None:
    tree = site.start("--processes", "3", "--name", "web", "--concurrency", "7")
    site.ready(3)
    workers = site.app.store.workers()
    assert sorted(w.name for w in workers) == ["web-1", "web-2", "web-3"]
    assert sorted(w.pid for w in workers) == tree.processes(3)
    assert {w.concurrency for w in workers} == {7}
    assert tree.stop() == 0


def test_says_that_it_is_ready(site: Site) -> None:
    tree = site.start("--name", "web-1", "--concurrency", "7", "--queues", "mail,slow")
    wait_until(lambda: "web-1 is ready: " in tree.output())
    assert f"jobs at once 7, queues mail, slow, {site.url}" in tree.output()
    assert tree.stop() == 0


def test_only_its_queues(site: Site) -> None:
    slow = sample.add.using(queue="slow").submit(1)
    fast = sample.add.using(queue="fast").submit(1)
    assert site.start("--burst", "--queues", "fast, other").wait() == 0
    assert fast.status() == "succeeded"
    assert slow.status() == "ready"


def test_queue_concurrency_of_the_configuration(site: Site) -> None:
    config = site.folder / "headgate.toml"
    config.write_text("[queues.narrow]\nconcurrency = 1\n[queues.off]\npaused = true\n")
    tree = site.start("--concurrency", "10", HEADGATE_CONFIG=str(config))
    site.ready()
    narrow = [sample.deaf_free.using(queue="narrow").submit() for _ in range(3)]
    off = sample.add.using(queue="off").submit(1)
    wide = sample.add.submit(1)
    site.wait_for("running")
    assert wide.result(timeout=PATIENCE) == 2
    assert sorted(job.status() for job in narrow) == ["ready", "ready", "running"]
    assert off.status() == "ready"
    site.go()
    for job in narrow:
        job.result(timeout=PATIENCE)
    assert tree.stop() == 0


def test_a_burst_leaves_and_lists_what_the_configuration_closes(site: Site) -> None:
    config = site.folder / "headgate.toml"
    config.write_text("[queues.off]\npaused = true\n[queues.none]\nconcurrency = 0\n")
    left = [sample.add.using(queue=queue).submit(1) for queue in ("off", "none")]
    other = sample.add.using(queue="never heard of").submit(1)
    tree = site.start("--burst", HEADGATE_CONFIG=str(config))
    assert tree.wait() == 0
    assert other.status() == "succeeded"
    assert [job.status() for job in left] == ["ready", "ready"]
    for queue in ("off", "none"):
        assert f"its queue '{queue}' is paused in the configuration" in tree.output()


def test_jobs_of_unknown_routing_are_stamped_by_the_worker(site: Site) -> None:
    from headgate import App

    stranger = App(site.url)
    job = stranger.submit("add", {"a": 1})
    assert site.start("--burst").wait() == 0
    assert stranger.get_job(job.id).result == "2"
    stranger.close()


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("no_such_module:app", "no module 'no_such_module'"),
        ("tests.worker.sample:nothing", "has no 'nothing'"),
        ("tests.worker.sample:add", "must be a headgate App or Worker"),
        ("tests.worker.sample", "not of the form module:app"),
        ("tests.worker.broken:app", "ZeroDivisionError"),
    ],
)
def test_targets_that_cannot_be_used(site: Site, target: str, text: str) -> None:
    tree = site.start(target=target)
    assert tree.wait() == 2
    assert text in tree.output()
    assert "Traceback" not in tree.output()


def test_a_store_that_cannot_be_opened(site: Site) -> None:
    (site.folder / "file").touch()
    tree = site.start(HEADGATE_URL=f"sqlite:///{site.folder}/file/jobs.db")
    assert tree.wait() == 4
    assert "Traceback" not in tree.output()


def test_a_worker_object_as_target(site: Site) -> None:
    tree = site.start(target="tests.worker.sample:worker")
    site.ready()
    (worker,) = site.app.store.workers()
    assert (worker.name, worker.concurrency) == ("sample-worker", 3)
    assert tree.stop() == 0


def test_a_worker_that_dies_at_once_is_not_restarted_in_a_frenzy(site: Site) -> None:
    tree = site.start()
    site.ready()
    for _ in range(3):
        job = sample.kills_worker.submit()
        wait_until(lambda job=job: site.job(job.id).done, why="lost too often")
    assert tree.output().count("ended with signal 9") <= 20
    assert sample.add.submit(1).result(timeout=PATIENCE) == 2
    assert tree.stop() == 0


@pytest.mark.parametrize(
    "options",
    [
        {"processes": 0},
        {"concurrency": 0},
        {"concurrency": True},
        {"max_jobs_per_process": -1},
        {"shutdown_timeout": -1},
        {"shutdown_timeout": float("nan")},
        {"stall_timeout": "x"},
        {"loop": "trio"},
        {"queues": ()},
        {"queues": ("a", " ")},
    ],
)
def test_options_that_cannot_be_used(options: dict) -> None:
    with pytest.raises(ConfigError, match="--"):
        WorkerOptions("m:a", **options).checked()


def test_uvloop_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.worker.options.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[uvloop\]'"):
        WorkerOptions("m:a", loop="uvloop").checked()


def test_asyncio_where_uvloop_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.worker.process.find_spec", lambda _: None)
    loop = _new_loop("auto")
    assert type(loop).__module__ == "asyncio.unix_events"
    loop.close()


@pytest.mark.parametrize(
    ("loop", "module"),
    [("asyncio", "asyncio.unix_events"), ("uvloop", "uvloop"), ("auto", "uvloop")],
)
def test_the_event_loop_that_was_chosen(site: Site, loop: str, module: str) -> None:
    """It runs every kind of task, and survives what a job throws through it."""
    tree = site.start("--loop", loop)
    site.ready()
    jobs = [sample.add.submit(1), sample.add_sync.submit(1), sample.add_isolated.submit(1)]
    assert sample.loop_module.submit(exits=True).result(timeout=PATIENCE) == module
    assert [job.result(timeout=PATIENCE) for job in jobs] == [2, 2, 2]
    assert sample.loop_module.submit().result(timeout=PATIENCE) == module
    assert tree.stop() == 0

"""Code that means no good, or does not know better: it hurts its own job and nobody else's."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from headgate import App, Cancel, Context, Retry, Snooze, Worker
from headgate.jobs import JobFilter
from tests.waiting import wait_until
from tests.worker.site import REPO


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    yield app
    assert app.store.workers() == []
    app.close()


def run(app: App) -> None:
    Worker(app, concurrency=20, burst=True).run()


REASONS = {
    "an exception": (ValueError("the invoice is paid"), "the invoice is paid"),
    "a lone surrogate": ("paid \ud800", "paid \\ud800"),
    "NUL": ("paid\0", "paid\\x00"),
    "very long": ("x" * 100_000, "x" * 4000),
}


@pytest.mark.parametrize("kind", REASONS)
def test_any_reason_is_a_reason(app: App, kind: str) -> None:
    """One that the store refuses would be sent again for ever, with all other jobs' ends."""
    given, kept = REASONS[kind]

    @app.task
    def cancels() -> None:
        raise Cancel(given)  # type: ignore[arg-type]

    @app.task(retries=1)
    def retries(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise Retry(delay=0, reason=given)  # type: ignore[arg-type]
        return ctx.attempt

    @app.task
    def snoozes(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise Snooze(0, reason=given)  # type: ignore[arg-type]
        return ctx.attempt

    handles = [cancels.submit(), retries.submit(), snoozes.submit()]
    run(app)
    cancelled, *others = [app.get_job(handle.id) for handle in handles]
    assert (cancelled.state, cancelled.reason) == ("cancelled", kept)
    assert [job.result for job in others] == ["2", "2"]


def test_delays_that_no_calendar_knows(app: App) -> None:
    delays = {"timedelta": timedelta(0), "text": "soon", "huge": 1e300, "endless": float("inf")}

    @app.task
    def snoozes(ctx: Context, kind: str) -> int:
        if ctx.attempt == 1:
            raise Snooze(delays[kind])  # type: ignore[arg-type]
        return ctx.attempt

    handles = {kind: snoozes.submit(kind) for kind in delays}
    huge = handles.pop("huge")
    worker = Worker(app, concurrency=20)
    wait = lambda: wait_until(lambda: app.get_job(huge.id).reason == "snoozed")  # noqa: E731
    asyncio.run(_run_until(worker, wait, [h.id for h in handles.values()], app))
    due = app.get_job(huge.id).run_at
    assert due is not None
    assert due < app.store.now() + 101 * 365 * 86400, "a date that can be shown"
    app.store.cancel(huge.id)


async def _run_until(worker: Worker, wait: object, ids: list[str], app: App) -> None:
    running = asyncio.create_task(worker.arun())
    await asyncio.to_thread(wait)  # type: ignore[arg-type]
    done = lambda: all(app.get_job(id).state == "succeeded" for id in ids)  # noqa: E731
    await asyncio.to_thread(wait_until, done)
    worker.stop()
    await running


def test_progress_that_cannot_be_stored_holds_up_nobody(app: App) -> None:
    @app.task
    async def says(ctx: Context) -> str:
        ctx.progress(0.5, "half \ud800 way\0")
        while app.get_job(ctx.job_id).progress is None:
            await asyncio.sleep(0.01)
        return app.get_job(ctx.job_id).progress_text

    handle = says.submit()
    run(app)
    assert handle.result(timeout=0) == "half \\ud800 way\\x00"


def test_a_failing_on_error_hook_does_not_keep_the_job_for_ever(app: App) -> None:
    @app.on_error
    async def hook(ctx: Context, error: BaseException) -> None:
        raise SystemExit if "exit" in str(error) else RuntimeError("the hook itself")

    @app.task(max_concurrent=1)
    def fails(text: str) -> None:
        raise ValueError(text)

    @app.task(max_concurrent=1)
    async def fails_async(text: str) -> None:
        raise ValueError(text)

    handles = [task.submit(text) for task in (fails, fails_async) for text in ("a", "exit")]
    run(app)
    errors = [app.get_job(handle.id).error for handle in handles]
    assert [error and error.type for error in errors] == ["ValueError"] * 4


def test_a_time_out_during_the_on_error_hook_is_the_end(app: App) -> None:
    """The code was entered: to give the job back as never begun would run it for ever."""

    @app.on_error
    async def hook(ctx: Context, error: BaseException) -> None:
        await asyncio.sleep(30)

    ran: list[int] = []

    @app.task(timeout=0.1)
    async def fails() -> None:
        ran.append(1)
        raise ValueError("first")

    handle = fails.submit()
    run(app)
    job = app.get_job(handle.id)
    assert (job.state, job.reason, len(ran)) == ("failed", "timeout", 1)


def test_a_job_may_open_and_close_the_app(app: App) -> None:
    @app.task
    def careful() -> str:
        with app:
            return other.submit().id

    @app.task
    def other() -> int:
        return 1

    handle = careful.submit()
    run(app)
    assert app.get_job(handle.result(timeout=0)).state == "succeeded"


# --- real commands --------------------------------------------------------------------------


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEADGATE_")}
    return subprocess.run(
        [sys.executable, "-m", "headgate", *arguments],
        cwd=folder,
        env={**env, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize(
    "code",
    ["import os; os._exit(3)", "import os; os.kill(os.getpid(), 11)", "raise KeyboardInterrupt"],
)
def test_a_module_that_kills_its_process_at_import_is_told_and_given_up(
    tmp_path: Path, code: str
) -> None:
    (tmp_path / "shop.py").write_text(code)
    done = command(tmp_path, "worker", "shop:app")
    assert done.returncode == 1
    assert "before it was ready, 3 times" in done.stderr


WANDERER = """
import os
from headgate import App, Context
{at_import}
app = App("sqlite:///jobs.db")

@app.task
def wander() -> None:
    os.chdir("/")

@app.task
def child() -> str:
    return os.getcwd()

@app.task(isolate="process")
def parent(ctx: Context) -> str:
    return child.submit().id
"""


def test_a_job_that_changes_the_directory_loses_nobodys_jobs(tmp_path: Path) -> None:
    """An isolated task of the same worker submits to the same store as before."""
    (tmp_path / "shop.py").write_text(WANDERER.format(at_import=""))
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    command(tmp_path, "submit", "--app", "shop:app", "wander")
    command(tmp_path, "submit", "--app", "shop:app", "parent")
    done = command(tmp_path, "worker", "shop:app", "--burst", "--concurrency", "1")
    assert done.returncode == 0, done.stderr
    with app:
        states = [(job.task, job.state) for job in app.store.find(JobFilter(), 20)]
    assert ("child", "succeeded") in states


def test_a_module_may_change_the_directory_at_import(tmp_path: Path) -> None:
    """Keeper, worker and submitter mean the same file, wherever each of them stands."""
    (tmp_path / "data").mkdir()
    (tmp_path / "shop.py").write_text(WANDERER.format(at_import="os.chdir('data')"))
    submitted = command(tmp_path, "submit", "--app", "shop:app", "child")
    done = command(tmp_path, "worker", "shop:app", "--burst")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "jobs.db").exists()
    with App(f"sqlite:///{tmp_path}/data/jobs.db") as app:
        assert app.get_job(submitted.stdout.strip()).state == "succeeded"


def test_isolated_jobs_wait_when_no_process_can_be_started(tmp_path: Path) -> None:
    """Out of descriptors: it is the worker's trouble, and no job fails for it."""
    (tmp_path / "shop.py").write_text(
        "import time\nfrom headgate import App\napp = App('sqlite:///jobs.db')\n"
        "@app.task(isolate='process')\ndef work() -> None:\n    time.sleep(0.3)\n"
    )
    with App(f"sqlite:///{tmp_path}/jobs.db") as app:
        jobs = [app.submit("work") for _ in range(40)]
        few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (55, 55));"
        done = subprocess.run(
            [
                *(sys.executable, "-c", f"{few} from headgate.cli import main; main()"),
                *("worker", "shop:app", "--burst", "--concurrency", "40"),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPO)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert "waits for a process" in done.stderr
        assert {app.get_job(job.id).state for job in jobs} == {"succeeded"}

"""`Worker(app, …)` in a process of one's own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from headgate import App, ConfigError, Context, HeadgateError, Worker
from tests.waiting import PATIENCE


@pytest.fixture
def app(tmp_path: Path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    yield app
    assert app.store.workers() == []
    assert list(tmp_path.glob("jobs.db.run/*.lock")) == []
    app.close()


def test_both_forms_of_declaring(app: App) -> None:
    worker = Worker(app, "w", concurrency=5, burst=True)
    seen: list[object] = []

    @worker.task("send_email", max_concurrent=50, payload=True)
    async def send_email(data, ctx: Context) -> str:
        seen.append(data)
        return ctx.task

    def call_api_handler(url: str) -> str:
        return url.upper()

    call_api = worker.task("call_api", max_concurrent=10)(call_api_handler)
    first = app.submit("send_email", {"to": "a@b"})
    second = call_api.submit("x")
    worker.run()
    assert seen == [{"to": "a@b"}]
    assert first.result(timeout=0) == "send_email"
    assert second.result(timeout=0) == "X"


def test_stop_from_another_thread_and_run_again(app: App) -> None:
    worker = Worker(app)
    started = threading.Event()
    app.on_worker_start(started.set)

    @app.task
    def one() -> int:
        return 1

    for _ in range(2):
        started.clear()
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert started.wait(PATIENCE)
        assert one.submit().result(timeout=PATIENCE) == 1
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_stop_from_a_job_lets_it_finish(app: App) -> None:
    worker = Worker(app)

    @app.task
    async def last() -> str:
        worker.stop()
        await asyncio.sleep(0.05)
        return "done"

    job = last.submit()
    worker.run()
    assert job.result(timeout=0) == "done"


def test_in_an_event_loop_beside_others(app: App) -> None:
    @app.task
    async def add(a: int) -> int:
        return a + 1

    async def main() -> int:
        worker = Worker(app, concurrency=2)
        running = asyncio.create_task(worker.arun())
        handle = await add.asubmit(1)
        result = await handle.aresult(timeout=PATIENCE)
        with pytest.raises(HeadgateError, match="running already"):
            await worker.arun()
        worker.stop()
        await running
        return result

    assert asyncio.run(main()) == 2


def test_in_memory() -> None:
    app = App("sqlite:///:memory:")

    @app.task
    def add(a: int) -> int:
        return a + 1

    handles = [add.submit(n) for n in range(20)]
    Worker(app, burst=True).run()
    assert [handle.result(timeout=0) for handle in handles] == list(range(1, 21))


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_wrong_concurrency(app: App, bad: object) -> None:
    with pytest.raises(ConfigError, match="concurrency"):
        Worker(app, concurrency=bad)  # type: ignore[arg-type]


def test_a_hook_that_fails_ends_the_worker(app: App) -> None:
    @app.on_worker_start
    def broken() -> None:
        raise ValueError("no connection")

    with pytest.raises(HeadgateError, match="no connection"):
        Worker(app, burst=True).run()


def test_a_script_with_isolated_tasks(tmp_path: Path) -> None:
    """Its functions live in __main__; the isolated process finds them all the same."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            from __future__ import annotations
            import os
            from dataclasses import dataclass
            from headgate import App, Worker

            app = App("sqlite:///{tmp_path}/jobs.db")
            worker = Worker(app, burst=True)

            @dataclass
            class Point:
                x: int

            @app.task(isolate="process")
            def move(p: Point) -> Point:
                return Point(p.x + 1)

            def plain(n: int) -> int:
                return os.getpid()

            other = worker.task("plain", isolate="process")(plain)

            if __name__ == "__main__":
                handle, second = move.submit(Point(1)), other.submit(1)
                worker.run()
                print(handle.result(timeout=0).x, second.result(timeout=0) != os.getpid())
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert done.stdout.split() == ["2", "True"], done.stderr

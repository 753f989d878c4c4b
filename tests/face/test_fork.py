"""Promise: an app survives a fork, a close and several event loops."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from headgate import App, ConfigError
from headgate.jobs import JobFilter
from headgate.testing import drain, memory_app


def in_child(work: object) -> int:
    """Run `work()` in a forked child and give its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            work()  # type: ignore[operator]
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_parent_and_child_both_go_on(file_app: App) -> None:
    @file_app.task
    def double(n: int) -> int:
        return 2 * n

    double.submit(1)
    with pytest.raises(TimeoutError):
        double.submit(2).result(timeout=0.01)  # a waiting thread is there at the fork

    def child() -> None:
        for n in range(20):
            double.submit(n)
        handle = double.submit(50)
        threading.Thread(target=drain, args=(file_app,)).start()
        assert handle.result(timeout=30) == 100

    pid_codes = [in_child(child)]
    for n in range(20):
        double.submit(n)
    assert pid_codes == [0]
    drain(file_app)
    assert file_app.store.count(JobFilter(states=frozenset(("succeeded",)))) == 43
    assert file_app.store.doctor() == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_the_lock_is_held_does_not_hang(file_app: App) -> None:
    with file_app._lock:
        assert in_child(lambda: file_app.submit("x", {})) == 0
    assert file_app.store.count(JobFilter()) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_store_in_memory_does_not_pretend_to_be_shared() -> None:
    def child() -> None:
        with pytest.raises(ConfigError, match="lives in the process that opened it"):
            app.submit("x", {})

    with memory_app() as app:
        app.submit("x", {})
        assert in_child(child) == 0
        assert app.store.count(JobFilter()) == 1


def test_close_and_go_on(url: str, tmp_path: Path) -> None:
    app = App(url)
    with app:
        first = app.submit("x", {})
    assert first.status() == "ready", "a closed app opens its store again when asked"
    app.close()
    app.close()

    async def main() -> None:
        async with app:
            assert await first.astatus() == "ready"

    asyncio.run(main())
    asyncio.run(main())


def test_a_result_waited_for_survives_a_close(file_app: App) -> None:
    @file_app.task
    def double(n: int) -> int:
        return 2 * n

    handle = double.submit(2)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(handle.result(timeout=30)))
    thread.start()
    file_app.close()
    drain(file_app)
    thread.join()
    assert got == [4]


def test_threads_share_an_app(file_app: App) -> None:
    @file_app.task
    def take(n: int) -> None: ...

    errors: list[BaseException] = []

    def work() -> None:
        try:
            for n in range(20):
                take.submit(n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert file_app.store.count(JobFilter()) == 160

"""Promise: an app survives a fork, a close and several event loops."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headgate import App, ConfigError
from headgate.jobs import JobFilter
from headgate.testing import drain, memory_app
from tests.waiting import PATIENCE


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
    with open(os.pidfd_open(pid)) as child:  # noqa: PTH123 - a descriptor, not a path
        ended, _, _ = select.select([child], [], [], PATIENCE)
    if not ended:  # it hangs: that is a failure, not a reason to hang too
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


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
        assert handle.result(timeout=PATIENCE) == 100

    pid_codes = [in_child(child)]
    for n in range(20):
        double.submit(n)
    assert pid_codes == [0]
    drain(file_app)
    assert file_app.store.count(JobFilter(states=frozenset(("succeeded",)))) == 43
    assert file_app.store.doctor() == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_the_lock_is_held_does_not_hang(file_app: App) -> None:
    file_app.close()  # so that the child has to take the lock to open the store
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


CLOSE_UNDER_USE = """
import sys, threading, time
from headgate import App, StoreError
from headgate.config import Config
app = App(sys.argv[1], config=Config(url=sys.argv[1]))
handle = app.submit("x", {"pad": "y" * 2000})
end = time.monotonic() + 2
wrong = []
looked, done = threading.Event(), threading.Event()
def look():
    while not done.is_set():
        looked.set()
        try:
            handle.status()
        except StoreError:
            pass
        except BaseException as error:
            wrong.append(repr(error))
            return
threads = [threading.Thread(target=look) for _ in range(4)]
for thread in threads: thread.start()
while time.monotonic() < end and not wrong:
    app.close()
    looked.clear()
    looked.wait(5)
done.set()
for thread in threads: thread.join()
sys.exit(str(wrong[:3]) if wrong else 0)
"""


def test_a_close_under_use_is_an_error_never_a_crash(url: str) -> None:
    """In a process of its own: what fails here is a segmentation fault."""
    done = subprocess.run(
        [sys.executable, "-c", CLOSE_UNDER_USE, url], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]


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

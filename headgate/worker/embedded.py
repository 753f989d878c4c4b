"""A worker in a process of one's own: for scripts, tests, and programs that embed it.

`headgate worker` does more: it restarts what dies, stops what does not stop, and cleans up
after a crash. Here the process is the worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headgate.errors import ConfigError, HeadgateError
from headgate.stores import settled
from headgate.stores.protocol import NewWorker, Registration
from headgate.threads import in_thread
from headgate.worker.lease import Lease, Renewer, next_change, stage
from headgate.worker.options import (
    DEFAULT_CONCURRENCY,
    DEFAULT_GRACE,
    DEFAULT_SHUTDOWN_TIMEOUT,
    at_least_one,
)

if TYPE_CHECKING:
    from headgate.app import App
    from headgate.worker.loop import End, WorkLoop


class Worker:
    """Runs the jobs of an app in this process.

    >>> worker = Worker(app, "worker-1", concurrency=50)                # doctest: +SKIP
    >>> @worker.task("send_email", max_concurrent=50, payload=True)     # doctest: +SKIP
    ... async def send_email(data, ctx): ...
    >>> worker.run()                                                    # doctest: +SKIP

    `headgate worker module:worker` takes its name, concurrency and queues as defaults.
    """

    def __init__(
        self,
        app: App,
        name: str | None = None,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        queues: Sequence[str] | None = None,
        burst: bool = False,
        shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT,
        grace: float = DEFAULT_GRACE,
        scheduler: bool = True,
    ) -> None:
        at_least_one("concurrency", concurrency)
        if isinstance(queues, str):
            raise ConfigError(f"queues must be a list of names, got the text {queues!r}")
        self.app = app
        self.name = name
        self.concurrency = concurrency
        self.queues = None if queues is None else tuple(queues)
        self.burst = burst
        self.shutdown_timeout = shutdown_timeout
        self.grace = grace
        self.scheduler = scheduler
        """Does it submit what is scheduled, like every worker?"""
        self._lock = threading.Lock()
        self._running: WorkLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked = False
        # The very method of the app, so that type checkers know it by all its forms.
        self.task = app.task

    def __repr__(self) -> str:
        return f"<Worker {self.name or 'without a name'} of {self.app!r}>"

    def run(self) -> None:
        """Work until `stop()` (or, with `burst`, until nothing is left); SIGINT and SIGTERM
        stop it too when this is the main thread."""
        asyncio.run(self._run(signals=threading.current_thread() is threading.main_thread()))

    async def arun(self) -> None:
        """`run` in the current event loop; signals are left to the program."""
        await self._run(signals=False)

    def stop(self) -> None:
        """Stop gracefully, from any thread or from a job; once more to stop at once."""
        with self._lock:
            again, self._stop_asked = self._stop_asked, True
            running, loop = self._running, self._loop
        if running is not None and loop is not None:
            timeout = 0.0 if again else self.shutdown_timeout
            grace = 0.0 if again else None
            loop.call_soon_threadsafe(running.stop, timeout, grace)

    async def _run(self, *, signals: bool) -> End:
        from headgate.worker.source import inside_copy

        if inside_copy():
            raise HeadgateError(
                "this script is being read by a process that runs an isolated task: put"
                " worker.run() under if __name__ == '__main__':"
            )
        with self._lock:
            if self._loop is not None:
                raise HeadgateError(f"{self!r} is running already")
            self._loop = asyncio.get_running_loop()
        try:
            with ExitStack() as stack:
                if signals:
                    stack.callback(self._watch_signals())
                return await self._run_once()
        finally:
            with self._lock:
                self._running = self._loop = None
                self._stop_asked = False

    async def _run_once(self) -> End:
        """Under one id, to its end."""
        from headgate.worker.loop import Plan, WorkLoop

        worker = self._new_worker()
        sent = self.app.clock.boot()
        registered = await in_thread(self.app.store.register, worker)
        plan = Plan(
            worker=worker.id,
            name=worker.name,
            concurrency=self.concurrency,
            queues=self.queues,
            burst=self.burst,
            grace=self.grace,
            fds=registered.fds,
            url=settled(self.app.url),
            scheduler=self.scheduler,
        )
        work = WorkLoop(self.app, plan)
        lease = Lease(worker.id, worker.lease, sent)
        watching = asyncio.create_task(self._keep_lease(lease, work))
        try:
            with self._lock:
                self._running = work
                if self._stop_asked:
                    work.stop(self.shutdown_timeout)
            return await self._work(work, registered)
        finally:
            watching.cancel()

    async def _work(self, work: WorkLoop, registered: Registration) -> End:
        try:
            end = await work.run()
        finally:
            # Code that does not stop keeps its slots: the files stay open until this process
            # ends, and the store takes the slots back then.
            if not work.running:
                await in_thread(self.app.store.unregister, registered.id)
                for fd in registered.fds:
                    os.close(fd)
        return end

    def _new_worker(self) -> NewWorker:
        host = socket.gethostname()
        return NewWorker(
            id=uuid.uuid4().hex,
            name=self.name or f"{host}-{os.getpid()}",
            host=host,
            pid=os.getpid(),
            queues=self.queues or (),
            tasks=tuple(sorted(self.app.tasks)),
            concurrency=self.concurrency,
            lease=self.app.config.default_lease,
        )

    def _watch_signals(self):
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.stop)

        def leave() -> None:
            for number in numbers:
                loop.remove_signal_handler(number)

        return leave

    async def _keep_lease(self, lease: Lease, work: WorkLoop) -> None:
        """Renew, and stop in time when that fails. Threads cannot be killed from within: that
        is what the keeper of `headgate worker` is for."""
        if not self.app.store.capabilities.leases:
            return
        renewer = Renewer(self.app.store, self.app.clock)
        renewer.start()
        renewer.add(lease)
        try:
            while True:
                now = self.app.clock.boot()
                late = lease.dead or stage(now, lease.sent, lease.seconds) in ("stop", "kill")
                work.lease(late)
                await asyncio.sleep(max(0.05, next_change(now, lease.sent, lease.seconds)))
        finally:
            # Code that does not stop keeps its slots: its lease is renewed until this process ends.
            if lease.dead or not work.running:
                renewer.stop()

"""The main program of a worker process under the keeper.

Started as `python -m headgate.worker.process CHANNEL BOARD PLACE PARENT`.
"""

from __future__ import annotations

import os
import sys

from headgate import kernel

if __name__ == "__main__":
    # Before anything else, user code above all: from here on we do not outlive the keeper.
    kernel.die_with_parent(int(sys.argv[4]))

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Coroutine, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from headgate.clock import Clock
from headgate.errors import HeadgateError, StoreError
from headgate.stores import settled, shown
from headgate.worker.board import Board
from headgate.worker.channel import Channel
from headgate.worker.logs import JSON_LOGS, set_up_logging
from headgate.worker.loop import End, Plan, WorkLoop
from headgate.worker.options import DEFAULT_CONCURRENCY, EventLoop, WorkerOptions
from headgate.worker.otel import export
from headgate.worker.pulse import Pulse
from headgate.worker.queues import Queues
from headgate.worker.target import Target, find_target

if TYPE_CHECKING:
    from headgate.telemetry.serving import Teller

log = logging.getLogger("headgate.worker")

EXIT_USAGE = 2
EXIT_STORE = 4


class Process:
    """One worker process: introduces itself, waits for its files, works, says why it ends."""

    def __init__(self, channel: Channel, board: Board, place: int, options: WorkerOptions) -> None:
        self._channel = channel
        self._board = board
        self._place = place
        self._options = options
        self._work: WorkLoop | None = None
        self._teller: Teller | None = None

    def run(self) -> int:
        # The store's thread computes while it has the write lock. With the interpreter's usual
        # 5 ms it would wait for busy job threads, and all other processes with it.
        sys.setswitchinterval(0.0005)
        try:
            target = find_target(self._options.target)
            if self._options.otel:
                export(target.app)
            if self._options.metrics is not None:
                self._count(target)
            plan = self._introduce(target)
            # All that was imported stays: to search it for garbage, time and again, would keep
            # every job waiting for some 20 ms.
            gc.collect()
            gc.freeze()
            end = self._turn(self._main(target, plan))
        except StoreError as error:
            return self._refuse(str(error), EXIT_STORE)
        except HeadgateError as error:
            return self._refuse(str(error), EXIT_USAGE)
        if self._teller is not None:
            self._teller.tell()
        self._channel.send({"bye": end})
        if end in ("stuck", "dead"):
            # Threads that do not end would keep the process; its slots are told lost anyway.
            logging.shutdown()
            os._exit(1)
        target.app.close()
        return 0

    def _count(self, target: Target) -> None:
        from headgate.telemetry.counts import Counts
        from headgate.telemetry.serving import Teller

        counts = Counts()
        meter = target.app.metered()
        meter.keyed |= frozenset(self._options.key_metrics)
        meter.sinks.append(counts)
        meter.know(target.app.tasks)
        self._teller = Teller(counts, self._channel)

    def _refuse(self, why: str, code: int) -> int:
        self._channel.send({"refused": why, "code": code})
        return 1

    def _introduce(self, target: Target) -> Plan:
        """Tell the keeper who we are, and wait until our files are held where they must be."""
        options, app, worker = self._options, target.app, target.worker
        if options.url is not None:
            app._url = options.url
        name = options.name or (worker.name if worker is not None else None)
        queues = options.queues or (worker.queues if worker is not None else None)
        concurrency = options.concurrency or (
            worker.concurrency if worker is not None else DEFAULT_CONCURRENCY
        )
        full_name = name or f"{socket.gethostname()}-{os.getppid()}"
        if options.processes > 1:
            full_name = f"{full_name}-{self._place + 1}"
        url = app._url = settled(app.url)
        app.publication(full_name)  # limits that exist nowhere are told before anything starts
        self._channel.send(
            {
                "hello": {
                    "url": url,
                    "name": full_name,
                    "queues": list(queues or ()),
                    "serves": options.groups,
                    "closed": sorted(Queues(queues, app.config.queues).closed),
                    "tasks": sorted(app.tasks),
                    "concurrency": concurrency,
                    "lease": app.config.default_lease,
                }
            }
        )
        worker_id, fds = self._wait_for_start()
        return Plan(
            worker=worker_id,
            name=full_name,
            concurrency=concurrency,
            queues=queues,
            groups=options.groups,
            burst=options.burst,
            max_jobs=options.max_jobs_per_process,
            grace=options.grace,
            fds=fds,
            module=target.module,
            url=url,
            scheduler=options.scheduler and (worker is None or worker.scheduler),
        )

    def _wait_for_start(self) -> tuple[str, list[int]]:
        while True:
            message, fds = self._channel.next()
            if "start" in message:
                return message["start"], fds
            if "stop" in message:
                sys.exit(0)

    async def _main(self, target: Target, plan: Plan) -> End:
        loop = asyncio.get_running_loop()
        pulse = Pulse(self._board, self._place, Clock())
        self._work = WorkLoop(target.app, plan, pulse)
        loop.add_reader(self._channel.fileno(), self._hear)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._work.stop, self._options.shutdown_timeout)
        if self._channel.pending:
            self._hear()
        telling = None if self._teller is None else loop.create_task(self._teller.run())
        try:
            return await self._work.run(ready=lambda: self._ready(target, plan))
        finally:
            if telling is not None:
                telling.cancel()

    def _ready(self, target: Target, plan: Plan) -> None:
        self._channel.send({"ready": True})
        log.info(
            "%s is ready: tasks %d, jobs at once %d, %s, %s",
            *(plan.name, len(target.app.tasks), plan.concurrency),
            f"queues {', '.join(plan.queues)}" if plan.queues else "all queues",
            shown(target.app.url),
        )

    def _hear(self) -> None:
        assert self._work is not None
        messages = self._channel.receive()
        if messages is None:
            os._exit(1)  # the keeper is gone; its death would have killed us a moment later
        for message, _ in messages:
            if "stop" in message:
                self._work.stop(message["stop"], message["grace"])
            elif "order" in message:
                self._work.order(message["order"])
            elif "lease" in message:
                self._work.lease(message["lease"] == "stop")

    def _turn(self, main: Coroutine[Any, Any, End]) -> End:
        """Run the loop to the end of `main`, whatever a job's own tasks throw through it."""
        loop = _new_loop(self._options.loop)
        asyncio.set_event_loop(loop)
        task = loop.create_task(main)
        while True:
            try:
                return loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as error:
                if task.done():
                    raise
                log.exception("a job's background task raised %s: ignored", type(error).__name__)


def _new_loop(kind: EventLoop) -> asyncio.AbstractEventLoop:
    if kind == "uvloop" or (kind == "auto" and find_spec("uvloop") is not None):
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def main(arguments: Sequence[str]) -> int:
    channel_fd, board_fd, place, _ = map(int, arguments)
    channel = Channel.inherited(channel_fd)
    os.set_inheritable(board_fd, False)
    options = WorkerOptions.from_message(channel.next()[0]["options"])
    set_up_logging(options.log_level, options.log_format)
    if options.log_format == "json":
        # For the processes of isolated tasks, which get nothing else from us.
        os.environ[JSON_LOGS] = options.log_level
    return Process(channel, Board(board_fd), place, options).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The ward: the process in which isolated tasks run, one attempt at a time.

The function runs in the main thread, as in a program of its own. A second thread reads
what the worker says meanwhile: answers, and the order to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Awaitable
from types import FrameType
from typing import Any, NoReturn

import msgspec

from headgate.context import Context
from headgate.errors import Cancel, HeadgateError, StaleAttempt, StoreError
from headgate.jobs import Claimed, NewJob
from headgate.worker.execute import AnyTask, run_async, run_sync
from headgate.worker.frames import DATA, ENDED, LAST, Unpacker, pack
from headgate.worker.logs import JSON_LOGS, set_up_logging
from headgate.worker.outcome import Ending, refused
from headgate.worker.source import Source, find_task


class Run(msgspec.Struct, frozen=True):
    """Worker → ward: run this attempt."""

    claimed: Claimed
    source: Source
    granted_at: float | None = None


class Said(msgspec.Struct, omit_defaults=True):
    """Ward → worker, while the code runs. A `call` is answered by an `Answer` of its number."""

    progress: tuple[float, str] | None = None
    followup: NewJob | None = None
    call: int | None = None
    what: str = ""
    seconds: float | None = None


class Answer(msgspec.Struct, omit_defaults=True):
    call: int
    value: bool = False
    error: str = ""
    text: str = ""


class Told(msgspec.Struct, omit_defaults=True):
    """Worker → ward: exactly one of these."""

    load: Source | None = None
    run: Run | None = None
    answer: Answer | None = None
    stop: str | None = None


_ERRORS: dict[str, type[Exception]] = {
    "StaleAttempt": StaleAttempt,
    "Cancel": Cancel,
    "StoreError": StoreError,
}


class WardPort:
    """The `AttemptPort` of isolated code: everything goes through the worker."""

    def __init__(self, ward: Ward) -> None:
        self._ward = ward

    def progress(self, fraction: float, text: str) -> None:
        self._ward.say(Said(progress=(fraction, text)))

    def extend(self, seconds: float) -> None:
        self._ward.call("extend", seconds)

    def release(self) -> None:
        self._ward.call("release", None)

    def retake(self, timeout: float | None) -> bool:
        return self._ward.call("retake", timeout)

    def followup(self, job: NewJob) -> None:
        self._ward.say(Said(followup=job))

    def is_cancelled(self) -> bool:
        return self._ward.stop is not None

    def cancel_reason(self) -> str:
        return self._ward.stop or ""


class Ward:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._todo: queue.SimpleQueue[Source | Run] = queue.SimpleQueue()
        self._calls: dict[int, queue.SimpleQueue[Answer]] = {}
        self._numbers = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Ending] | None = None
        self._saying = False
        self._put_off = False
        self.stop: str | None = None

    def run(self) -> NoReturn:
        signal.signal(signal.SIGTERM, self._on_terminate)
        if JSON_LOGS in os.environ:
            set_up_logging(os.environ[JSON_LOGS], "json")
        threading.Thread(target=self._read, name="headgate-ward", daemon=True).start()
        while True:
            todo = self._todo.get()
            if isinstance(todo, Source):
                self._load(todo)
            else:
                self._attempt(todo)

    def _load(self, source: Source) -> None:
        """Import ahead of the first job. What goes wrong is told by that job."""
        try:
            find_task(source)
        except Exception as error:
            print(f"headgate: {error}", file=sys.stderr)

    def _import(self, source: Source) -> None:
        """Before the attempt: threads that its module starts are not the job's. What goes wrong
        goes wrong again there, and is told."""
        try:
            with contextlib.suppress(Exception):
                find_task(source)
        except SystemExit:
            if self.stop is not None:
                raise  # it was told to stop; otherwise the module ends what imports it

    def _attempt(self, run: Run) -> None:
        self.stop = None
        self._import(run.source)
        before = set(threading.enumerate())
        ending = self._execute(run)
        payload = msgspec.json.encode(ending)
        # A thread that the job started and left cannot be ended from outside: then this
        # process has to go with it before the attempt counts as over.
        clean = all(thread in before for thread in threading.enumerate())
        self._send(ENDED if clean else LAST, payload)

    def _execute(self, run: Run) -> Ending:
        try:
            task = find_task(run.source).for_job(run.claimed.options)
        except BaseException as error:
            return refused("import", error)
        ctx = Context.of(run.claimed, WardPort(self), run.granted_at)
        if task.is_async:
            return asyncio.run(self._run_async(task, run, ctx))
        hooks = task.app.hooks
        return run_sync(task, run.claimed.args, ctx, hooks, run.claimed.errors, _wait_for)

    async def _run_async(self, task: AnyTask, run: Run, ctx: Context) -> Ending:
        code = run_async(task, run.claimed.args, ctx, task.app.hooks, run.claimed.errors)
        self._main = asyncio.ensure_future(code)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._main.cancel)
        try:
            return await self._main
        except asyncio.CancelledError:
            return Ending("stopped")
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, self._on_terminate)

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        """Stop as a program stops: `finally` blocks run. Who does not end is killed later."""
        if self._saying:
            self._put_off = True  # half a frame would make the rest of the stream unreadable
            return
        raise SystemExit(128 + number)

    # --- to and from the worker ---------------------------------------------------------------

    def say(self, said: Said) -> None:
        self._send(DATA, msgspec.json.encode(said))

    def call(self, what: str, seconds: float | None) -> bool:
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        with self._sending:
            self._numbers += 1
            number = self._numbers
            self._calls[number] = answers
        try:
            self.say(Said(call=number, what=what, seconds=seconds))
            answer = answers.get()
        finally:
            del self._calls[number]
        if answer.error:
            raise _ERRORS.get(answer.error, HeadgateError)(answer.text)
        return answer.value

    def _send(self, kind: int, payload: bytes) -> None:
        # Signals are handled in the main thread only, so only its frames can be cut.
        main = threading.current_thread() is threading.main_thread()
        self._saying = self._saying or main
        try:
            with self._sending:
                self._sock.sendall(pack(kind, payload))
        finally:
            self._saying = self._saying and not main
        if main and self._put_off:
            self._put_off = False
            raise SystemExit(128 + signal.SIGTERM)

    def _read(self) -> None:
        unpacker = Unpacker()
        decoder = msgspec.json.Decoder(Told)
        while data := self._sock.recv(1 << 20):
            for _, payload in unpacker.feed(data):
                told = decoder.decode(payload)
                if told.answer is not None:
                    waiting = self._calls.get(told.answer.call)
                    if waiting is not None:
                        waiting.put(told.answer)
                elif told.stop is not None:
                    self.stop = told.stop
                elif told.run is not None:
                    self._todo.put(told.run)
                elif told.load is not None:
                    self._todo.put(told.load)
        os._exit(1)  # the warden is gone


def _wait_for(awaitable: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await awaitable

    return asyncio.run(main())

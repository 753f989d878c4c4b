"""The half of an app that submits: calls, calls of many, and tasks known by name only."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from headgate.byname import ByName
from headgate.calls import Call
from headgate.declare import Declaring
from headgate.errors import DeclarationError
from headgate.fitting import await_room, check_no_waits, wait_for_room, waits
from headgate.handle import JobHandle, accepted
from headgate.jobs import NewJob, Submitted
from headgate.options import Options, check_options
from headgate.stores.protocol import Store
from headgate.storing import astore_all, common_connection, store_all
from headgate.threads import in_thread
from headgate.waiting import Watch

if TYPE_CHECKING:
    from headgate.app import App
    from headgate.telemetry.meter import Meter
    from headgate.telemetry.tracing import Tracing

R = TypeVar("R")


class Submitting(Declaring):
    """From calls to stored jobs, in the app's store or in a transaction of the caller's."""

    def __init__(self) -> None:
        super().__init__()
        self.after_submit: Callable[[], None] | None = None
        """Called after each submit from this app (`headgate.testing.inline` runs the jobs)."""
        self.meter: Meter | None = None
        """Told what happens, where somebody asked for metrics (`headgate.telemetry`)."""
        self.tracing: Tracing | None = None
        """Makes spans, where somebody asked for them."""
        self._by_name = ByName(cast("App", self))

    def metered(self) -> Meter:
        """The meter of this app, made now if there is none: from here on it counts."""
        if self.meter is None:
            from headgate.telemetry.meter import Meter

            self.meter = Meter()
        return self.meter

    @property
    @abstractmethod
    def store(self) -> Store: ...

    @abstractmethod
    def watch(self, what: str) -> Watch: ...

    def submit(
        self, name: str, payload: object = None, *, strict: bool = False, **options: Unpack[Options]
    ) -> JobHandle[Any]:
        """Submit by name, from a program that may not have the task's code.

        >>> app.submit("heavy", {"n": 1}, concurrency_group="heavy_processing",
        ...            concurrency_limit=5)                             # doctest: +SKIP

        A task that nobody has declared yet waits for a worker that knows it; `strict=True`
        makes that an `UnknownTask` error.
        """
        what = self._prepared(name, payload, strict, options)
        if isinstance(what, Call):
            return what.submit()
        job, conn = what
        return self._by_name.handle(self.store_jobs([job], conn)[0])

    async def asubmit(
        self, name: str, payload: object = None, *, strict: bool = False, **options: Unpack[Options]
    ) -> JobHandle[Any]:
        """`submit` for code in an event loop."""
        what = await in_thread(self._prepared, name, payload, strict, options)
        if isinstance(what, Call):
            return await self.asubmit_call(what)
        job, conn = what
        return self._by_name.handle((await self.astore_jobs([job], conn))[0])

    def _prepared(
        self, name: str, payload: object, strict: bool, options: Options
    ) -> Call[Any] | tuple[NewJob, object]:
        """A call of a task that is declared here, or a job of another and its connection."""
        checked = check_options(cast("Mapping[str, object]", options))
        given: object = dict[str, object]() if payload is None else payload
        if name in self.tasks:
            return self.tasks[name].using(**checked).call_payload(given)
        conn = checked.pop("conn", None)
        return self._by_name.new_job(name, given, checked, strict), conn

    def submit_many(self, calls: Iterable[Call[R]], *, conn: object = None) -> list[JobHandle[R]]:
        """Submit many calls; all are checked before the first is stored.

        >>> app.submit_many([resize.call("a.png"), resize.call("b.png")])  # doctest: +SKIP

        They are stored in pieces of some hundred, each of which happens whole; with `conn` all
        of them in the transaction of that connection. What a cap refuses is not an error here:
        the others are stored, and its handle says so in `refused`.
        """
        made, jobs, conn = self._made(calls, conn)
        done = self.store_jobs(jobs, conn)
        return [call.handle(one) for call, one in zip(made, done, strict=True)]

    async def asubmit_many(
        self, calls: Iterable[Call[R]], *, conn: object = None
    ) -> list[JobHandle[R]]:
        """`submit_many` for code in an event loop."""
        made, jobs, conn, done = await in_thread(self._made_and_put, calls, conn)
        if done is None:
            done = await self.astore_jobs(jobs, conn)
        else:
            if waits(jobs, done):
                await await_room(self.watch("room"), jobs, done, self._put)
            self._count(jobs, done)
        return [call.handle(one) for call, one in zip(made, done, strict=True)]

    def submit_call(self, call: Call[R]) -> JobHandle[R]:
        """Submit one call; `ConcurrencyLimitReached` if a cap refuses it."""
        (handle,) = self.submit_many([call])
        return accepted(handle)

    async def asubmit_call(self, call: Call[R]) -> JobHandle[R]:
        """`submit_call` for code in an event loop."""
        (handle,) = await self.asubmit_many([call])
        return accepted(handle)

    def _made(
        self, calls: Iterable[Call[R]], conn: object
    ) -> tuple[list[Call[R]], list[NewJob], object]:
        made = list(calls)
        for call in made:
            if call.task.app is not self:
                raise DeclarationError(
                    f"task {call.task.name!r} belongs to another app; submit it through that one"
                )
        return made, [call.new_job() for call in made], common_connection(made, conn)

    def _made_and_put(
        self, calls: Iterable[Call[R]], conn: object
    ) -> tuple[list[Call[R]], list[NewJob], object, list[Submitted] | None]:
        """Both in one go for who comes from an event loop, unless a connection is given, which
        belongs to that loop, or a span goes round the second."""
        made, jobs, conn = self._made(calls, conn)
        at_once = conn is None and self.tracing is None
        return made, jobs, conn, self._put(jobs) if at_once else None

    def store_jobs(self, jobs: list[NewJob], conn: object = None) -> list[Submitted]:
        """Store them, and wait where a cap that blocks is full."""
        if self.tracing is None:
            done = self._store_jobs(jobs, conn)
        else:
            with self.tracing.submitting(jobs) as traced:
                done = traced.done = self._store_jobs(traced.jobs, conn)
        self._count(jobs, done)
        return done

    def _store_jobs(self, jobs: list[NewJob], conn: object) -> list[Submitted]:
        if conn is not None:
            check_no_waits(jobs)
            return store_all(self.store, jobs, conn)
        done = self._put(jobs)
        if waits(jobs, done):
            wait_for_room(self.watch("room"), jobs, done, self._put)
        return done

    async def astore_jobs(self, jobs: list[NewJob], conn: object = None) -> list[Submitted]:
        """`store_jobs` for code in an event loop; who waits for room occupies no thread."""
        if self.tracing is None:
            done = await self._astore_jobs(jobs, conn)
        else:
            with self.tracing.submitting(jobs) as traced:
                done = traced.done = await self._astore_jobs(traced.jobs, conn)
        self._count(jobs, done)
        return done

    async def _astore_jobs(self, jobs: list[NewJob], conn: object) -> list[Submitted]:
        if conn is not None:
            check_no_waits(jobs)
            # Here and not in a thread: the connection belongs to this loop.
            return await astore_all(self.store, jobs, conn)
        done = await in_thread(self._put, jobs)
        if waits(jobs, done):
            await await_room(self.watch("room"), jobs, done, self._put)
        return done

    def _count(self, jobs: list[NewJob], done: list[Submitted]) -> None:
        if self.meter is not None:
            self.meter.submitted(jobs, done)

    def _put(self, jobs: list[NewJob]) -> list[Submitted]:
        done = store_all(self.store, jobs)
        if self.after_submit is not None:
            self.after_submit()
        return done

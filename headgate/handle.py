"""The handle of a submitted job: its state, its result, and a way to stop it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from headgate.caps import refusal_error
from headgate.codec import decoder
from headgate.context import maybe_current
from headgate.errors import JobCancelled, JobFailed, WouldDeadlock
from headgate.jobs import JobRecord, Refusal, State, Submitted
from headgate.threads import in_thread
from headgate.waiting import Deadline, aringing, ringing, rung_within

if TYPE_CHECKING:
    from headgate.app import App

R_co = TypeVar("R_co", covariant=True)

_plain = decoder(Any, "the result")


class JobHandle(Generic[R_co]):
    """A job that was submitted; `result()` gives what its task returned.

    >>> handle = charge.submit(tenant_id="acme", amount=3)              # doctest: +SKIP
    >>> handle.result(timeout=10)                                       # doctest: +SKIP
    'paid'
    """

    __slots__ = ("_app", "_decode", "existing", "id", "refused")

    def __init__(
        self,
        app: App,
        id: str,
        decode: Callable[[str | None], Any] | None,
        done: Submitted | None = None,
    ) -> None:
        self._app = app
        self._decode = decode
        self.id = id
        self.refused: Refusal | None = None if done is None else done.refused
        """Why a cap refused the submission, in what `submit_many` gives: there is no such job,
        and whatever asks for it raises `ConcurrencyLimitReached`."""
        self.existing = done is not None and done.existing
        """The job was there already: an idempotency key met it, or a cap that skips."""

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JobHandle):
            return NotImplemented
        theirs = cast("JobHandle[Any]", other)
        return (self._app, self.id) == (theirs._app, theirs.id)

    def __hash__(self) -> int:
        return hash(self.id)

    def record(self) -> JobRecord:
        """The job as it is now, or `JobNotFound`."""
        if self.refused is not None:
            raise refusal_error(self.refused)
        return self._app.get_job(self.id)

    async def arecord(self) -> JobRecord:
        """`record` for code in an event loop."""
        return await in_thread(self.record)

    def status(self) -> State:
        """`scheduled`, `ready`, `running`, `succeeded`, `failed` or `cancelled`."""
        return self.record().state

    async def astatus(self) -> State:
        """`status` for code in an event loop."""
        return await in_thread(self.status)

    def output(self) -> bytes:
        """What the command of the job has written so far, over all its attempts."""
        from headgate.commands.output import whole

        self.record()  # or the reason why there is none
        return whole(self._app.store, self.id)

    async def aoutput(self) -> bytes:
        """`output` for code in an event loop."""
        return await in_thread(self.output)

    def cancel(self, reason: str = "") -> JobRecord:
        """Cancel the job: at once if it waits, else its code is told and stopped if it can be.

        Gives the job as it is after that; one that had ended already stays as it is.
        """
        if self.refused is not None or not is_text(self.id):
            return self.record()
        return self._app.store.cancel(self.id, by=_who(), reason=reason)

    async def acancel(self, reason: str = "") -> JobRecord:
        """`cancel` for code in an event loop."""
        return await in_thread(self.cancel, reason)

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job's end and give its result, as the type its task is annotated with.

        Raises `JobFailed` with the remote traceback, `JobCancelled`, `TimeoutError` after
        `timeout` seconds, and `WouldDeadlock` inside a job that holds a group which the
        other one needs.
        """
        deadline = Deadline(timeout, time.monotonic)
        record = self._look()
        if record.done:
            return self._outcome(record)
        with ringing(self._app.watch("done")) as rung:
            while True:
                rung.clear()
                record = self._look()
                if record.done:
                    return self._outcome(record)
                if deadline.passed:
                    raise self._timed_out(record, timeout)
                rung.wait(deadline.pause())

    async def aresult(self, timeout: float | None = None) -> R_co:
        """`result` for code in an event loop; a waiting coroutine occupies no thread."""
        deadline = Deadline(timeout, time.monotonic)
        record = await in_thread(self._look)
        if record.done:
            return self._outcome(record)
        with aringing(self._app.watch("done")) as rung:
            while True:
                rung.clear()
                record = await in_thread(self._look)
                if record.done:
                    return self._outcome(record)
                if deadline.passed:
                    raise self._timed_out(record, timeout)
                await rung_within(rung, deadline.pause())

    def _look(self) -> JobRecord:
        record = self.record()
        ctx = maybe_current()
        if ctx is None or record.done:
            return record
        # Looked at each time round: a job that nobody had stamped yet may turn out to need
        # a group that is held here.
        wanted = {need.group for need in record.needs}
        if shared := sorted(wanted.intersection(ctx.holding)):
            raise WouldDeadlock(
                f"job {ctx.job_id} ({ctx.task}) would wait for job {self.id} ({record.task}),"
                f" which needs {shared[0]!r}, and holds that itself: use 'with ctx.released():'"
                " round the wait, or submit a follow-up with ctx.submit(…)"
            )
        return record

    def _outcome(self, record: JobRecord) -> R_co:
        if record.state == "succeeded":
            if self._decode is not None:
                return self._decode(record.result)
            return cast("R_co", None if record.result is None else _plain(record.result))
        what = f"job {self.id} ({record.task})"
        if record.state == "cancelled":
            because = f": {record.reason}" if record.reason else ""
            raise JobCancelled(f"{what} was cancelled{because}", reason=record.reason)
        failure = record.error
        said = f"{failure.type}: {failure.message}" if failure is not None else record.reason
        error = JobFailed(
            f"{what} failed: {said}",
            reason=record.reason,
            error_type=failure.type if failure is not None else "",
            remote_traceback=failure.traceback if failure is not None else "",
        )
        if error.remote_traceback:
            error.add_note(f"The traceback in the worker:\n{error.remote_traceback}")
        raise error

    def _timed_out(self, record: JobRecord, timeout: float | None) -> TimeoutError:
        return TimeoutError(
            f"job {self.id} ({record.task}) is still {record.state} after {timeout} s;"
            f" 'headgate jobs why {self.id}' says what it waits for"
        )


def accepted(handle: JobHandle[R_co]) -> JobHandle[R_co]:
    """The handle of a single submission; a refusal is an error there."""
    if handle.refused is not None:
        raise refusal_error(handle.refused)
    return handle


def is_text(id: object) -> bool:
    """Could this be the id of a job? A store can be asked only for text it can encode."""
    try:
        return isinstance(id, str) and bool(id.encode())
    except UnicodeEncodeError:
        return False


def _who() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"

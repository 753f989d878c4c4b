"""Calls: a task with its arguments, before it is a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.jobs import NewJob, Submitted

if TYPE_CHECKING:
    from headgate.handle import JobHandle
    from headgate.tasks import Task

R_co = TypeVar("R_co", covariant=True)


class Call(Generic[R_co]):
    """A task with its arguments, not submitted yet. Made by `task.call(...)`."""

    __slots__ = ("bound", "task")

    def __init__(self, task: Task[..., R_co], bound: dict[str, Any]) -> None:
        self.task = task
        self.bound = bound

    def __repr__(self) -> str:
        return f"<Call of {self.task.name!r}>"

    def submit(self) -> JobHandle[R_co]:
        """Submit this call alone."""
        return self.task.app.submit_call(self)

    def new_job(self, parent: str | None = None) -> NewJob:
        """The job this call becomes: stamped, with a new id."""
        return self.task.new_job(self.bound, parent)

    def handle(self, done: Submitted) -> JobHandle[R_co]:
        from headgate.handle import JobHandle

        return JobHandle(self.task.app, done.id, self.task.decode_result, done)

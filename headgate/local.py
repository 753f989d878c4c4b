"""The context of a task that is called here and now, outside any worker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headgate.caps import refusal_error
from headgate.context import Context
from headgate.jobs import NewJob

if TYPE_CHECKING:
    from headgate.app import App
    from headgate.tasks import Task


class LocalPort:
    """There is no attempt: nothing is held, nobody watches, nobody cancels."""

    def __init__(self, app: App) -> None:
        self._app = app

    def progress(self, fraction: float, text: str) -> None:
        pass

    def extend(self, seconds: float) -> None:
        pass

    def release(self) -> None:
        pass

    def retake(self, timeout: float | None) -> bool:
        return True

    def followup(self, job: NewJob) -> None:
        # No finish will come to store it with, and dropping it would lose a job.
        (done,) = self._app.store_jobs([replace(job, parent=None)])
        if done.refused is not None:
            raise refusal_error(done.refused)

    def is_cancelled(self) -> bool:
        return False

    def cancel_reason(self) -> str:
        return ""


def local_context(app: App, task: Task[..., Any]) -> Context:
    return Context(
        LocalPort(app), job_id="local", attempt=1, token=0, task=task.name, queue=task.queue
    )

"""A job class with a key and a limit of its own, and what its jobs need."""

from __future__ import annotations

from headgate import Job
from headgate.jobs import NewJob


def groups(job: NewJob) -> list[str]:
    return [need.group for need in job.needs]


class Keyed(Job):
    """Declared in each test anew: which key and which limit."""

    def __init__(self, key: str = "", limit: int | None = None) -> None:
        self.key = key
        self.limit = limit

    def run(self) -> None: ...

    def get_concurrency_key(self) -> str:
        return self.key

    def get_concurrency_limit(self) -> int | None:
        return self.limit

"""The router: puts the stamp on jobs that somebody submitted without knowing their task."""

from __future__ import annotations

import logging
from typing import Any

from headgate.errors import StoreError
from headgate.jobs import Routing, Unrouted
from headgate.stores.protocol import Store
from headgate.tasks import Task
from headgate.threads import in_thread

log = logging.getLogger("headgate.worker")


class Router:
    def __init__(self, store: Store, tasks: dict[str, Task[..., Any]]) -> None:
        self._store = store
        self._tasks = tasks

    async def route(self) -> bool:
        """Stamp what waits; True when there was something, so that it can be claimed now.

        In a thread of its own: key functions are anybody's code and may take their time.
        """
        try:
            return await in_thread(self._route)
        except StoreError as error:
            log.warning("jobs could not be routed (%s); trying again", error)
            return False

    def _route(self) -> bool:
        waiting = self._store.unrouted(frozenset(self._tasks))
        if waiting:
            self._store.route([self._stamp(job) for job in waiting])
        return bool(waiting)

    def _stamp(self, job: Unrouted) -> Routing:
        routing = self._tasks[job.task].route(job)
        if routing.error is not None:
            log.warning("job %s (%s) cannot be routed: %s", job.job, job.task, routing.error)
        return routing

"""Which queues a worker process serves, and how much of each."""

from __future__ import annotations

import time
from collections.abc import Mapping

from headgate.config import QueueConfig
from headgate.stores.protocol import QueueShare, Store

_REFRESH = 1.0


class Queues:
    """The queues of the command line, with weight and concurrency of the configuration.

    Without a choice all queues are served. The store does that by itself as long as the
    configuration says nothing of queues; otherwise their names are asked for now and then.
    """

    def __init__(
        self, chosen: tuple[str, ...] | None, config: Mapping[str, QueueConfig], store: Store
    ) -> None:
        self.chosen = chosen
        self._config = config
        self._store = store
        self._names: tuple[str, ...] = chosen or ()
        self._asked = -_REFRESH

    def refresh(self) -> None:
        """Learn the names of the queues; called in a thread, before the first claim too."""
        if self.chosen is None and self._config and time.monotonic() - self._asked >= _REFRESH:
            self._names = tuple(queue.name for queue in self._store.queues())
            self._asked = time.monotonic()

    def shares(self, room: int, running: Mapping[str, int]) -> tuple[QueueShare, ...] | None:
        if self.chosen is None and not self._config:
            return None
        return tuple(self._share(name, room, running.get(name, 0)) for name in self._names)

    def _share(self, name: str, room: int, running: int) -> QueueShare:
        config = self._config.get(name)
        if config is None:
            return QueueShare(name, room)
        if config.paused:
            return QueueShare(name, 0, config.weight)
        if config.concurrency is not None:
            room = max(0, min(room, config.concurrency - running))
        return QueueShare(name, room, config.weight)

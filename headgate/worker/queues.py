"""Which queues a worker process serves, and how much of each."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.config import QueueConfig
from headgate.stores.protocol import QueueShare


class Queues:
    """The queues of the command line, with weight and concurrency of the configuration.

    Without a choice all queues are served, those that nobody has heard of yet included.

    >>> config = {"mail": QueueConfig(concurrency=2), "slow": QueueConfig(paused=True)}
    >>> queues = Queues(None, config)
    >>> [share.room for share in queues.shares(10, {"mail": 1})], sorted(queues.closed)
    ([1, 0], ['slow'])
    """

    def __init__(self, chosen: tuple[str, ...] | None, config: Mapping[str, QueueConfig]) -> None:
        self.chosen = chosen
        self._config = config
        self.closed = frozenset(name for name, queue in config.items() if queue.closed)
        """Queues from which the configuration lets nothing start."""

    @property
    def others(self) -> bool:
        """Are queues served that `shares` does not name?"""
        return self.chosen is None

    def shares(self, room: int, running: Mapping[str, int]) -> tuple[QueueShare, ...]:
        names = self._config if self.chosen is None else self.chosen
        return tuple(self._share(name, room, running.get(name, 0)) for name in names)

    def _share(self, name: str, room: int, running: int) -> QueueShare:
        config = self._config.get(name)
        if config is None:
            return QueueShare(name, room)
        if config.paused:
            return QueueShare(name, 0, config.weight, left=0)
        if config.concurrency is None:
            return QueueShare(name, room, config.weight)
        left = max(0, config.concurrency - running)
        return QueueShare(name, min(room, left), config.weight, left)

"""`/metrics` of `headgate worker`: served by the keeper, which adds up what its processes count.

A worker process sends what it counted twice a second and forgets it, so nothing is counted twice
and nothing goes back when a process dies: of one that was killed the last half second is missing.
"""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from headgate.errors import ConfigError, StoreUnavailable
from headgate.stores import open_store
from headgate.telemetry import names
from headgate.telemetry.counts import Counts, Delta
from headgate.telemetry.exposition import Counted, Gauges
from headgate.telemetry.gauges import Looker, Value
from headgate.telemetry.server import serve

if TYPE_CHECKING:
    from headgate.stores.protocol import Store
    from headgate.worker.channel import Channel

EVERY = 0.5
CHUNK = 100
"""Counts in one message, so that it fits into what a channel takes without waiting."""


def address(text: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:9123` or `[::1]:9123`, or `ConfigError`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(f"--metrics {text!r}: write HOST:PORT, as 127.0.0.1:9123")
    return host, int(port)


class Serving:
    """The keeper's books of counts, and the server that shows them."""

    def __init__(self, keyed: Sequence[str], own: Callable[[], list[Value]]) -> None:
        self.counts = Counts()
        for result in ("renewed", "failed", "ended"):
            self.counts.add(names.RENEWALS, (result,), 0)
        self._url: str | None = None
        self._store: Store | None = None
        self._lock = threading.Lock()
        looker = Looker(self._opened, self.counts, frozenset(keyed))
        self.registry = CollectorRegistry()
        # The look comes first: it notes events, which the counts then show.
        self.registry.register(Gauges(lambda: [*looker.values(), *own()]))
        self.registry.register(Counted(self.counts))

    def listen(self, where: str) -> str:
        """Serve from a thread; the address, with the port that was chosen where it is 0."""
        host, port = address(where)
        try:
            port = serve(self.registry, host, port).server_port
        except OSError as error:
            raise ConfigError(f"--metrics {where}: {error.strerror or error}") from None
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}/metrics"

    def look_at(self, url: str) -> None:
        """Its workers have told which store it is."""
        self._url = url

    def merge(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            self.counts.merge(delta)

    def count(self, family: names.Family, *labels: str) -> None:
        self.counts.add(family, labels)

    def _opened(self) -> Store:
        # A store of its own: a look that takes long must not hold up what renews leases.
        with self._lock:
            if self._store is None:
                if self._url is None:
                    raise StoreUnavailable("no worker process has said yet which store it is")
                self._store = open_store(self._url)
            return self._store


class Teller:
    """In a worker process: sends what it counted to the keeper."""

    def __init__(self, counts: Counts, channel: Channel) -> None:
        self._counts = counts
        self._channel = channel
        self._left: list[Delta] = []

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            self.tell()

    def tell(self) -> None:
        """As much as goes without waiting: a keeper that stands still must not stop the loop."""
        self._left += self._counts.take()
        while self._left and select.select([], [self._channel.sock], [], 0)[1]:
            chunk, self._left = self._left[:CHUNK], self._left[CHUNK:]
            if not self._channel.send({"counts": chunk}):
                return

"""Where jobs live: one protocol, several engines. `open_store(url)` picks the engine."""

from __future__ import annotations

from headgate.clock import Clock
from headgate.errors import ConfigError
from headgate.stores.protocol import Store


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """Open (and, where it is new, create) the store at `url`."""
    scheme, colon, _ = url.partition(":")
    if scheme == "sqlite" and colon:
        from headgate.stores.sqlite.store import SQLiteStore

        return SQLiteStore(url, clock=clock)
    raise ConfigError(
        f"no store for url {url!r}: use sqlite:///path/to/file.db or sqlite:///:memory:"
    )

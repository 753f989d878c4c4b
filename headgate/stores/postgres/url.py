"""What a postgresql:// url says: to us, and to the PostgreSQL library."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode

from headgate.errors import ConfigError

SCHEMES = ("postgresql", "postgres")
_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,47}")
_TRUE, _FALSE = {"true", "on", "yes", "1"}, {"false", "off", "no", "0"}
_SECRETS = ("password", "sslpassword")
POOL = 10


@dataclass(frozen=True, slots=True)
class Address:
    """Where the store is. `shown` is for messages: it never holds a password."""

    conninfo: str
    shown: str
    schema: str = "headgate"
    pooled: bool | None = None
    """Behind PgBouncer or the like; None: found out at the first connection."""
    listen: bool = True
    pool: int = POOL
    """At most so many connections of one process."""


def parse(url: str) -> Address:
    """
    >>> address = parse("postgresql://app:secret@db/app?schema=jobs&sslmode=require")
    >>> address.schema, address.conninfo
    ('jobs', 'postgresql://app:secret@db/app?sslmode=require')
    >>> address.shown
    'postgresql://app:***@db/app?schema=jobs&sslmode=require'
    """
    shown = redacted(url)
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in SCHEMES:
        raise ConfigError(f"{shown}: write postgresql://user@host/database")
    place, _, query = rest.partition("?")
    kept: list[tuple[str, str]] = []
    ours: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in ("schema", "pgbouncer", "listen", "pool"):
            ours[name] = value
        else:
            kept.append((name, value))
    schema = ours.get("schema", "headgate")
    if not _SCHEMA.fullmatch(schema):
        raise ConfigError(
            f"{shown}: the schema {schema!r} cannot be used; name one of at most 48 lower-case"
            " letters, digits and underscores that does not begin with a digit or pg_"
        )
    pooled = _flag(ours, "pgbouncer", shown)
    listen = _flag(ours, "listen", shown)
    pool = ours.get("pool", str(POOL))
    if not pool.isascii() or not pool.isdigit() or not 1 <= int(pool) <= 1000:
        raise ConfigError(f"{shown}: pool must be a number from 1 to 1000, not {pool!r}")
    # libpq takes %20, not +, for a space.
    options = urlencode(kept, quote_via=quote)
    return Address(
        conninfo=f"postgresql://{place}" + (f"?{options}" if options else ""),
        shown=shown,
        schema=schema,
        pooled=pooled,
        listen=listen is not False and not pooled,
        pool=int(pool),
    )


def _flag(ours: dict[str, str], name: str, shown: str) -> bool | None:
    value = ours.get(name)
    if value is None:
        return None
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise ConfigError(f"{shown}: {name} must be true or false, on or off, not {value!r}")


def redacted(url: str) -> str:
    """The url without its passwords, for messages and logs.

    >>> redacted("postgresql://db/app?user=app&password=secret")
    'postgresql://db/app?user=app&password=***'
    """
    head, mark, query = url.partition("?")
    scheme, slashes, rest = head.partition("://")
    # A password may hold an @ that was not escaped: the host begins after the last one.
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    if colon:
        head = f"{scheme}{slashes}{user}:***{at}{place}"
    parts = [
        f"{part.partition('=')[0]}=***"
        if unquote(part.partition("=")[0]) in _SECRETS
        else part
        for part in query.split("&")
    ]  # fmt: skip
    return head + mark + "&".join(parts)

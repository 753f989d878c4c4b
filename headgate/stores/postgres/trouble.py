"""The errors of PostgreSQL and of the way there, as ours, saying what to do."""

from __future__ import annotations

import psycopg

from headgate.errors import StoreBusy, StoreError, StoreUnavailable, StoreVersion

GRANTS = "docs/postgres.md lists the grants; `headgate migrate --grant ROLE` gives them"
_MISSING = {"3F000", "42P01", "42883", "42703"}
_BUSY = {"55P03", "57014", "40P01", "40001"}
_GONE = {"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "25006"}
_FULL = ("too many", "connection slots", "no more connections")


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time: its machine or the network may be gone."""


def is_lost(error: psycopg.Error) -> bool:
    """The connection is of no use any more."""
    state = error.sqlstate or ""
    if isinstance(error, psycopg.InterfaceError):
        return True
    if isinstance(error, psycopg.OperationalError) and not state:
        return True
    return state.startswith("08") or state in _GONE


def unreachable(error: psycopg.Error, url: str) -> StoreUnavailable:
    """No connection came about. The library tells why in words only."""
    text = " ".join(str(error).split()).removeprefix("connection failed: ")
    if any(words in text for words in _FULL):
        return StoreUnavailable(
            f"{url}: the server has no connection left ({text}): raise its max_connections, put"
            " PgBouncer in front, or lower ?pool= in the url"
        )
    return StoreUnavailable(f"{url}: cannot connect ({text})")


def translate(error: psycopg.Error, url: str) -> StoreError:
    text = " ".join(str(error).split()) or type(error).__name__
    state = error.sqlstate or ""
    if state in _BUSY:
        return StoreBusy(
            f"{url}: {text}; another transaction held on to what this one needed. Nothing was"
            " changed: try again, and look for transactions left open (pg_stat_activity)"
        )
    if state == "25006":
        return StoreUnavailable(
            f"{url}: the server only reads ({text}): it may be a standby; name the primary, or"
            " add target_session_attrs=read-write to the url"
        )
    if is_lost(error):
        return StoreUnavailable(f"{url}: no connection ({text}); the next call connects again")
    if state.startswith(("53", "58", "XX")):
        return StoreUnavailable(f"{url}: the server could not do it ({text})")
    if state == "42501":
        return StoreError(f"{url}: {text}: this role may not do that; {GRANTS}")
    if state in _MISSING:
        return StoreVersion(
            f"{url}: {text}: the schema is missing or is not of this version; run"
            " `headgate migrate`, or upgrade this program if a newer one did that"
        )
    return StoreError(f"{url}: {text}")

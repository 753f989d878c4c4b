"""Submitting through a connection of the caller's, inside its transaction.

The job appears when the caller commits and vanishes when it rolls back. It is one statement,
whatever the driver; none of them is imported here unless the caller has done so. Errors of the
connection are the caller's: they pass unchanged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from headgate.errors import SubmitConflict, WrongConnection
from headgate.jobs import NewJob, Submitted
from headgate.stores.postgres import capping, submitting
from headgate.stores.postgres.trouble import GRANTS

_MISSING = frozenset(("3F000", "42883", "42P01"))
_FORBIDDEN = "42501"
_UNDECIDED = frozenset(("40001", "40P01"))
KNOWN = (
    "a psycopg 3 connection or cursor, an asyncpg connection, SQLAlchemy's Connection or Session"
    " (sync or async), or Django's connection"
)

Rows = Sequence[Any]


def submit(conn: object, schema: str, jobs: Sequence[NewJob]) -> list[Submitted]:
    """Submit in the transaction of a synchronous connection."""
    call = _find(_SYNC, conn)
    if call is None:
        if _find(_ASYNC, conn) is not None:
            raise WrongConnection(
                f"conn= is asynchronous ({_kind(conn)}): await asubmit(...), or asubmit_many(...),"
                " instead"
            )
        raise _unknown(conn)
    statement, read = _ways(schema, jobs)
    try:
        rows = call(conn, statement, submitting.to_json(jobs))
    # Each driver has errors of its own; ours says more where it can, else theirs goes on as it is.
    except Exception as error:
        _explain(error, conn, schema, jobs)
        raise
    return read(jobs, rows)


async def asubmit(conn: object, schema: str, jobs: Sequence[NewJob]) -> list[Submitted]:
    """Submit in the transaction of an asynchronous connection."""
    call = _find(_ASYNC, conn)
    if call is None:
        if _find(_SYNC, conn) is not None:
            raise WrongConnection(
                f"conn= is synchronous ({_kind(conn)}), and would hold up the event loop: call"
                " submit(...), or submit_many(...), where that connection is used"
            )
        raise _unknown(conn)
    statement, read = _ways(schema, jobs)
    try:
        rows = await call(conn, statement, submitting.to_json(jobs))
    # Each driver has errors of its own; ours says more where it can, else theirs goes on as it is.
    except Exception as error:
        _explain(error, conn, schema, jobs)
        raise
    return read(jobs, rows)


Statement = Callable[[str], str]
"""The statement, with the parameter written as the driver wants it."""
Read = Callable[[Sequence[NewJob], Rows], list[Submitted]]


def _ways(schema: str, jobs: Sequence[NewJob]) -> tuple[Statement, Read]:
    # Asked for as these functions' columns, in this order: a row may come as a tuple, a record
    # or a mapping.
    if capping.has_caps(jobs):
        capped = f"SELECT {capping.COLUMNS} FROM {schema}.submit_capped"
        return (lambda parameter: f"{capped}({parameter})"), capping.read
    plain = f"SELECT number, id, existing, conflict FROM {schema}.submit"
    return (lambda parameter: f"{plain}({parameter})"), submitting.read


# --- synchronous ------------------------------------------------------------------------------


def _psycopg(conn: Any, statement: Statement, text: str) -> Rows:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    # A cursor of our own: the caller's may give other rows, or take other parameters.
    with Cursor(_connection_of(conn), row_factory=tuple_row) as cursor:
        return cursor.execute(statement("%s").encode(), (text,)).fetchall()


def _sqlalchemy(conn: Any, statement: Statement, text: str) -> Rows:
    _require_postgresql(conn, _dialect(conn))
    return conn.execute(_text(statement), {"jobs": text}).all()


def _django(conn: Any, statement: Statement, text: str) -> Rows:
    _require_postgresql(conn, conn.vendor)
    with conn.cursor() as cursor:
        cursor.execute(statement("%s"), [text])
        return cursor.fetchall()


def _django_cursor(cursor: Any, statement: Statement, text: str) -> Rows:
    return _django(cursor.db, statement, text)


# --- asynchronous -----------------------------------------------------------------------------


async def _async_psycopg(conn: Any, statement: Statement, text: str) -> Rows:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    async with AsyncCursor(_connection_of(conn), row_factory=tuple_row) as cursor:
        await cursor.execute(statement("%s").encode(), (text,))
        return await cursor.fetchall()


async def _asyncpg(conn: Any, statement: Statement, text: str) -> Rows:
    return await conn.fetch(statement("$1"), text)


async def _async_sqlalchemy(conn: Any, statement: Statement, text: str) -> Rows:
    _require_postgresql(conn, _dialect(_synchronous(conn)))
    return (await conn.execute(_text(statement), {"jobs": text})).all()


# --- which is it ----------------------------------------------------------------------------------

Call = Callable[[Any, Statement, str], Rows]
AsyncCall = Callable[[Any, Statement, str], Awaitable[Rows]]

# By the package and the name of a class that the connection is of, or descends from.
_SYNC: dict[tuple[str, str], Call] = {
    ("psycopg", "Connection"): _psycopg,
    ("psycopg", "Cursor"): _psycopg,
    ("psycopg", "RawCursor"): _psycopg,
    ("psycopg", "ServerCursor"): _psycopg,
    ("sqlalchemy", "Connection"): _sqlalchemy,
    ("sqlalchemy", "Session"): _sqlalchemy,
    ("sqlalchemy", "scoped_session"): _sqlalchemy,
    ("django", "BaseDatabaseWrapper"): _django,
    ("django", "ConnectionProxy"): _django,
    ("django", "CursorWrapper"): _django_cursor,
}
_ASYNC: dict[tuple[str, str], AsyncCall] = {
    ("psycopg", "AsyncConnection"): _async_psycopg,
    ("psycopg", "AsyncCursor"): _async_psycopg,
    ("psycopg", "AsyncRawCursor"): _async_psycopg,
    ("psycopg", "AsyncServerCursor"): _async_psycopg,
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
    ("sqlalchemy", "AsyncConnection"): _async_sqlalchemy,
    ("sqlalchemy", "AsyncSession"): _async_sqlalchemy,
    ("sqlalchemy", "async_scoped_session"): _async_sqlalchemy,
}


def _find(calls: dict[tuple[str, str], Any], conn: object) -> Any:
    for kind in type(conn).__mro__:
        call = calls.get((kind.__module__.partition(".")[0], kind.__name__))
        if call is not None:
            return call
    return None


def _kind(conn: object) -> str:
    return f"{type(conn).__module__}.{type(conn).__qualname__}"


def _unknown(conn: object) -> WrongConnection:
    return WrongConnection(f"conn= is a {_kind(conn)}, which cannot be used: pass {KNOWN}")


def _connection_of(conn: Any) -> Any:
    """psycopg's connection, also where a cursor of it was given."""
    return conn.connection if hasattr(conn, "fetchone") else conn


def _synchronous(conn: Any) -> Any:
    for name in ("sync_session", "sync_connection"):
        found = getattr(conn, name, None)
        if found is not None:
            return found
    raise WrongConnection(
        f"conn= ({_kind(conn)}) is not connected: enter it first (async with engine.connect())"
    )


def _dialect(conn: Any) -> str:
    bound = conn if hasattr(conn, "dialect") else conn.get_bind()
    return bound.dialect.name


def _text(statement: Statement) -> Any:
    from sqlalchemy import text

    return text(statement(":jobs"))


def _require_postgresql(conn: object, what: str) -> None:
    if what != "postgresql":
        raise WrongConnection(
            f"conn= ({_kind(conn)}) is connected to {what}, and the jobs live in PostgreSQL: pass"
            " a connection to that database"
        )


def _explain(error: Exception, conn: object, schema: str, jobs: Sequence[NewJob]) -> None:
    """Say what our part of a failure is; the rest is the caller's."""
    states = set(_states(error))
    if states & _UNDECIDED and capping.has_caps(jobs):
        groups = ", ".join(sorted({repr(cap.group) for job in jobs for cap in job.caps}))
        said = str(error).partition("\n")[0]
        raise SubmitConflict(
            f"whether there is room under the cap of {groups} cannot be decided in this transaction"
            f" ({said}): another one that ended meanwhile took or gave back a place, and this one"
            " cannot see it. Roll it back and run it again"
        ) from error
    if states & _MISSING:
        raise WrongConnection(
            f"the database behind conn= ({_kind(conn)}) has no Headgate of this version in its"
            f" schema {schema!r} ({error}): pass a connection to the database of the store, or run"
            " `headgate migrate`"
        ) from error
    if _FORBIDDEN in states:
        error.add_note(f"the role of conn= may not submit jobs; {GRANTS}")


def _states(error: BaseException | None) -> Iterator[str]:
    """The SQLSTATE of an error and of those that it wraps."""
    seen = 0
    while error is not None and seen < 5:
        for name in ("sqlstate", "pgcode"):
            state = getattr(error, name, None)
            if isinstance(state, str):
                yield state
        error = getattr(error, "orig", None) or error.__cause__
        seen += 1

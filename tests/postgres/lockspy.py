"""Every advisory lock that a store asks for, in the order in which it does.

The store's sessions find functions of ours where it calls those of the server: they tell what is
asked for, and what the session has at that moment by `pg_locks`, and then they call the server's.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from psycopg.errors import Diagnostic

import headgate
from headgate.stores.postgres.connection import Connection
from headgate.stores.postgres.url import Address
from tests.postgres.server import Server

_MARK = "asks for "
_TELL = """
CREATE FUNCTION {spy}.tell(p_waits boolean, p_alone boolean, p_class integer, p_key integer)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_context text;
BEGIN
    GET DIAGNOSTICS v_context = PG_CONTEXT;
    RAISE NOTICE USING MESSAGE = '{mark}' || json_build_object(
        'transaction', pg_backend_pid() || ' ' || transaction_timestamp(),
        'waits', p_waits, 'alone', p_alone,
        'lock', json_build_array(p_class::bigint & 4294967295, p_key::bigint & 4294967295),
        'held', (SELECT coalesce(json_agg(json_build_array(
                     l.classid::bigint, l.objid::bigint, l.mode = 'ExclusiveLock')), '[]')
                 FROM pg_locks l
                 WHERE l.pid = pg_backend_pid() AND l.locktype = 'advisory' AND l.granted),
        'wrote', pg_current_xact_id_if_assigned() IS NOT NULL,
        'context', v_context, 'query', current_query());
END $$"""
_ASK = """
CREATE FUNCTION {spy}.{name}(p_class integer, p_key integer) RETURNS {type} LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {spy}.tell({waits}, {alone}, p_class, p_key);
    {call} pg_catalog.{name}(p_class, p_key);
END $$"""
_OURS = re.compile(r"function \w+\.(\w+)\(")
"""In what PostgreSQL tells of its stack: of the schema of a store, which is on no search path."""
FOLDER = Path(headgate.__file__).parent

Lock = tuple[int, int]
"""As `pg_locks` tells it: class and key."""


@dataclass(frozen=True)
class Ask:
    """A session asks for a lock."""

    transaction: str
    waits: bool
    """False: it is only tried."""
    alone: bool
    """False: shared."""
    lock: Lock
    held: dict[Lock, bool]
    """What its transaction has at this moment, however it came by it; True: alone."""
    wrote: bool
    """It has written, or locked, a row before."""
    asks: str
    """The function of the schema that asks, or the text of the statement."""
    lines: frozenset[str]
    """Of our code, those that were being executed."""


def function(*, waits: bool, alone: bool) -> str:
    """PostgreSQL's, for a lock until the end of the transaction."""
    return f"pg_{'' if waits else 'try_'}advisory_xact_lock{'' if alone else '_shared'}"


def _ask(text: str) -> Ask:
    """What one of our functions told, in the thread that made it ask."""
    told: dict[str, Any] = json.loads(text.removeprefix(_MARK))
    stack: list[str] = _OURS.findall(told["context"])
    return Ask(
        told["transaction"], told["waits"], told["alone"], tuple(told["lock"]),
        _held(told["held"]), told["wrote"], stack[0] if stack else told["query"],
        frozenset(_lines(sys._getframe())),
    )  # fmt: skip


def _held(rows: list[tuple[int, int, bool]]) -> dict[Lock, bool]:
    held: dict[Lock, bool] = {}
    for of_class, key, alone in rows:  # who shares a lock may have it alone as well
        held[of_class, key] = alone or held.get((of_class, key), False)
    return held


def _lines(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(FOLDER):
            yield f"{path.relative_to(FOLDER)}:{frame.f_lineno}"
        frame = frame.f_back


@contextmanager
def spied(server: Server) -> Iterator[tuple[str, list[Ask]]]:
    """The url of an empty store, and what the sessions that are opened here ask for."""
    name = f"spy_{secrets.token_hex(6)}"
    made = [f"CREATE SCHEMA {name}", _TELL.format(spy=name, mark=_MARK)]
    for waits in (False, True):
        for alone in (False, True):
            made.append(
                _ASK.format(
                    spy=name, name=function(waits=waits, alone=alone), waits=waits, alone=alone,
                    type="void" if waits else "boolean", call="PERFORM" if waits else "RETURN",
                )
            )  # fmt: skip
    server.run(*made)
    asks: list[Ask] = []

    def hear(said: Diagnostic) -> None:
        if (said.message_primary or "").startswith(_MARK):
            asks.append(_ask(said.message_primary or ""))

    opened = Connection.open.__func__  # type: ignore[attr-defined]

    def open(cls: type[Connection], address: Address) -> Connection:
        connection: Connection = opened(cls, address)
        connection.add_notice_handler(hear)
        return connection

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "open", classmethod(open))
            yield server.fresh(options=f"-c search_path={name},pg_catalog"), asks
    finally:
        server.run(f"DROP SCHEMA {name} CASCADE")

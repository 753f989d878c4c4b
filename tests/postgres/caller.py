"""Somebody with a transaction of their own, who submits in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from headgate.errors import SubmitConflict
from headgate.jobs import CapUse, NewJob, Submitted
from headgate.stores.postgres.url import parse
from tests.conformance.conftest import Rig

LEVELS = [
    IsolationLevel.READ_COMMITTED,
    IsolationLevel.REPEATABLE_READ,
    IsolationLevel.SERIALIZABLE,
]
at_every_level = pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name.lower())


class Caller:
    """Somebody's transaction. It sees the moment of its first statement."""

    def __init__(self, rig: Rig, level: IsolationLevel = LEVELS[0]) -> None:
        self._rig = rig
        self.connection = psycopg.connect(parse(rig.store.url).conninfo)
        self.connection.isolation_level = level

    def begin(self) -> None:
        self.connection.execute("SELECT count(*) FROM pg_class").fetchall()

    def submit(self, *caps: CapUse, count: int = 1, **fields: Any) -> list[Submitted]:
        jobs = [NewJob("task", caps=caps, **fields) for _ in range(count)]
        return self._rig.store.submit_with(self.connection, jobs)

    def one(self, *caps: CapUse, **fields: Any) -> Submitted:
        (done,) = self.submit(*caps, **fields)
        return done

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def cap(total: int | None = 1, group: str = "tenant/acme", **more: Any) -> CapUse:
    return CapUse(group, max_total=total, **more)


def until_decided(caller: Caller, decide: Callable[[], Submitted]) -> Submitted:
    """Run the transaction again until it comes to an end, as its author would."""
    while True:
        try:
            done = decide()
            caller.commit()
        except (SubmitConflict, psycopg.errors.SerializationFailure):
            caller.rollback()
        else:
            return done

"""One connection to the server: rows by name, and never a wait without an end."""

from __future__ import annotations

import functools
import itertools
import select
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import psycopg
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8Dumper
from psycopg.waiting import Ready, Wait

from headgate.errors import ConfigError, StoreVersion
from headgate.stores.postgres.trouble import NoAnswer
from headgate.stores.postgres.url import Address

T = TypeVar("T")

STATEMENT_TIMEOUT = 30.0
LOCK_TIMEOUT = 10.0
IDLE_TIMEOUT = 60.0
"""Seconds after which the server ends a statement, a wait for a lock, and a transaction in
which nothing happens."""
PATIENCE = STATEMENT_TIMEOUT + 5.0
"""Seconds after which an answer does not come any more: the server itself would have given up.
Behind a network that swallows everything, nothing else would ever end the wait."""
BEGIN_PATIENCE = 5.0
"""Seconds for the answer to the first message of a transaction, which takes the server no time:
a connection that has become a dead end shows here, before anything was done."""
CONNECT_TIMEOUT = 5
MINIMUM_VERSION = 150000
SETTINGS = {
    # A claim that the planner thinks expensive would be compiled for a second, every time.
    "jit": "off",
    # Whatever the role or the database prefers: what is read after a lock must be what its former
    # holder left, in statements that are their own transactions too.
    "default_transaction_isolation": "read committed",
    "statement_timeout": f"{STATEMENT_TIMEOUT * 1000:.0f}",
    "lock_timeout": f"{LOCK_TIMEOUT * 1000:.0f}",
    "idle_in_transaction_session_timeout": f"{IDLE_TIMEOUT * 1000:.0f}",
}
_SOCKET = {
    "connect_timeout": CONNECT_TIMEOUT,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "headgate",
}
_EVENTS = {
    Wait.R: select.POLLIN,
    Wait.W: select.POLLOUT,
    Wait.RW: select.POLLIN | select.POLLOUT,
}


class Row(tuple[Any, ...]):
    """A row, by the names of its columns or by their places."""

    __slots__ = ()
    _places: dict[str, int] = {}  # noqa: RUF012 - each kind of row has its own

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self._places[key] if type(key) is str else key)

    def keys(self) -> list[str]:
        return list(self._places)


@functools.lru_cache(1000)
def _kind(names: tuple[str, ...]) -> type[Row]:
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        places.setdefault(name, place)
    return type("Row", (Row,), {"__slots__": (), "_places": places})


def rows(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], Row]:
    result = cursor.pgresult
    if result is None or not result.nfields:
        return Row
    names = [result.fname(n) or b"" for n in range(result.nfields)]
    return _kind(tuple(name.decode() for name in names))


Question = tuple[bytes, Sequence[str | float | None]]
"""A statement in the server's form, and its parameters."""


def _wire(value: str | float | None) -> bytes | None:
    """A parameter as a text, of whatever type the statement says it is."""
    if value is None or isinstance(value, bool):
        return None if value is None else b"t" if value else b"f"
    if not isinstance(value, str):
        # Not as a subclass shows itself: a member of an IntEnum is its number.
        value = int.__repr__(value) if isinstance(value, int) else float.__repr__(value)
    data = value.encode()
    if b"\0" in data:  # the library would cut it off there
        raise psycopg.DataError("PostgreSQL texts cannot hold a NUL character")
    return data


class Cursor(psycopg.RawCursor[Row]):
    """Takes statements as the server does, with $1."""


class Connection(psycopg.Connection[Row]):
    """In autocommit: who wants a transaction begins it, in the same message as its first look."""

    patience = PATIENCE
    pooled = False
    """Another session may stand behind every transaction: nothing set here lasts."""
    used = 0.0
    """When it was last given back."""
    _prepared_by_us: dict[bytes, bytes]
    """The statements that `ask` has prepared, and under which names."""
    _names: Iterator[int]

    @classmethod
    def open(cls, address: Address) -> Connection:
        """A new connection. Raises psycopg's errors, and ours for a server that is too old."""
        try:
            given = conninfo_to_dict(address.conninfo)
        except psycopg.ProgrammingError as error:
            raise ConfigError(f"{address.shown}: {_first_line(error)}") from None
        wanted: dict[str, Any] = {k: v for k, v in _SOCKET.items() if k not in given}
        connection = cast(
            "Connection",
            cls.connect(
                address.conninfo, autocommit=True, row_factory=rows, prepare_threshold=None,
                cursor_factory=Cursor, **wanted,
            ),
        )  # fmt: skip
        try:
            connection._settle(address)
        except BaseException:
            connection.close()
            raise
        return connection

    def _settle(self, address: Address) -> None:
        version = self.info.server_version
        if version < MINIMUM_VERSION:
            raise StoreVersion(
                f"{address.shown} is PostgreSQL {version // 10000}; Headgate needs"
                f" {MINIMUM_VERSION // 10000} or newer"
            )
        # Numbers always as bigint: by their size they would be of three types, and a statement
        # prepared for one is not found for another.
        self.adapters.register_dumper(int, Int8Dumper)
        self._prepared_by_us, self._names = {}, itertools.count()
        pooled = address.pooled
        if pooled is None:
            # A pooler tells its clients a process that is not the one which answers.
            (backend,) = self.execute("SELECT pg_backend_pid()").fetchone() or (0,)
            pooled = backend != self.info.backend_pid
        self.pooled = pooled
        if not pooled:
            script = "; ".join(f"SET {name} = '{value}'" for name, value in SETTINGS.items())
            self.execute(script.encode())
            self.prepare_threshold = 5

    def wait(self, gen: PQGen[T], interval: float = 0.0, timeout: float | None = None) -> T:
        """Drive what psycopg does on the socket, but not for ever."""
        deadline = time.monotonic() + (self.patience if timeout is None else timeout)
        try:
            wanted = next(gen)
            while True:
                events = self._poll(_EVENTS[wanted], deadline)
                ready = Ready.NONE
                if events & ~select.POLLOUT:
                    ready |= Ready.R
                if events & select.POLLOUT:
                    ready |= Ready.W
                wanted = gen.send(Ready(ready))
        except StopIteration as end:
            return end.value

    def _poll(self, events: int, deadline: float) -> int:
        poll = select.poll()
        poll.register(self.pgconn.socket, events)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                # What was sent may still be done by the server: this end is not known, and
                # the connection cannot be used for anything else.
                self.pgconn.finish()
                raise NoAnswer("the server did not answer in time")
            ready = poll.poll(left * 1000)
            if ready:
                return ready[0][1]

    def say(self, text: bytes, patience: float | None = None) -> list[PGresult]:
        """Send a script without parameters, and take what every statement in it answers,
        up to the first that failed."""
        deadline = time.monotonic() + (self.patience if patience is None else patience)
        pgconn = self.pgconn
        pgconn.send_query(text)
        while pgconn.flush():
            self._poll(select.POLLIN | select.POLLOUT, deadline)
            pgconn.consume_input()
        results: list[PGresult] = []
        while True:
            while pgconn.is_busy():
                self._poll(select.POLLIN, deadline)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                return results
            results.append(result)

    def ask(self, questions: Sequence[Question]) -> list[PGresult]:
        """Send statements with their parameters in one message, and take what each answers, a
        failure too. Each is a transaction of its own and begins after the one before has ended.

        Should the connection be lost on the way, the answers are those that had come in; without
        any, it is an error. (psycopg's own pipeline waits for the first before it sends the next.)
        """
        deadline = time.monotonic() + self.patience
        pgconn = self.pgconn
        answers: list[PGresult] = []
        try:
            pgconn.enter_pipeline_mode()
            for text, values in questions:
                name = self._prepared_by_us.get(text)
                if name is None:
                    name = b"headgate_%d" % next(self._names)
                    pgconn.send_prepare(name, text)
                    self._prepared_by_us[text] = name
                pgconn.send_query_prepared(name, [_wire(value) for value in values])
                pgconn.pipeline_sync()
            while pgconn.flush():
                self._poll(select.POLLIN | select.POLLOUT, deadline)
                pgconn.consume_input()
            for text, _ in questions:
                answer = self._answer(deadline)
                if answer.status == pq.ExecStatus.FATAL_ERROR:
                    # It may be that it could not be prepared, or is so no more.
                    self._prepared_by_us.pop(text, None)
                answers.append(answer)
            pgconn.exit_pipeline_mode()
        except psycopg.Error:
            self.close()
            if not answers:
                raise
        except BaseException:
            self.close()
            raise
        return answers

    def _answer(self, deadline: float) -> PGresult:
        """What one statement of a pipeline answers: the last before the mark that ends it."""
        pgconn = self.pgconn
        last: PGresult | None = None
        while True:
            while pgconn.is_busy():
                self._poll(select.POLLIN, deadline)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                if pgconn.status == pq.ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection was lost")
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                assert last is not None
                return last
            elif result.status != pq.ExecStatus.PIPELINE_ABORTED:
                last = result

    @property
    def idle(self) -> bool:
        return not self.closed and self.pgconn.transaction_status == pq.TransactionStatus.IDLE

    @property
    def silent(self) -> bool:
        """Nothing has come in since it was given back: a server that closed the connection
        would have said so."""
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return not poll.poll(0)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

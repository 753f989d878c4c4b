"""The connections of one process: a few, each used by one thread at a time, none that is broken."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from psycopg import pq

from headgate.errors import StoreBusy, StoreError
from headgate.stores.postgres.connection import BEGIN_PATIENCE, PATIENCE, Connection
from headgate.stores.postgres.trouble import translate, unreachable
from headgate.stores.postgres.url import Address

POOL_TIMEOUT = 30.0
"""Seconds for which a call waits for one of our own connections to be given back."""
RESTED = 5.0
"""Seconds without use after which a connection may have become such a dead end."""
KEEP = 60.0
"""Seconds for which a connection that nobody uses is kept."""

_abandoned: list[Connection] = []
"""A parent's connections in a forked child: kept, so that nothing ever closes them."""


class Pool:
    """Any thread may use it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.url = address.shown
        self.pooled = bool(address.pooled)
        """There is a pooler between us and the server: sessions are not our own."""
        self._idle: list[Connection] = []
        self._lock = threading.Condition()
        self._users = 0
        self._pid = os.getpid()
        self._closed = False
        self._own = threading.local()

    def connect(self) -> Connection:
        """A connection that does not belong to the pool."""
        try:
            connection = Connection.open(self.address)
        except psycopg.Error as error:
            raise unreachable(error, self.url) from error
        self.pooled = connection.pooled
        return connection

    def _after_fork(self) -> None:
        """The child must not speak in the parent's sessions, nor end them by closing them, nor
        wait for a lock that a thread of the parent held: it opens its own."""
        _abandoned.extend(self._idle)
        self._pid, self._idle, self._users = os.getpid(), [], 0
        self._lock = threading.Condition()

    @contextmanager
    def session(self) -> Generator[Connection]:
        """A connection of the pool, or of this thread's own, with no transaction, for the time of
        the block."""
        own: Connection | None = getattr(self._own, "connection", None)
        if own is not None and own.idle:
            try:
                yield own
            except psycopg.Error as error:
                raise translate(error, self.url) from error
            return
        connection = self._take_proven()
        try:
            yield connection
        except psycopg.Error as error:
            raise translate(error, self.url) from error
        finally:
            self.give_back(connection)

    @contextmanager
    def through(self, connection: Connection) -> Generator[None]:
        """For the time of the block this thread's sessions are on a connection of its own, which
        has just been heard from; transactions of more than one message are not."""
        patience, connection.patience = connection.patience, PATIENCE
        self._own.connection = connection
        try:
            yield
        finally:
            self._own.connection = None
            connection.patience = patience

    def _take_proven(self) -> Connection:
        """One that leads somewhere: of a statement that is a transaction of its own and gets no
        answer, nobody could say whether it was done. So one that has rested is asked first."""
        connection = self.take()
        if not connection.used or time.monotonic() - connection.used < RESTED:
            return connection
        try:
            answer = connection.say(b"", BEGIN_PATIENCE)
        except BaseException as error:
            connection.close()
            self.give_back(connection)
            if not isinstance(error, psycopg.Error):
                raise
        else:
            if answer and answer[0].status == pq.ExecStatus.EMPTY_QUERY:
                return connection
            connection.close()
            self.give_back(connection)
        return self.take(fresh=True)

    def take(self, *, fresh: bool = False) -> Connection:
        if self._pid != os.getpid():
            self._after_fork()
        stale: list[Connection] = []
        with self._lock:
            if not self._lock.wait_for(self._may_take, POOL_TIMEOUT):
                raise StoreBusy(
                    f"{self.url}: all {self.address.pool} connections of this process were in use"
                    f" for {POOL_TIMEOUT:g} s; add ?pool=N to the url for more"
                )
            if self._closed:
                raise StoreError(f"the store {self.url} is closed")
            self._users += 1
            connection = None
            while self._idle and connection is None:
                found = self._idle.pop()
                if found.silent and not fresh:
                    connection = found
                else:
                    stale.append(found)
        for found in stale:
            found.close()
        try:
            return connection or self.connect()
        except BaseException:
            with self._lock:
                self._users -= 1
                self._lock.notify_all()
            raise

    def _may_take(self) -> bool:
        return self._closed or self._users < self.address.pool

    def give_back(self, connection: Connection) -> None:
        """Only if it is whole and has no transaction open: whatever went wrong, the next user
        finds nothing of it."""
        connection.patience = PATIENCE
        now = time.monotonic()
        keep = connection.idle
        connection.used = now
        old: list[Connection] = [] if keep else [connection]
        with self._lock:
            self._users -= 1
            if keep and not self._closed:
                self._idle.append(connection)
            elif keep:
                old.append(connection)
            # The one given back last is used next, so those at the front have rested longest.
            while self._idle and now - self._idle[0].used > KEEP:
                old.append(self._idle.pop(0))
            self._lock.notify_all()
        for found in old:
            found.close()

    def close(self) -> None:
        """Refuse new transactions, let those under way end, then close every connection."""
        if self._pid != os.getpid():
            self._after_fork()
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            self._lock.wait_for(lambda: self._users == 0)
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

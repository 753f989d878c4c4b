"""Wake-ups between machines: LISTEN and NOTIFY, but only while somebody listens.

A notification takes a lock that all databases of the server share, so nobody sends one unless
an *ear* is open: a row in `ears` that says who sleeps until what rings, for the next seconds.
One thread and one connection of a process listen for all its bells and keep the ears open of
those on which somebody really waits.

Why no ring is lost. Who changes something commits, and only then looks for an ear (see
`Database._commit`). Who goes to sleep opens its ear, and is then rung once by ourselves, so
that it looks once more. Of these two, commit-then-look-for-an-ear and open-an-ear-then-look-for-
work, the later one finds what the other left.
"""

from __future__ import annotations

import logging
import math
import os
import random
import select
import socket
import threading
import time
import uuid

import psycopg

from headgate.backoff import grown, worth_telling
from headgate.errors import StoreError
from headgate.stores.postgres.connection import Connection
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.hearing import PollingBell, ServerBell
from headgate.stores.postgres.parameters import prepare
from headgate.stores.sqlite.bell import BELLS, MemoryBell

log = logging.getLogger("headgate.store")

EAR = 3.0
"""Seconds for which an ear stays open unless it is renewed."""
RENEW = 1.0
"""Seconds between renewals."""
PATIENCE = 5.0
FIRST = 2.0
"""Seconds for which a new bell waits until its ear is open."""
LINGER = 30.0
"""Seconds for which the connection is kept when no bell is left."""
_LONGEST_BACKOFF = 5.0

# An ear is seen at once in any case; whether it outlives a crash is all the same.
_OPEN = """
INSERT INTO headgate.ears (what, listener, ends)
SELECT what, :me, extract(epoch FROM clock_timestamp()) + :seconds
FROM unnest(:what::text[]) AS what, set_config('synchronous_commit', 'off', true) AS lazily
ON CONFLICT (what, listener) DO UPDATE SET ends = excluded.ends
"""
_SHUT = "DELETE FROM headgate.ears WHERE listener = :me"
_FORGET = "DELETE FROM headgate.ears WHERE ends < extract(epoch FROM clock_timestamp()) - 60"


class Bells:
    """The bells of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._me = f"{socket.gethostname()}:{self._pid}:{uuid.uuid4().hex[:8]}"
        self._bells: dict[str, list[MemoryBell]] = {what: [] for what in BELLS}
        self._open: dict[str, float] = {}
        """Until when, on our monotonic clock, each ear is open for certain."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.serving = False
        self._wakes_at = math.inf
        """When the listener looks at orders next, whatever happens."""
        self._closing = False
        pokers: list[MemoryBell] = []
        self._poker = MemoryBell(pokers)
        """Rung to make the listener look at what has changed here."""
        pokers.append(self._poker)

    # --- for the store ----------------------------------------------------------------

    def ring(self, what: str) -> None:
        self._database.call("SELECT headgate.ring(?)", (what,))

    def listen(self, what: str) -> ServerBell | PollingBell:
        """The ear is open when this returns, if the server can be reached; else it is opened
        as soon as it can, and the bell rung then."""
        if what not in BELLS:
            raise ValueError(f"no bell {what!r}: there are {BELLS}")
        if self._database.pool.pooled or not self._database.address.listen:
            return PollingBell()
        if self._pid != os.getpid():
            self._reset()  # the parent's thread and connection stayed with the parent
        with self._changed:
            bell = ServerBell(self, what, self._bells[what])
            self._bells[what].append(bell)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="headgate-listener", daemon=True
                )
                self._thread.start()
            self._poker.ring()
            if self._changed.wait_for(lambda: self._is_open(what), FIRST):
                bell.drain()  # the caller has not looked yet
        return bell

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        with self._changed:
            self._closing = True
            thread = self._thread
            self._poker.ring()
        if thread is not None:
            thread.join(PATIENCE + 1)
        if thread is None or not thread.is_alive():
            self._poker.close()  # else it is read from, once more

    # --- for the bells ----------------------------------------------------------------

    def attend(self, what: str) -> None:
        """Somebody waits again: if its ear has closed meanwhile, or soon will, open it now."""
        if self._open.get(what, 0.0) - time.monotonic() < RENEW:
            self._poker.ring()

    def looks_by(self, time: float) -> bool:
        with self._changed:
            if self.serving and time < self._wakes_at:
                self._poker.ring()
            return self.serving

    def _is_open(self, what: str) -> bool:
        return self._open.get(what, 0.0) > time.monotonic()

    # --- the listener -----------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while True:
            try:
                connection = self._connect()
            except (StoreError, psycopg.Error) as error:
                failures += 1
                if worth_telling(failures):
                    log.warning("cannot listen for wake-ups (%s); trying again", error)
            else:
                failures = 0
                try:
                    if self._serve(connection):
                        return
                except psycopg.Error as error:
                    log.warning("the connection for wake-ups was lost (%s)", _line(error))
                finally:
                    self._lay_down()
                    connection.close()
            pause = grown(failures, 0.1, _LONGEST_BACKOFF)
            self._rest(pause * random.uniform(0.5, 1.0))
            if self._ended():
                return

    def _connect(self) -> Connection:
        connection = self._database.connect()
        try:
            connection.patience = PATIENCE
            # For those that come in while a statement is under way.
            connection.add_notify_handler(lambda notify: self._ring(notify.payload))
            connection.execute(self._statement(f'LISTEN "{self._database.schema}.bells"')[0])
            connection.execute(*self._statement(_FORGET))
        except BaseException:
            connection.close()
            raise
        return connection

    def _serve(self, connection: Connection) -> bool:
        """Hear and ring until the connection is lost (an error) or nobody needs it (True)."""
        # Whatever was open before belongs to a connection that may have missed its rings.
        self._open.clear()
        alone_since = time.monotonic()
        poll = select.poll()
        poll.register(connection.pgconn.socket, select.POLLIN)
        poker = self._poker.fileno()
        assert poker is not None
        poll.register(poker, select.POLLIN)
        self.serving = True
        while True:
            if any(self._bells.values()):
                alone_since = time.monotonic()
            if self._closing or time.monotonic() - alone_since > LINGER:
                # Shut first: a listener started after the decision uses the same rows.
                self._say(connection, _SHUT)
                self._open.clear()
                if self._ended():
                    return True
            self._keep_open(connection)
            # What came in beside the answer to an order is not to be read from the socket any more.
            self._ring_told(connection)
            for fd, _ in poll.poll(self._pause() * 1000):
                if fd == connection.pgconn.socket:
                    connection.pgconn.consume_input()
            self._poker.drain()
            self._ring_told(connection)
            self._obey(connection)

    def _ring_told(self, connection: Connection) -> None:
        while told := connection.pgconn.notifies():
            self._ring(told.extra.decode())

    def _pause(self) -> float:
        """Seconds until something is to be done here."""
        # An order that comes in while this is reckoned is not in it: its giver pokes us, then.
        self._wakes_at = math.inf
        now = time.monotonic()
        pause = min([RENEW, *(due for bell in self._ours() if (due := bell.due(now)) is not None)])
        self._wakes_at = now + pause
        return pause

    def _obey(self, connection: Connection) -> None:
        """Carry out the orders whose time has come, through the connection that is awake now."""
        for bell in self._ours():
            if bell.due(time.monotonic()) == 0:
                try:
                    with self._database.pool.through(connection):
                        bell.obey()
                except Exception:
                    # Whatever one of them brings, the others are heard.
                    log.exception("an order could not be carried out")
                if connection.closed:
                    raise psycopg.OperationalError("the connection was lost")

    def _lay_down(self) -> None:
        """Nobody is heard, so nobody's orders are carried out."""
        with self._changed:
            if self._thread in (None, threading.current_thread()):  # not one that came after us
                self.serving = False
        for bell in self._ours():
            bell.dismiss()

    def _ours(self) -> list[ServerBell]:
        every = [bell for bells in self._bells.values() for bell in list(bells)]
        return [bell for bell in every if isinstance(bell, ServerBell)]

    def _keep_open(self, connection: Connection) -> None:
        """Renew the ears on which somebody waits. One that had closed may have missed a ring:
        who waits on it looks once more, now that it is open."""
        now = time.monotonic()
        due = [
            what
            for what, bells in self._bells.items()
            if any(isinstance(bell, ServerBell) and not bell.busy for bell in list(bells))
            and self._open.get(what, 0.0) - now <= EAR - RENEW * 0.9
        ]
        if not due:
            return
        self._say(connection, _OPEN, what=due, seconds=EAR)
        reopened = [what for what in due if not self._is_open(what)]
        for what in reopened:
            self._ring(what)
        with self._changed:
            for what in due:
                self._open[what] = now + EAR
            self._changed.notify_all()

    def _ring(self, what: str) -> None:
        for bell in list(self._bells.get(what, ())):
            bell.ring()

    def _say(self, connection: Connection, sql: str, **params: object) -> None:
        connection.execute(*self._statement(sql, me=self._me, **params))

    def _statement(self, sql: str, **params: object) -> tuple[bytes, list[object] | None]:
        statement = prepare(sql, self._database.schema)
        return statement.text, [params[name] for name in statement.names] or None

    def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._closing and (left := deadline - time.monotonic()) > 0:
            self._poker.wait(left)

    def _ended(self) -> bool:
        """Is the listener to end? Decided under the lock: who opens a bell after that finds no
        thread and starts one."""
        with self._changed:
            if self._closing or not any(self._bells.values()):
                self._thread = None
                return True
            return False


def _line(error: Exception) -> str:
    return " ".join(str(error).split())

"""The warden: a small process round one ward, which runs the code of isolated tasks.

It passes frames between the worker and the ward, and replaces a ward that died or has to go.
What every warden does, and how it is started, stands in `headgate.worker.wardship`; the files
by which the store knows that the worker lives are held open and no more.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Collection, Sequence

from headgate import kernel
from headgate.worker.frames import DATA, DIED, ENDED, LAST, RUN, Frame, Outlet, Unpacker
from headgate.worker.wardship import Warden, stand_watch


class WardWarden(Warden):
    def __init__(self, worker: socket.socket, parent: int, fds: Sequence[int]) -> None:
        super().__init__(worker, parent, fds)
        self._ward_sock: socket.socket | None = None
        self._to_ward: Outlet | None = None
        self._from_ward = Unpacker()
        self._busy = False

    def _begin(self) -> None:
        self._start_ward()

    def _watch(self) -> None:
        super()._watch()
        if self._ward_sock is not None and self._to_ward is not None:
            self._watch_writes(self._ward_sock, self._to_ward)

    # --- the ward --------------------------------------------------------------------------

    def _start_ward(self) -> None:
        ours, theirs = socket.socketpair()
        me = os.getpid()
        # A bare fork is safe here: this process has one thread and has imported no user code.
        pid = os.fork()
        if pid == 0:
            self._become_ward(theirs, ours, me)
        theirs.close()
        ours.setblocking(False)
        self._child, self._code = pid, None
        self._ward_sock, self._to_ward, self._from_ward = ours, Outlet(ours), Unpacker()
        self._selector.register(ours, selectors.EVENT_READ)

    def _become_ward(self, sock: socket.socket, other: socket.socket, parent: int) -> None:
        code = 1
        try:
            os.setsid()
            kernel.die_with_parent(parent)
            self._signals.close()
            self._selector.close()
            other.close()
            self._worker.close()
            from headgate.worker.ward import Ward

            code = Ward(sock).run()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # never back into the warden's own stack

    def _over(self) -> None:
        """Whatever it still said comes first, then its exit; then a fresh one is started."""
        assert self._ward_sock is not None
        self._kill_below()
        code = self._code
        self._forget_child()
        ended = self._drain_ward()
        self._selector.unregister(self._ward_sock)
        self._ward_sock.close()
        self._ward_sock = self._to_ward = None
        busy, self._busy = self._busy, False
        if busy:
            if not ended:
                self._to_worker.put(DIED, str(code).encode())
            self._start_ward()
        # One that died with nothing to do is replaced when there is something: a module
        # that crashes at import must not make us fork for ever.

    def _drain_ward(self) -> bool:
        """Pass on what lies in the socket of a dead ward; did it tell how it ended?"""
        assert self._ward_sock is not None
        ended = False
        while True:
            try:
                data = self._ward_sock.recv(1 << 20)
            except (BlockingIOError, ConnectionResetError):
                return ended
            if not data:
                return ended
            for kind, payload in self._from_ward.feed(data):
                ended = ended or kind in (ENDED, LAST)
                self._to_worker.put(ENDED if kind == LAST else kind, payload)

    # --- frames ------------------------------------------------------------------------------

    def _told(self, kind: int, payload: bytes) -> None:
        if self._to_ward is None:
            self._start_ward()
        assert self._to_ward is not None
        self._busy = self._busy or kind == RUN
        self._to_ward.put(kind, payload)

    def _terminate(self) -> None:
        # It may have ended meanwhile; then its exit is on its way.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child, signal.SIGTERM)

    def _hear(self, ready: Collection[object]) -> None:
        if self._ward_sock is not None and self._ward_sock in ready:
            self._read_ward()
        if self._to_ward is not None:
            self._to_ward.flush()

    def _read_ward(self) -> None:
        assert self._ward_sock is not None
        try:
            data = self._ward_sock.recv(1 << 20)
        except (BlockingIOError, ConnectionResetError):
            return
        if not data:
            # It closed its end: it is dying, or its code has closed all files. Either way it
            # can tell us nothing any more.
            self._kill_below()
            return
        for frame in self._from_ward.feed(data):
            self._pass_on(frame)

    def _pass_on(self, frame: Frame) -> None:
        kind, payload = frame
        if kind == DATA:
            self._to_worker.put(kind, payload)
            return
        self._busy = False
        # The code has ended; now what it started has to end too. A ward whose job left
        # something behind is replaced: what was killed may be part of its own machinery.
        left = [p for p in kernel.below(os.getpid()) if p.pid != self._child]
        if kind == LAST or left or self._kill_at is not None:
            self._kill_below()
            self._replace_ward()
        self._to_worker.put(ENDED, payload)

    def _replace_ward(self) -> None:
        assert self._ward_sock is not None
        self._selector.unregister(self._ward_sock)
        self._ward_sock.close()
        self._ward_sock = self._to_ward = None
        self._forget_child()
        self._start_ward()


if __name__ == "__main__":
    sys.exit(stand_watch(WardWarden, sys.argv[1:]))

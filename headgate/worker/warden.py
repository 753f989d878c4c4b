"""The warden: a small process round one ward, which runs the code of isolated tasks.

Between the worker and the code it sees to it that nothing of an attempt is left when its
end is told: it adopts whatever the ward leaves behind, kills it, reaps it, and only then
passes the end on. It runs no user code, so no crash of that takes it along.

Started as `python -m headgate.worker.warden SOCKET PARENT FILE…` by the worker; the files, by
which the store knows that the worker lives, are held open and no more.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence

from headgate import kernel
from headgate.worker.frames import DATA, DIED, ENDED, LAST, RUN, STOP, Frame, Outlet, Unpacker


class Warden:
    def __init__(self, worker: socket.socket, parent: int) -> None:
        self._worker = worker
        self._worker.setblocking(False)
        self._parent = parent
        self._to_worker = Outlet(worker)
        self._from_worker = Unpacker()
        self._ward = 0
        self._ward_code: int | None = None
        self._ward_sock: socket.socket | None = None
        self._to_ward: Outlet | None = None
        self._from_ward = Unpacker()
        self._kill_at: float | None = None
        self._busy = False

    def run(self) -> int:
        kernel.adopt_orphans()
        # The worker's death reaches us as SIGTERM, not SIGKILL: we hold its files, so its
        # slots stay taken until we have killed what runs below us, whoever else died.
        self._signals = kernel.Signals((signal.SIGTERM, signal.SIGCHLD))
        kernel.die_with_parent(self._parent, signal.SIGTERM)
        try:
            with selectors.DefaultSelector() as selector:
                self._selector = selector
                selector.register(self._worker, selectors.EVENT_READ)
                selector.register(self._signals, selectors.EVENT_READ)
                self._start_ward()
                while self._step():
                    pass
        finally:
            self._kill_below()
        return 0

    def _step(self) -> bool:
        self._watch_writes()
        ready = {key.fileobj for key, _ in self._selector.select(self._sleep())}
        if self._signals in ready and signal.SIGTERM in self._signals.take():
            return False
        if self._worker in ready and not self._read_worker():
            return False
        if self._ward_sock is not None and self._ward_sock in ready:
            self._read_ward()
        self._to_worker.flush()
        if self._to_ward is not None:
            self._to_ward.flush()
        for pid, code in kernel.reap():
            self._reaped(pid, code)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_below()
        if self._ward_code is not None:
            self._ward_died()
        return True

    def _sleep(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _watch_writes(self) -> None:
        pairs = [(self._worker, self._to_worker)]
        if self._ward_sock is not None and self._to_ward is not None:
            pairs.append((self._ward_sock, self._to_ward))
        for sock, outlet in pairs:
            write = selectors.EVENT_WRITE if outlet.pending else 0
            self._selector.modify(sock, selectors.EVENT_READ | write)

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
        self._ward, self._ward_code = pid, None
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

    def _reaped(self, pid: int, code: int) -> None:
        if pid == self._ward:
            self._ward_code = code

    def _ward_died(self) -> None:
        """Whatever it still said comes first, then its exit; then a fresh one is started."""
        assert self._ward_sock is not None
        self._kill_below()
        code = self._ward_code
        self._ward, self._ward_code, self._kill_at = 0, None, None
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

    def _kill_below(self) -> None:
        me = os.getpid()
        kernel.kill_until_none(lambda: kernel.below(me), self._reaped)

    # --- frames ------------------------------------------------------------------------------

    def _read_worker(self) -> bool:
        """False: the worker has closed its end, or is gone."""
        try:
            data = self._worker.recv(1 << 20)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        for kind, payload in self._from_worker.feed(data):
            if kind == STOP:
                self._stop_ward(int(payload) / 1000)
                continue
            if self._to_ward is None:
                self._start_ward()
            assert self._to_ward is not None
            self._busy = self._busy or kind == RUN
            self._to_ward.put(kind, payload)
        return bool(data)

    def _stop_ward(self, grace: float) -> None:
        if grace > 0 and self._ward:
            try:
                os.killpg(self._ward, signal.SIGTERM)
            except ProcessLookupError:
                pass  # it has ended meanwhile; its exit is on its way
        soon = time.monotonic() + grace
        self._kill_at = soon if self._kill_at is None else min(self._kill_at, soon)

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
        left = [p for p in kernel.below(os.getpid()) if p.pid != self._ward]
        if kind == LAST or left or self._kill_at is not None:
            self._kill_below()
            self._replace_ward()
        self._to_worker.put(ENDED, payload)

    def _replace_ward(self) -> None:
        assert self._ward_sock is not None
        self._selector.unregister(self._ward_sock)
        self._ward_sock.close()
        self._ward_sock = self._to_ward = None
        self._ward, self._ward_code, self._kill_at = 0, None, None
        self._start_ward()


def main(arguments: Sequence[str]) -> int:
    fd, parent, *_ = map(int, arguments)
    os.set_inheritable(fd, False)
    return Warden(socket.socket(fileno=fd), parent).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The guard: the process the user started. It needs no store and decides almost nothing.

It is the dead-man switch of the keeper. It holds the files by which the store knows that
the workers live, so their slots stay taken until everything below is really gone, whoever
was killed. It adopts orphans, so nothing below can escape it, with setsid or without.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from headgate import kernel
from headgate.clock import Clock
from headgate.worker.board import Board
from headgate.worker.channel import Channel, Message
from headgate.worker.lease import guard_timeout, must_kill, over

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SECOND_STOP = 10.0
"""Seconds for the keeper to end everything after a second signal."""
_LAST_WORD = 6.0
"""Seconds for the keeper to report what outlived its lease."""
_PAUSE = 0.02


def say(text: str) -> None:
    """A line for the user, on stderr."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        pass  # the reader of stderr is gone, which is no reason to let go of the workers


class Guard:
    """Starts the keeper with `argv` and outlives it.

    `argv` gets three more arguments: the channel's descriptor, the board's, and our pid.
    """

    def __init__(
        self,
        argv: Sequence[str],
        board: Board,
        hello: Message,
        *,
        patience: float = 60.0,
        clock: Clock | None = None,
        tell: Callable[[str], None] = say,
        orders: Mapping[int, str] | None = None,
        called: str = "headgate worker",
    ) -> None:
        self._argv = argv
        self._board = board
        self._hello = hello
        self._patience = patience
        """Seconds the keeper may take to stop after the first signal."""
        self._clock = clock or Clock()
        self._tell = tell
        self._called = called
        """By what command the user knows us."""
        self._orders = orders or {}
        """By signal, what is passed on to the app in the worker processes."""
        self._foreign: list[int] = []
        """Children that were here before us, which are not ours to kill: a shell may have started
        some and then become us by exec."""
        self._held: dict[str, list[int]] = {}
        self._keeper = 0
        self._keeper_code: int | None = None
        self._bye: int | None = None
        self._stops = 0
        self._give_up: float | None = None

    def run(self) -> int:
        """Until the keeper has ended, for whatever reason; the exit code for the user."""
        self._foreign = [process.pid for process in kernel.below(os.getpid())]
        kernel.adopt_orphans()
        stops = [n for n in _STOP_SIGNALS if n not in self._orders]
        wanted = [n for n in stops if signal.getsignal(n) is not signal.SIG_IGN]
        signals = kernel.Signals((*wanted, *self._orders, signal.SIGCHLD))
        channel, theirs = Channel.pair()
        try:
            with theirs:
                fds = (theirs.fileno(), self._board.fd)
                arguments = [*map(str, fds), str(os.getpid())]
                self._keeper = kernel.spawn([*self._argv, *arguments], fds=fds)
            channel.send(self._hello)
            self._watch(channel, signals)
        finally:
            # From here on nothing may run that our slots stand for. The held files are
            # closed only after the last process is gone: that closing frees the slots.
            kernel.kill_until_none(self._below, self._reaped)
            for worker in list(self._held):
                self._drop(worker)
            channel.close()
            signals.close()
        return self._exit_code()

    def _below(self) -> list[kernel.Process]:
        return kernel.below(os.getpid(), self._foreign)

    def _exit_code(self) -> int:
        if self._bye is not None and self._keeper_code == 0:
            return self._bye
        if self._keeper_code == 0:
            return 1
        code = self._keeper_code if self._keeper_code is not None else 1
        self._tell(f"{self._called}: the keeper {kernel.exit_text(code)}; everything was stopped")
        return code if code > 0 else 1

    def _watch(self, channel: Channel, signals: kernel.Signals) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(channel, selectors.EVENT_READ)
            selector.register(signals, selectors.EVENT_READ)
            while self._keeper_code is None:
                ready = {key.fileobj for key, _ in selector.select(self._sleep())}
                if signals in ready:
                    self._on_signals(signals.take(), channel)
                if channel in ready and not self._on_messages(channel):
                    if self._bye is None:
                        return
                    # It said goodbye and is on its way out: let it get there.
                    selector.unregister(channel)
                    self._give_up = self._clock.boot() + _SECOND_STOP
                for pid, code in kernel.reap():
                    self._reaped(pid, code)
                now = self._clock.boot()
                if must_kill(now, self._board.rows()):
                    self._tell(f"{self._called}: a lease was not renewed in time; stopping all")
                    if over(now, self._board.rows()):
                        self._kill_late(channel, now)
                    return
                if self._give_up is not None and now >= self._give_up:
                    self._tell(f"{self._called}: did not stop in time; killing what is left")
                    return

    def _kill_late(self, channel: Channel, now: float) -> None:
        """The guard came too late, after it was frozen for example: slots may have been given away
        while their code still exists. Kill that code now, and spare the keeper until it has
        reported the over-runs: the guard has no store."""
        found = self._below()
        alive = {process.pid for process in found if process.state != "Z"}
        for place, row in enumerate(self._board.rows()):
            # The time was read before the look, so the process was alive at that time. After the
            # kill, the keeper could not tell whether the process had died before its lease ended.
            if row.pid in alive:
                self._board.outlived(place, now)
        channel.close()  # makes the keeper start nothing more, report, and end
        while self._keeper_code is None and self._clock.boot() < now + _LAST_WORD:
            kernel.kill_once(process for process in self._below() if process.pid != self._keeper)
            for pid, code in kernel.reap():
                self._reaped(pid, code)
            time.sleep(_PAUSE)

    def _sleep(self) -> float | None:
        now = self._clock.boot()
        waits = [guard_timeout(now, self._board.rows())]
        # A lease may appear on the board while we sleep, and nobody wakes us for it. The
        # shortest useful lease is seconds long, so looking once a second is soon enough.
        waits.append(1.0)
        if self._give_up is not None:
            waits.append(max(0.0, self._give_up - now))
        return min(wait for wait in waits if wait is not None)

    def _reaped(self, pid: int, code: int) -> None:
        if pid == self._keeper:
            self._keeper_code = code

    def _on_signals(self, numbers: bytes, channel: Channel) -> None:
        for number in numbers:
            if number in self._orders:
                channel.send({"order": self._orders[number]})
        stops = sum(n in _STOP_SIGNALS and n not in self._orders for n in numbers)
        if not stops:
            return
        self._stops += stops
        now = self._clock.boot()
        if self._stops == 1:
            self._tell(f"{self._called}: stopping (once more to stop at once)")
            self._give_up = now + self._patience
        else:
            soon = now + (_SECOND_STOP if self._stops == 2 else 0.0)
            self._give_up = min(soon, self._give_up or soon)
        channel.send({"stop": self._stops})

    def _on_messages(self, channel: Channel) -> bool:
        """False: the keeper has closed its end, which only its death does."""
        messages = channel.receive()
        if messages is None:
            return False
        for message, fds in messages:
            if "hold" in message:
                self._held[message["hold"]] = fds
                channel.send({"held": message["hold"]})
            elif "drop" in message:
                self._drop(message["drop"])
            elif "say" in message:
                self._tell(message["say"])
            elif "refused" in message:
                self._tell(f"{self._called}: {message['refused']}")
            elif "bye" in message:
                self._bye = message["bye"]
        return True

    def _drop(self, worker: str) -> None:
        for fd in self._held.pop(worker, ()):
            os.close(fd)

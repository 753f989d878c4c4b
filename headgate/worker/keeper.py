"""The keeper: starts worker processes, reports their deaths, and sees that they stop in time.

It runs no user code, so nothing a job does can make it late. What it has to say to the
store goes through the `Registrar`, in threads: the loop here only decides and kills.

Started as `python -m headgate.worker.keeper CHANNEL BOARD PARENT` by the guard.
"""

from __future__ import annotations

import logging
import os
import select
import selectors
import signal
import sys
from collections.abc import Sequence

from headgate import kernel
from headgate.clock import Clock
from headgate.errors import ConfigError
from headgate.worker.board import Board
from headgate.worker.books import Books
from headgate.worker.channel import Channel
from headgate.worker.clerk import Clerk
from headgate.worker.lease import next_change, stage
from headgate.worker.logs import set_up_logging
from headgate.worker.options import WorkerOptions
from headgate.worker.place import Place
from headgate.worker.registrar import Registrar

log = logging.getLogger("headgate.worker")

EXIT_TROUBLE = 1
EXIT_USAGE = 2
EXIT_STORE = 4

_TICK = 1.0
_CLEANING_TICK = 0.01
_KILL_MARGIN = 5.0
"""Seconds beyond its own time-outs that a worker process gets before it is killed."""
_START_TRIES = 3
_SECOND_STOP = 2.0
_FAREWELL = 5.0
"""Seconds for a last word to the store when the guard is gone."""


class Keeper:
    """All places for worker processes, and the loop that watches them."""

    def __init__(self, guard: Channel, board: Board, options: WorkerOptions) -> None:
        self._guard = guard
        self._board = board
        self._options = options
        self._clock = Clock()
        self._clerk = Clerk()
        self._places = [Place(index) for index in range(options.processes)]
        self._books = Books(options, self._places, board)
        self._registrar = Registrar(
            *(guard, board, self._places, self._clerk, self._clock, self._not_entered),
            count_renewal=self._books.renewal,
        )
        self._started_once = False
        self._stops = 0
        self._orphaned = False
        self._code = 0

    # --- the loop ------------------------------------------------------------------------

    def run(self) -> int:
        try:
            self._books.open()
        except ConfigError as error:
            self._guard.send({"refused": str(error)})
            self._guard.send({"bye": EXIT_USAGE})
            return 0
        kernel.adopt_orphans()
        signals = kernel.Signals((signal.SIGTERM, signal.SIGINT, signal.SIGCHLD))
        with selectors.DefaultSelector() as selector:
            self._selector = selector
            for source in (self._guard, self._clerk, signals):
                selector.register(source, selectors.EVENT_READ, source)
            if self._guard.pending:
                self._on_guard()
            while not self._finished():
                for key, _ in selector.select(self._sleep()):
                    if key.data is self._guard:
                        self._on_guard()
                    elif key.data is self._clerk:
                        self._clerk.take()
                    elif key.data is signals:
                        self._on_signals(signals.take())
                    else:
                        self._on_worker(key.data)
                now = self._note_processes()
                if self._orphaned:
                    return self._fall()
                self._look_after(now)
        self._say_goodbye()
        return 0

    def _finished(self) -> bool:
        ended = all(place.stage == "empty" for place in self._places)
        waiting = any(place.start_at is not None for place in self._places) and not self._stops
        return ended and not waiting and not self._clerk.busy

    def _sleep(self) -> float:
        if any(place.stage == "cleaning" and place.code is not None for place in self._places):
            return _CLEANING_TICK
        now = self._clock.boot()
        times = [
            when
            for place in self._places
            for when in (place.start_at, place.kill_at)
            if when is not None
        ]
        waits = [when - now for when in times]
        leases = [place.lease for place in self._places if place.lease is not None]
        waits += [next_change(now, lease.sent, lease.seconds) or _TICK for lease in leases]
        return max(0.0, min([_TICK, *waits]))

    def _note_processes(self) -> float:
        """Handle the exits of worker processes, and note when the others were alive: that time."""
        # Read before the exits: a process that is not among them was alive at this time, even if
        # the keeper was frozen between the two lines.
        now = self._clock.boot()
        for pid, code in kernel.reap():
            self._on_exit(pid, code)
        for place in self._places:
            if place.living:
                place.seen = now
        return now

    def _look_after(self, now: float) -> None:
        for place in self._places:
            if place.stage == "empty":
                if place.start_at is not None and now >= place.start_at and not self._stops:
                    self._start(place)
            elif place.stage == "cleaning":
                self._clean(place)
            else:
                self._check_lease(place, now)
                self._check_pulse(place, now)
                if place.kill_at is not None and now >= place.kill_at:
                    self._kill(place, "it did not stop in time")

    # --- starting a worker process ---------------------------------------------------------

    def _start(self, place: Place) -> None:
        worker = place.new_worker()
        channel, theirs = Channel.pair()
        self._board.clear(place.index)
        self._board.forget_attempts(place.index)
        with theirs:
            arguments = [theirs.fileno(), self._board.fd, place.index, os.getpid()]
            pid = kernel.spawn(
                [sys.executable, "-m", "headgate.worker.process", *map(str, arguments)],
                fds=(theirs.fileno(), self._board.fd),
                env={**os.environ, kernel.WORKER_MARK: worker},
            )
        self._board.process(place.index, pid)
        place.begin(pid, channel, self._clock.boot(), self._options.stall_timeout or 30.0)
        self._selector.register(channel, selectors.EVENT_READ, place)
        channel.send({"options": self._options.to_message()})

    def _on_worker(self, place: Place) -> None:
        assert place.channel is not None
        messages = place.channel.receive()
        if messages is None:
            # Its end is closed: it has died, or is about to. The exit itself comes by SIGCHLD.
            self._selector.unregister(place.channel)
            return
        for message, _ in messages:
            if "hello" in message:
                place.silent_after = message["hello"]["lease"]
                self._books.look_at(message["hello"]["url"])
                self._registrar.enter(place, message["hello"])
            elif "ready" in message:
                self._started_once = True
                place.ready = self._clock.boot()
            elif "refused" in message:
                place.bye = "refused"
                self._refused(message["refused"], message["code"])
            elif "counts" in message:
                self._books.merge(message["counts"])
            elif "bye" in message:
                place.bye = message["bye"]
                # A thread of the user's may keep it from ending; its work is done.
                place.kill_at = self._clock.boot() + _KILL_MARGIN

    def _refused(self, why: str, code: int) -> None:
        """A worker process could not start at all. At the first start that is the user's
        mistake to see at once; later it may pass (a file being replaced): keep trying."""
        if self._started_once:
            log.error("a worker process could not start: %s", why)
            return
        if not self._code:
            self._guard.send({"refused": why})
        self._code = code
        self._stop(self._stops or 1)

    def _not_entered(self, place: Place | None, why: str) -> None:
        if place is not None:
            place.bye = "refused"
        self._refused(why, EXIT_STORE)
        if place is not None and place.living:
            self._dismiss(place)

    def _dismiss(self, place: Place) -> None:
        """It waits for its start, which will not come. Why was told: its end is no news."""
        place.bye = place.bye or "dismissed"
        os.kill(place.pid, signal.SIGKILL)  # our child, not reaped yet: the pid is still its own

    def _held(self, worker: str) -> None:
        for place in self._places:
            if place.worker == worker and place.stage == "starting" and place.channel:
                place.stage = "running"
                place.channel.send({"start": worker}, place.fds)
                for order in place.orders:
                    place.channel.send({"order": order})
                if self._stops:
                    self._tell_stop(place)

    # --- watching --------------------------------------------------------------------------

    def _check_pulse(self, place: Place, now: float) -> None:
        # Before it is ready it imports and runs start hooks, which may take their time.
        if place.stage != "running" or place.ready is None:
            return
        row = self._board.row(place.index)
        silent = now - max(row.pulse, place.ready)
        stalled = silent > place.silent_after
        if stalled != place.stalled:
            place.stalled = stalled
            if stalled:
                log.warning("worker process %d has been silent for %.0f s", place.pid, silent)
            else:
                log.info("worker process %d answers again", place.pid)
        self._registrar.show(place, "stalled" if stalled else "alive")
        if self._options.stall_timeout is not None and silent > self._options.stall_timeout:
            self._kill(place, f"it was silent for {silent:.0f} s")
        elif place.stalled and row.deadline and now > row.deadline:
            self._kill(place, "it is stalled and one of its jobs is past its time-out")

    def _check_lease(self, place: Place, now: float) -> None:
        lease = place.lease
        if lease is None or place.stage not in ("starting", "running", "stopping"):
            return
        now_at = "kill" if lease.dead else stage(now, lease.sent, lease.seconds)
        if now_at == "kill":
            self._kill(place, "its lease was not renewed in time")
        elif now_at == "stop":
            self._tell_lease(place, "stop")
        elif place.told == "stop":
            self._tell_lease(place, "fresh")

    def _tell_lease(self, place: Place, what: str) -> None:
        # Before it is told to start it hears nothing but that.
        if place.told != what and place.stage != "starting" and place.channel:
            place.told = what
            place.channel.send({"lease": what})

    def _kill(self, place: Place, why: str) -> None:
        log.error("killing worker process %d: %s", place.pid, why)
        place.kill_at = None
        os.kill(place.pid, signal.SIGKILL)  # our child, not reaped yet: the pid is still its own

    # --- after the end of a worker process ---------------------------------------------------

    def _on_exit(self, pid: int, code: int) -> None:
        for place in self._places:
            # One that is being buried has been reaped: its pid may be another process by now.
            if place.pid == pid and place.living:
                place.stage = "cleaning"
                place.code = code
                self._clean(place)

    def _clean(self, place: Place) -> None:
        """Kill what a dead worker left behind; when nothing is left, tell the store."""
        if place.code is None:
            return
        for pid, code in kernel.reap():
            self._on_exit(pid, code)
        left = self._left_behind()
        if left:
            kernel.kill_once(left)
            return
        code, place.code = place.code, None
        self._last_words(place)
        if code != 0 and place.bye not in ("refused", "dismissed"):
            when = "" if place.ready is not None else " before it was ready"
            log.error("worker process %d %s%s", place.pid, kernel.exit_text(code), when)
            self._books.process_lost()
        # Only now: the guard must see the lease as long as anything may run.
        self._registrar.end_lease(place)
        if not place.registered:
            self._emptied(place, code)
            return
        if code == 0:
            reason = ""
        elif code == -signal.SIGKILL:
            reason = "its process was killed"
        else:
            reason = f"its process {kernel.exit_text(code)}"
        self._registrar.take_out(
            place.worker,
            place.fds,
            reason,
            lambda: self._emptied(place, code),
            self._board.started(place.index),
            place.name,
            place.overran,
        )

    def _last_words(self, place: Place) -> None:
        """What it still said before it died lies in the channel."""
        if place.channel is None:
            return
        while (
            place.channel.fileno() in self._selector.get_map()
            and select.select([place.channel], [], [], 0)[0]
        ):
            self._on_worker(place)
        if place.channel.fileno() in self._selector.get_map():
            self._selector.unregister(place.channel)
        place.channel.close()
        place.channel = None

    def _left_behind(self) -> list[kernel.Process]:
        """Orphans that came to us, and all below them.

        The children of living worker processes are not orphans and are never touched. An
        orphan that carries the mark of a living worker was let go by one of its jobs on
        purpose (a daemon): it stays until that worker ends.
        """
        living = {place.pid for place in self._places if place.living}
        marks = {place.worker for place in self._places if place.living}
        me = os.getpid()
        found = kernel.below(me, living)
        daemons = {
            process.pid
            for process in found
            if process.parent == me
            and kernel.environment(process.pid).get(kernel.WORKER_MARK) in marks
        }
        return kernel.below(me, living | daemons) if daemons else found

    def _emptied(self, place: Place, code: int) -> None:
        bye = place.bye
        refused, retired = bye == "refused", bye == "retired"
        place.clear()
        if self._stops or (refused and not self._started_once):
            return
        if code == 0 and retired:
            place.failures = 0
            place.start_at = self._clock.boot()
        elif code == 0 and self._options.burst:
            place.start_at = None
        elif not self._started_once and place.failures + 1 >= _START_TRIES:
            # It dies without a word, at import most likely: again and again would hide that.
            self._refused(
                f"the worker process {kernel.exit_text(code)} before it was ready,"
                f" {_START_TRIES} times: does python -c 'import"
                f" {self._options.target.partition(':')[0]}' work?",
                EXIT_TROUBLE,
            )
        else:
            place.again(self._clock.boot())

    # --- stopping ----------------------------------------------------------------------------

    def _on_guard(self) -> None:
        messages = self._guard.receive()
        if messages is None:
            self._orphaned = True
            return
        for message, _ in messages:
            if "held" in message:
                self._held(message["held"])
            elif "stop" in message:
                self._stop(message["stop"])
            elif "order" in message:
                for place in self._places:
                    if place.stage in ("running", "stopping") and place.channel:
                        place.channel.send(message)
                    elif place.stage == "starting":
                        # It may have read all that an order is about; what starts later has not.
                        place.orders.append(message["order"])

    def _on_signals(self, numbers: bytes) -> None:
        stops = sum(number in (signal.SIGTERM, signal.SIGINT) for number in numbers)
        if stops:
            self._stop(self._stops + stops)

    def _stop(self, times: int) -> None:
        self._stops = max(self._stops, times)
        for place in self._places:
            place.start_at = None
            if place.stage == "starting" and not place.registered:
                if place.bye != "refused":  # else it is on its way out by itself
                    self._dismiss(place)
            elif place.stage in ("running", "stopping"):
                self._tell_stop(place)

    def _tell_stop(self, place: Place) -> None:
        assert place.channel is not None
        place.stage = "stopping"
        at_once = self._stops > 1
        timeout = 0.0 if at_once else self._options.shutdown_timeout
        grace = 0.0 if at_once else self._options.grace
        margin = _SECOND_STOP if at_once else _KILL_MARGIN
        place.channel.send({"stop": timeout, "grace": grace})
        place.kill_at = self._clock.boot() + timeout + grace + margin

    def _say_goodbye(self) -> None:
        if self._options.burst and not self._stops:
            for line in self._registrar.left_over():
                self._guard.send({"say": line})
        self._guard.send({"bye": self._code})

    def _fall(self) -> int:
        """The guard was killed, or found a lease over: all ends here and now."""
        log.error("the guard is gone or has given up: stopping everything")
        me = os.getpid()
        kernel.kill_until_none(
            lambda: kernel.watchers_last(kernel.below(me)), lambda _pid, _code: None
        )
        self._registrar.last_word("its worker was killed as a whole", _FAREWELL)
        return 1


def main(arguments: Sequence[str]) -> int:
    channel_fd, board_fd, parent = map(int, arguments)
    if os.getppid() != parent:
        return 1  # the guard died before we could watch it
    channel = Channel.inherited(channel_fd)
    os.set_inheritable(board_fd, False)
    options = WorkerOptions.from_message(channel.next()[0]["options"])
    set_up_logging(options.log_level, options.log_format)
    return Keeper(channel, Board(board_fd), options).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

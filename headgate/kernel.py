"""What Headgate asks of the kernel: die with your parent, adopt orphans, leave nobody behind.

Linux gives all of it. Elsewhere the calls that do not exist do nothing, and crash safety
falls back to what the store itself can tell.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("headgate.kernel")

LINUX = sys.platform.startswith("linux")

WORKER_MARK = "HEADGATE_WORKER"
"""Set in the environment of each worker process, and so of all below it: whose it is."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if not LINUX:
        return
    if _libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask for a signal when the parent ends; end now if it has ended already.

    The kernel watches the *thread* that started this process, so parents start their
    children from a thread that lives as long as they do.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    # The parent may have died between our start and the line above; then no signal ever
    # comes. By now we would have been given to another parent, so the pid tells.
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (also after setsid)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it. `started` tells two users of one pid apart."""

    pid: int
    parent: int
    state: str
    session: int
    started: int


def look(pid: int) -> Process | None:
    """One process, or None when it is gone."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name stands in parentheses and may itself hold spaces and parentheses.
    fields = raw[raw.rindex(b")") + 2 :].split()
    return Process(pid, int(fields[1]), fields[0].decode(), int(fields[3]), int(fields[19]))


def processes() -> list[Process]:
    """Every process that can be seen."""
    if not LINUX:
        return []
    # Names alone are several times as quick as paths, and this is read in a hurry.
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return [process for process in found if process is not None]


def below(root: int, spare: Iterable[int] = ()) -> list[Process]:
    """The descendants of `root`, without the processes in `spare` and what is below those.

    Zombies are among them: the first thread of a process may be one while its others run.
    """
    spared = frozenset(spare)
    children: dict[int, list[Process]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    todo = [root]
    while todo:
        for process in children.get(todo.pop(), ()):
            if process.pid not in spared:
                found.append(process)
                todo.append(process.pid)
    return found


def kill(process: Process, number: int = signal.SIGKILL) -> bool:
    """Signal exactly this process, never another one that was given its pid since."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The handle may already belong to a later process of the same pid; it cannot change
        # any more from here on, so comparing now is enough.
        now = look(process.pid)
        if now is None or now.started != process.started:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def reap() -> list[tuple[int, int]]:
    """Take the exit of every child that has ended: (pid, exit code as subprocess tells it)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def kill_once(found: Iterable[Process]) -> bool:
    """SIGKILL each of these; False when one of them may not be killed by us."""
    allowed = True
    for process in found:
        try:
            kill(process)
        except PermissionError:
            # Somebody else's rights (setuid). It may use what our slots stand for, so they
            # stay held until it ends by itself.
            allowed = False
    return allowed


def watchers_last(found: Sequence[Process]) -> list[Process]:
    """Our own children first, so that none of them goes on and tells what became of the others;
    then from the bottom up. Were we killed in the middle, those that watch over what is left (the
    wardens of isolated tasks) are still there, see that we are gone, and end it."""
    me = os.getpid()
    own = [process for process in found if process.parent == me]
    return own + [process for process in reversed(found) if process.parent != me]


def kill_until_none(
    find: Callable[[], Sequence[Process]],
    on_exit: Callable[[int, int], None] | None = None,
) -> None:
    """SIGKILL what `find` finds, until it finds nothing.

    A process may fork between the scan and its death; its child is found by the next scan.
    With `on_exit` every child of ours that ended is reaped and told to it; that is for
    processes which start children only through this module.
    """
    pause = 0.001
    told = False
    while True:
        if on_exit is not None:
            for pid, code in reap():
                on_exit(pid, code)
        found = find()
        if not found:
            return
        if not kill_once(found) and not told:
            log.error("a process may not be killed: waiting until it ends by itself")
            told = True
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2 if told else 0.02)


def environment(pid: int) -> Mapping[str, str]:
    """The environment a process was started with; empty when it cannot be told."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def marked(name: str, value: str) -> list[Process]:
    """The processes that were started with this variable in their environment."""
    return [
        process
        for process in processes()
        if process.state != "Z" and environment(process.pid).get(name) == value
    ]


def spawn(
    argv: Sequence[str], *, fds: Iterable[int] = (), env: Mapping[str, str] | None = None
) -> int:
    """Start a program in a session of its own; the pid, to be reaped by the caller.

    A session of its own keeps the terminal's Ctrl-C from it: stopping is ours to order.
    """
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        pass_fds=tuple(fds),
        start_new_session=True,
        env=None if env is None else dict(env),
    )
    process.returncode = 0  # reaped by `reap()`; Popen must not wait for it a second time
    return process.pid


def exit_text(code: int) -> str:
    """An exit code in words.

    >>> exit_text(3), exit_text(-11)
    ('ended with exit code 3', 'ended with signal 11 (SIGSEGV)')
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"ended with signal {-code}{name}"


class Signals:
    """Signals as something to select on: `fileno()` is readable after one came in.

    Python's handlers run between two instructions of the main thread; nothing is decided
    there. They only write to a socket, and the loop reads it.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._before = {number: signal.signal(number, self._handle) for number in numbers}
        self._before_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)

    def _handle(self, number: int, frame: object) -> None:
        """The wake-up descriptor has told the loop already."""

    def fileno(self) -> int:
        return self._read.fileno()

    def take(self) -> bytes:
        """The numbers of the signals that came since the last call, in order."""
        try:
            return self._read.recv(4096)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        signal.set_wakeup_fd(self._before_fd)
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._read.close()
        self._write.close()

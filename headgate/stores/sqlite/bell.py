"""Wake-ups between processes of one machine: a file to touch, inotify to hear it.

Whoever made work claimable touches the bell file after its commit; whoever waits has an
inotify watch on it. Nobody needs to know who listens, nothing is left behind by a crash,
and a lost ring costs at most one safety poll.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import struct
import sys
import threading
from pathlib import Path

from headgate.stores.protocol import Unattended

log = logging.getLogger("headgate.store")

BELLS = ("work", "done", "room", "output", "ticks")
_IN_ATTRIB = 0x4
_IN_DELETE_SELF = 0x400
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class Bells:
    """The bells of one store."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: dict[str, list[MemoryBell]] = {what: [] for what in BELLS}

    def ring(self, what: str) -> None:
        """Never fails: it comes after the commit, and what is committed must not look
        refused. Who does not hear it finds the work by its next safety poll."""
        if self._folder is None:
            for bell in list(self._memory[what]):
                bell.ring()
            return
        path = self._folder / what
        try:
            try:
                os.utime(path)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        except OSError as error:
            log.warning("cannot ring %s (%s): others wake up later", path, error.strerror)

    def listen(self, what: str) -> FileBell | MemoryBell:
        if what not in BELLS:
            raise ValueError(f"no bell {what!r}: there are {BELLS}")
        if self._folder is None:
            bell = MemoryBell(self._memory[what])
            self._memory[what].append(bell)
            return bell
        path = self._folder / what
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=True)
        return FileBell(path)


class FileBell(Unattended):
    """Hears the bell file through inotify, or, where there is none, by looking at it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = self._watch() if sys.platform == "linux" else -1
        self._seen = self._stamp()

    def _watch(self) -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        fd: int = libc.inotify_init1(_FLAGS)
        if fd < 0:  # the user's inotify instances are used up: polling still works
            return -1
        if libc.inotify_add_watch(fd, os.fsencode(self._path), _IN_ATTRIB | _IN_DELETE_SELF) < 0:
            os.close(fd)
            return -1
        return fd

    def _stamp(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def fileno(self) -> int | None:
        return self._fd if self._fd >= 0 else None

    def drain(self) -> None:
        self._seen = self._stamp()
        if self._fd < 0:
            return
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        if _deleted(data):
            # The folder was cleared under us: hear the file that takes its place.
            os.close(self._fd)
            self._fd = -1
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._path.touch()
                self._fd = self._watch()
            except OSError as error:
                log.warning("cannot listen at %s (%s): looking now and then", self._path, error)

    def wait(self, timeout: float) -> bool:
        """True when it rang since the last look."""
        if self._fd >= 0:
            rang = readable(self._fd, timeout)
            if rang:
                self.drain()
            return rang
        stamp = self._stamp()
        if stamp == self._seen:
            threading.Event().wait(min(timeout, 0.02))
            stamp = self._stamp()
        rang, self._seen = stamp != self._seen, stamp
        return rang

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class MemoryBell(Unattended):
    """The bell of an in-memory store: a pipe, so that event loops can watch it too."""

    def __init__(self, listeners: list[MemoryBell]) -> None:
        self._listeners = listeners
        self._lock = threading.Lock()
        """Held to ring and to close: a ring must never reach what gets this number next."""
        self._read, self._write = os.pipe2(_FLAGS) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def ring(self) -> None:
        with self._lock:
            try:
                if self in self._listeners:
                    os.write(self._write, b"!")
            except BlockingIOError:
                return  # it has rung often enough

    def fileno(self) -> int | None:
        return self._read

    def drain(self) -> None:
        try:
            while os.read(self._read, 65536):
                continue
        except BlockingIOError:
            return

    def wait(self, timeout: float) -> bool:
        rang = readable(self._read, timeout)
        if rang:
            self.drain()
        return rang

    def close(self) -> None:
        with self._lock:
            if self in self._listeners:
                self._listeners.remove(self)
                os.close(self._read)
                os.close(self._write)


def readable(fd: int, timeout: float) -> bool:
    """Wait with poll: select knows no descriptor above 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout) * 1000))


def _deleted(data: bytes) -> bool:
    offset = 0
    while offset + 16 <= len(data):
        _, mask, _, length = struct.unpack_from("iIII", data, offset)
        if mask & _IN_DELETE_SELF:
            return True
        offset += 16 + length
    return False

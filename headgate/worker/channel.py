"""Short messages between the guard, the keeper and the worker processes, with open files."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

_MAX_FDS = 16


class Channel:
    """One end of a socket pair: JSON lines, each of which may carry file descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = b""
        self._fds: list[int] = []
        self._ready: list[tuple[Message, list[int]]] = []

    @staticmethod
    def pair() -> tuple[Channel, socket.socket]:
        """Our end, and the other end to be inherited by a child."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return Channel(ours), theirs

    @staticmethod
    def inherited(fd: int) -> Channel:
        os.set_inheritable(fd, False)
        return Channel(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """False when the other end is gone (its death is told by other means)."""
        line = json.dumps({**message, "fds": len(fds)}).encode() + b"\n"
        try:
            if fds:
                sent = socket.send_fds(self.sock, [line], list(fds))
                line = line[sent:]
            self.sock.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    @property
    def pending(self) -> bool:
        """Are there messages that were read with an earlier one? No selector tells of them."""
        return bool(self._ready)

    def receive(self) -> list[tuple[Message, list[int]]] | None:
        """Wait for something; the whole messages that are there. None: the other end is gone."""
        if not self._ready and not self._read():
            return None
        messages, self._ready = self._ready, []
        return messages

    def next(self) -> tuple[Message, list[int]]:
        """Wait for one message; ends this process when the other end is gone."""
        while not self._ready:
            if not self._read():
                sys.exit(1)
        return self._ready.pop(0)

    def _read(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, 65536, _MAX_FDS)
        except ConnectionResetError:
            return False
        for fd in fds:
            os.set_inheritable(fd, False)
        self._fds.extend(fds)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message: Message = json.loads(line)
            count: int = message.pop("fds")
            taken, self._fds = self._fds[:count], self._fds[count:]
            self._ready.append((message, taken))
        return bool(data)

    def close(self) -> None:
        self.sock.close()

"""Frames between a worker, a warden and its ward: a length, a kind, and bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

HEADER = struct.Struct("!IB")

DATA = 0  # between worker and ward, passed on by the warden
STOP = 1  # worker → warden: end the ward; the payload is the grace in milliseconds
ENDED = 2  # ward → worker: how the attempt ended; the ward may run another
LAST = 3  # the same, but something of the job may still run in the ward: it must go
DIED = 4  # warden → worker: the ward is gone; the payload is its exit code
RUN = 5  # worker → ward: run this attempt; worker → warden of commands: run this program
OUT = 6  # warden of commands → worker: what the command wrote; the first byte is the stream
REFUSED = 7  # warden of commands → worker: the program could not be started

Frame = tuple[int, bytes]


def pack(kind: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), kind) + payload


class Unpacker:
    """Cuts a stream of bytes into frames.

    >>> unpacker = Unpacker()
    >>> list(unpacker.feed(pack(DATA, b"one") + pack(ENDED, b"")[:2]))
    [(0, b'one')]
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            length, kind = HEADER.unpack_from(self._buffer)
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            yield kind, payload


class Outlet:
    """Frames on their way out of a non-blocking socket: never waits for the reader."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes that wait for the reader."""
        return len(self._buffer)

    def put(self, kind: int, payload: bytes) -> None:
        self._buffer += pack(kind, payload)
        self.flush()

    def flush(self) -> None:
        while self._buffer:
            try:
                sent = self.sock.send(self._buffer[: 1 << 20])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self._buffer.clear()  # its reader is gone, which is noticed by its exit
                return
            del self._buffer[:sent]

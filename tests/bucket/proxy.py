"""A proxy between Headgate and an object store, which makes the way there as bad as it can be."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.bucket.server import Server, free_port

_CODES = {409: "ConditionalRequestConflict", 429: "TooManyRequests", 500: "InternalError",
          503: "SlowDown"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    number: int
    """How many requests of this method came before it."""

    @property
    def writes(self) -> bool:
        return self.method == "PUT"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one request: by default nothing bad."""

    latency: float = 0.0
    answer: int = 0
    """Answer with this status; the server never hears of the request."""
    lose_request: bool = False
    """Cut the connection instead of passing the request on."""
    lose_answer: bool = False
    """The server carries it out, and the connection is cut before anybody is told."""
    silence: bool = False
    """The server carries it out, and nothing comes back until the client gives up."""


FINE = Fault()


@dataclass(slots=True)
class Weather:
    """Faults at random, each with its share of all requests (the last of all writes)."""

    latency: float = 0.0
    errors: float = 0.0
    lost_writes: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(3))
    statuses: tuple[int, ...] = (500, 503, 429)

    def __call__(self, request: Request) -> Fault:
        if self.dice.random() < self.errors:
            return Fault(self.latency, answer=self.dice.choice(self.statuses))
        if request.writes and self.dice.random() < self.lost_writes:
            return Fault(self.latency, lose_answer=True)
        return Fault(self.latency)


class Proxy(Server):
    """Listens at an address of its own; `rule` says what becomes of each request."""

    def __init__(self, server: Server, rule: Callable[[Request], Fault] = lambda _: FINE) -> None:
        self.server = server
        self.rule = rule
        self.counts: Counter[str] = Counter()
        """Requests by method, and faults by name."""
        self._port = free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self._numbers: dict[str, itertools.count[int]] = {}
        self._open: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.resume()

    # --- from outside -------------------------------------------------------------------------

    def stop(self) -> None:
        """Cut all connections, and refuse new ones."""
        self._do(self._stop())

    def resume(self) -> None:
        self._do(self._start())

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _do(self, what: object) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(10)  # type: ignore[arg-type]

    # --- the loop -----------------------------------------------------------------------------

    async def _start(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def _stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._one(reader, writer):
                    pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass on one request; False: this connection has ended."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        names = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
        }
        if names.get(b"expect", b"").lower() == b"100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(names.get(b"content-length", b"0")))
        number = next(self._numbers.setdefault(method, itertools.count()))
        fault = self.rule(Request(method, target, number))
        self.counts[method] += 1
        self._count(fault)
        if fault.latency:
            await asyncio.sleep(fault.latency)
        if fault.lose_request:
            return False
        if fault.answer:
            writer.write(_refusal(fault.answer))
            await writer.drain()
            return True
        answer = await self._ask(head, body, method)
        if fault.silence:
            await reader.read(1)  # until the client hangs up
        if answer is None or fault.lose_answer or fault.silence:
            return False
        writer.write(answer)
        await writer.drain()
        return True

    def _count(self, fault: Fault) -> None:
        for name in ("answer", "lose_request", "lose_answer", "silence"):
            if getattr(fault, name):
                self.counts[name] += 1

    async def _ask(self, head: bytes, body: bytes, method: str) -> bytes | None:
        """The server's answer, whole; None: it has none."""
        there = urlsplit(self.server.endpoint)
        try:
            reader, writer = await asyncio.open_connection(there.hostname, there.port)
        except OSError:
            return None
        try:
            lines = [
                line
                for line in head[:-4].split(b"\r\n")
                if not line.lower().startswith((b"connection:", b"expect:"))
            ]
            writer.write(b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body)
            await writer.drain()
            answer = await reader.read(-1)
        except OSError:
            return None
        finally:
            writer.transport.abort()
        start, _, rest = answer.partition(b"\r\n\r\n")
        if not start:
            return None
        kept = [
            line for line in start.split(b"\r\n") if not line.lower().startswith(b"connection:")
        ]
        known = (b"content-length:", b"transfer-encoding:")
        if not any(line.lower().startswith(known) for line in kept):
            kept.append(b"Content-Length: %d" % len(rest))
        return b"\r\n".join([*kept, b"", b""]) + rest


def _refusal(status: int) -> bytes:
    body = f"<Error><Code>{_CODES[status]}</Code><Message>injected</Message></Error>".encode()
    return (
        f"HTTP/1.1 {status} {_CODES[status]}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def nth(method: str, number: int, fault: Fault) -> Callable[[Request], Fault]:
    """This fault for the request of that number among those of its method, from now on."""
    seen = itertools.count()
    return lambda request: fault if request.method == method and next(seen) == number else FINE

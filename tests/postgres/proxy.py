"""A wire between a client and the server that a test can cut, or let go dead."""

from __future__ import annotations

import selectors
import socket
import threading


class Proxy:
    """Forwards TCP. `dead = True`: takes everything and passes nothing on, as a network does
    whose other end has vanished without a word."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.dead = False
        self.after: bytes | None = None
        """Go dead as soon as a client has sent this; it still reaches the server."""
        self.swallowed = 0
        """Bytes that were taken and not passed on."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._closing = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._pass_on(key.data)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self.dead:
            self._pairs.append((client, client))  # connected, and nobody is there
            return
        server = socket.create_connection(self._target)
        self._pairs.append((client, server))
        self._selector.register(client, selectors.EVENT_READ, (client, server, True))
        self._selector.register(server, selectors.EVENT_READ, (server, client, False))

    def _pass_on(self, pair: tuple[socket.socket, socket.socket, bool]) -> None:
        source, sink, from_client = pair
        try:
            data = source.recv(65536)
        except OSError:
            data = b""
        if self.dead:
            self.swallowed += len(data)
            if not data:
                self._selector.unregister(source)
            return
        try:
            if data:
                sink.sendall(data)
            else:
                sink.shutdown(socket.SHUT_WR)
                self._selector.unregister(source)
        except OSError:
            self._selector.unregister(source)
        if from_client and self.after is not None and self.after in data:
            self.dead = True

    def cut(self) -> None:
        """Break every connection."""
        for client, server in self._pairs:
            for end in (client, server):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # it was broken already

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self.cut()
        for client, server in self._pairs:
            client.close()
            server.close()
        self._selector.close()
        self._listener.close()

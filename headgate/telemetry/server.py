"""A small HTTP server for `/metrics`: a few requests at once, none of them for long.

It runs in the keeper, which must be able to open files and start processes whatever happens on this
port.
"""

from __future__ import annotations

import socket
import threading
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app  # pyright: ignore[reportUnknownVariableType]

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

AT_ONCE = 8
LONGEST = 10.0
"""Seconds for which a client may take its time over any step of a request."""


class _Handler(WSGIRequestHandler):
    timeout = LONGEST

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a scrape every few seconds is no news."""


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._room = threading.BoundedSemaphore(AT_ONCE)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # Not that of the base class, which asks the name service who we are.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: who asked is gone, or took too long."""


def serve(registry: CollectorRegistry, host: str, port: int) -> Server:
    """Serve from a thread; `OSError` if the port cannot be had. `server_port` is the one that was
    chosen where it is 0."""
    server = Server(host, port)
    server.set_app(cast("WSGIApplication", make_wsgi_app(registry)))
    threading.Thread(target=server.serve_forever, name="headgate-metrics", daemon=True).start()
    return server

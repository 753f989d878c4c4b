"""A small object server in memory, each answer of which takes as long as it is told: what is
measured against it is the number of requests, not a disk.

`python -m bench.objectserver PORT SECONDS`
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections import Counter
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

COUNTS = "/counts"


class Bucket:
    def __init__(self) -> None:
        self.held: dict[str, tuple[bytes, str, float]] = {}
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket
    latency: float
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if self.path == COUNTS:
            self._answer(200, json.dumps(self.bucket.counts).encode())
            return
        time.sleep(self.latency)
        parts = urlsplit(self.path)
        if "list-type" in parse_qs(parts.query):
            self._list(parse_qs(parts.query).get("prefix", [""])[0])
            return
        self.bucket.counts["read"] += 1
        found = self.bucket.held.get(_key(parts.path))
        if found is None:
            self._refuse(404, "NoSuchKey")
        elif self.headers.get("If-None-Match") == found[1]:
            self._answer(304, b"", ETag=found[1])
        else:
            self._answer(200, found[0], ETag=found[1])

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(self.latency / 2)
        key = _key(urlsplit(self.path).path)
        if not key:  # a bucket
            self._answer(200, b"")
            return
        wanted, absent = self.headers.get("If-Match"), self.headers.get("If-None-Match") == "*"
        with self.bucket.lock:
            self.bucket.counts["write"] += 1
            found = self.bucket.held.get(key)
            late = found is not None if absent else wanted not in (None, found and found[1])
            if not late:
                etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
                self.bucket.held[key] = (body, etag, time.time())
            else:
                self.bucket.counts["late"] += 1
                etag = ""
        time.sleep(self.latency / 2)
        if late:
            self._refuse(412, "PreconditionFailed")
        else:
            self._answer(200, b"", ETag=etag)

    def do_DELETE(self) -> None:
        time.sleep(self.latency)
        self.bucket.counts["delete"] += 1
        self.bucket.held.pop(_key(urlsplit(self.path).path), None)
        self._answer(204, b"")

    def _list(self, prefix: str) -> None:
        self.bucket.counts["list"] += 1
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(one[0])}</Size><LastModified>"
            f"{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(one[2]))}</LastModified>"
            "</Contents>"
            for key, one in sorted(self.bucket.held.copy().items())
            if key.startswith(prefix)
        )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        self._answer(200, text.encode())

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response_only(status)
        self.send_header("Date", formatdate(usegmt=True))
        for name, value in headers.items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status not in (204, 304):
            self.wfile.write(body)


def _key(path: str) -> str:
    """The path without the bucket."""
    return unquote(path).lstrip("/").partition("/")[2]


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Workers that are stopped leave their connections; that is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    port, latency = int(sys.argv[1]), float(sys.argv[2])
    Handler.bucket, Handler.latency = Bucket(), latency
    Server(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()

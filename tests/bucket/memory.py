"""A bucket in the memory of this process: the conditions of a real one, none of its time."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator

from headgate.stores.bucket.objects import UNCHANGED, Got, Listed, Lost


class MemoryObjects:
    def __init__(self) -> None:
        self.held: dict[str, tuple[bytes, str, float]] = {}
        self.counts: Counter[str] = Counter()
        self.sent = self.received = 0
        """Bytes of contents."""
        self._lock = threading.Lock()
        self._etags = itertools.count(1)
        self._own = uuid.uuid4().hex[:8]
        """In all etags: those of two buckets differ, as they do where contents make them."""

    def get(self, key: str, known: str | None = None) -> Got | None:
        with self._lock:
            self.counts["read"] += 1
            found = self.held.get(key)
            if found is None:
                return None
            if found[1] == known:
                return UNCHANGED
            self.received += len(found[0])
        return Got(found[0], found[1])

    def create(self, key: str, body: bytes) -> str:
        return self._put(key, body, None)

    def replace(self, key: str, body: bytes, known: str) -> str:
        return self._put(key, body, known)

    def _put(self, key: str, body: bytes, known: str | None) -> str:
        with self._lock:
            self.counts["write"] += 1
            self.sent += len(body)
            found = self.held.get(key)
            if (None if found is None else found[1]) != known:
                raise Lost(key)
            etag = f'"{self._own}-{next(self._etags)}"'
            self.held[key] = (body, etag, time.time())
            return etag

    def delete(self, key: str) -> None:
        with self._lock:
            self.counts["delete"] += 1
            self.held.pop(key, None)

    def list(self, prefix: str) -> Iterator[Listed]:
        with self._lock:
            self.counts["list"] += 1
            found = [(key, one[2]) for key, one in self.held.items() if key.startswith(prefix)]
        now = time.time()
        return iter([Listed(key, now - at) for key, at in sorted(found)])

    def offset(self) -> float:
        return 0.0

    def requests(self) -> dict[str, int]:
        return dict(self.counts)

    def close(self) -> None:
        """It is gone with the last who knows it."""

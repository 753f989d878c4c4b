"""The store's time: that of the server, as far as its answers tell it."""

from __future__ import annotations

from headgate.clock import Clock
from headgate.stores.bucket.objects import Objects

_own = Clock()
_began = _own.now() - _own.boot()


def steady() -> float:
    """This machine's time of day, but for what it was set to since this process began: nobody's
    lease may end because somebody sets a clock."""
    return _began + _own.boot()


class BucketClock(Clock):
    """Machines whose clocks are wrong agree to within about a second: a lease must not end early
    because somebody's clock is ahead."""

    def __init__(self, objects: Objects, inner: Clock | None) -> None:
        self._objects = objects
        self._inner = inner

    def now(self) -> float:
        if self._inner is not None:
            return self._inner.now()
        return steady() + self._objects.offset()

    def boot(self) -> float:
        """Slots end by a clock that all machines share, and that is this one."""
        return self.now() if self._inner is None else self._inner.boot()

    def boot_id(self) -> str:
        return "bucket"

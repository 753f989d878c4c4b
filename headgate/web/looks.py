"""Reads of the store that pages share: what an open page looks at again and again is read once a
second at most, however many have that page open.

Only for pages that are kept fresh. Who opens one, or has just changed something, sees the store as
it is.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from headgate.web.sampler import FRESH

if TYPE_CHECKING:
    from headgate.stores.protocol import Store

_SHARES: ContextVar[bool] = ContextVar("headgate_shares_looks", default=False)


@contextmanager
def sharing(shares: bool) -> Generator[None]:
    """What is read here may be what another page read within the last second."""
    was = _SHARES.set(shares)
    try:
        yield
    finally:
        _SHARES.reset(was)


def shares() -> bool:
    return _SHARES.get()


class _Look:
    """One read: who comes first makes it, who comes meanwhile waits for it."""

    __slots__ = ("answer", "began", "lock", "made")

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.lock = threading.Lock()
        self.made = False
        self.answer: Any = None

    @property
    def old(self) -> bool:
        return time.monotonic() - self.began > FRESH


class Looks:
    """A store, as far as pages read it."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._looks: OrderedDict[object, _Look] = OrderedDict()

    def forget(self) -> None:
        """Something was changed: who looks next sees it."""
        with self._lock:
            self._looks.clear()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        read: Callable[..., Any] = getattr(self._store(), name)

        def shared(*args: Any, **more: Any) -> Any:
            look = self._of((name, args, tuple(sorted(more.items()))))
            with look.lock:
                if not look.made:
                    look.answer, look.made = read(*args, **more), True
                return look.answer

        return shared

    def _of(self, asked: object) -> _Look:
        with self._lock:
            while self._looks and next(iter(self._looks.values())).old:
                self._looks.popitem(last=False)
            return self._looks.setdefault(asked, _Look())

"""What an object store must be able to do, and how it may fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from headgate.errors import HeadgateError, StoreUnavailable


@dataclass(frozen=True, slots=True)
class Got:
    body: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class Listed:
    key: str
    age: float
    """Seconds since it was written, by the server's clock."""


class Lost(HeadgateError):
    """A conditional write came too late: what is there now must be read again."""


class Trouble(StoreUnavailable):
    """The server did not answer, or not usefully. `maybe`: the request may have been carried out
    all the same."""

    def __init__(self, message: str, *, maybe: bool = False) -> None:
        super().__init__(message)
        self.maybe = maybe


UNCHANGED = Got(b"", "")
"""It still is the object of the etag that was known."""


class Objects(Protocol):
    """One bucket. Reads and listings see every write that has been answered."""

    def get(self, key: str, known: str | None = None) -> Got | None:
        """None: there is no such object. `UNCHANGED`: it is the one of the etag `known`."""
        ...

    def create(self, key: str, body: bytes) -> str:
        """The etag; `Lost` when there is one of that name already."""
        ...

    def replace(self, key: str, body: bytes, known: str) -> str:
        """The etag; `Lost` unless it was the one of the etag `known` until now."""
        ...

    def delete(self, key: str) -> None: ...
    def list(self, prefix: str) -> Iterator[Listed]: ...

    def offset(self) -> float:
        """What must be added to this machine's clock (`steady`) to agree with the server's; 0
        while it agrees as far as one can tell."""
        ...

    def requests(self) -> dict[str, int]:
        """How many of each kind this process has sent."""
        ...

    def close(self) -> None: ...

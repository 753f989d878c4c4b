"""What commands write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A piece of what an attempt wrote. `start` counts the bytes that it wrote before."""

    seq: int
    stream: str
    """`out` or `err`."""
    ago: float
    """Seconds since it was written."""
    start: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Output:
    """What an attempt wrote since it was told last. May be told again: it is kept once."""

    token: int
    pieces: Sequence[OutputPiece]
    forget: tuple[int, int] | None = None
    """Pieces of these numbers (from, up to but not including) are not kept any more."""


@dataclass(frozen=True, slots=True)
class OutputRecord:
    token: int
    attempt: int
    seq: int
    stream: str
    at: float
    start: int
    data: bytes

    @property
    def place(self) -> tuple[int, int]:
        """Where to go on reading."""
        return self.token, self.seq

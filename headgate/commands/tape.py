"""What is kept of the output of one run: its beginning and its end, within a bound.

No store and no clock here. The tape takes what the command writes, and gives batches of it
to be stored. What was given stays in its batch until somebody says that it is stored, so that
a batch may be told again; meanwhile the tape goes on, within the same bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headgate.stores.protocol import Output, OutputPiece

MOST_IN_PIECE = 1 << 16
COST = 64
"""What a piece takes beside its bytes: a command that writes letter by letter is bounded too."""
_LAST_LINE = 300


@dataclass(slots=True)
class _Piece:
    stream: str
    at: float
    start: int
    data: bytearray
    seq: int = -1


class Tape:
    """The first half of `most` bytes is kept for the beginning, the other for the end.

    >>> tape = Tape(7, most=400)
    >>> tape.write("out", b"a" * 100 + b"b" * 900 + b"c" * 100, 0.0)
    >>> [(piece.start, piece.data[-1:]) for piece in tape.batch(0.0).pieces]
    [(0, b'b'), (964, b'c')]
    """

    def __init__(self, token: int, most: int) -> None:
        self.token = token
        self._head = most - most // 2
        """Bytes that the beginning may still take."""
        self._most_tail = most // 2
        self._written = 0
        self._next = 0
        self._waiting: deque[_Piece] = deque()
        """Pieces that no batch holds yet; those of the end are the last ones."""
        self._tail_from: int | None = None
        """The number of the first piece of the end, once there is one."""
        self._tail: int = 0
        """What the end takes, stored or not."""
        self._stored: deque[tuple[int, int]] = deque()
        """(number, what it takes) of the pieces of the end that were given to a batch."""
        self._forgotten = 0
        """Pieces of the end below this number are not kept any more..."""
        self._told_forgotten = 0
        """...and below this one that was told."""
        self._batch: list[_Piece] | None = None
        self._batch_forgets: tuple[int, int] | None = None
        self._last = bytearray()

    @property
    def empty(self) -> bool:
        """Is all of it stored?"""
        return not self._waiting and self._batch is None

    # --- from the command ----------------------------------------------------------------------

    def write(self, stream: str, data: bytes, at: float) -> None:
        self._last += data
        del self._last[: -4 * _LAST_LINE]
        while data:
            if self._head > 0:
                part = data[: min(self._head, MOST_IN_PIECE)]
                self._head -= self._add(stream, part, at)
            else:
                part = data[: min(self._most_tail, MOST_IN_PIECE)]
                if self._tail_from is None:
                    self._tail_from = self._next + len(self._waiting)
                    self._forgotten = self._told_forgotten = self._tail_from
                self._tail += self._add(stream, part, at)
                self._shorten()
            data = data[len(part) :]

    def _add(self, stream: str, data: bytes, at: float) -> int:
        """Put it behind the rest; what it takes."""
        last = self._waiting[-1] if self._waiting else None
        place = self._written
        self._written += len(data)
        if (
            last is not None
            and last.stream == stream
            and last.start + len(last.data) == place
            and len(last.data) + len(data) <= MOST_IN_PIECE
            # The end is forgotten piece by piece, so none may be half of the beginning.
            and self._next + len(self._waiting) != self._tail_from
        ):
            last.data += data
            return len(data)
        self._waiting.append(_Piece(stream, at, place, bytearray(data)))
        return len(data) + COST

    def _shorten(self) -> None:
        """Leave out the oldest of the end until the rest fits: first what is stored."""
        while (over := self._tail - self._most_tail) > 0:
            if self._stored:
                number, size = self._stored.popleft()
                self._tail -= size
                self._forgotten = number + 1
                continue
            index = self._first_of_tail()
            piece = self._waiting[index]
            cut = min(over, len(piece.data))
            del piece.data[:cut]
            piece.start += cut
            self._tail -= cut
            if not piece.data:
                del self._waiting[index]
                self._tail -= COST

    def _first_of_tail(self) -> int:
        """Among those that wait, the first piece of the end."""
        assert self._tail_from is not None
        return max(0, self._tail_from - self._next)

    # --- to the store --------------------------------------------------------------------------

    def batch(self, now: float) -> Output:
        """What is to be stored next; the same again until `stored` is called."""
        if self._batch is None:
            self._batch = list(self._waiting)
            self._waiting.clear()
            for piece in self._batch:
                piece.seq = self._next
                self._next += 1
                if self._tail_from is not None and piece.seq >= self._tail_from:
                    self._stored.append((piece.seq, len(piece.data) + COST))
            if self._forgotten > self._told_forgotten:
                self._batch_forgets = self._told_forgotten, self._forgotten
        pieces: Sequence[OutputPiece] = [
            OutputPiece(p.seq, p.stream, max(0.0, now - p.at), p.start, bytes(p.data))
            for p in self._batch
        ]
        return Output(self.token, pieces, self._batch_forgets)

    def stored(self) -> None:
        """The last batch is in the store."""
        if self._batch_forgets is not None:
            self._told_forgotten = self._batch_forgets[1]
        self._batch = self._batch_forgets = None

    # --- for the error -------------------------------------------------------------------------

    def last_line(self) -> str:
        """The last line that says something.

        >>> tape = Tape(7, most=100)
        >>> tape.write("out", b"copying\\nno space left\\n\\n", 0.0)
        >>> tape.last_line()
        'no space left'
        """
        lines = self._last.decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][-_LAST_LINE:] if said else ""

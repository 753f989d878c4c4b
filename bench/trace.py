"""What the jobs of a benchmark note while they run: counts, and spans of time.

Each worker process writes to a file of its own through shared memory, which costs less than a
microsecond, needs no lock and survives a kill. The benchmark reads the files at any time.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

COUNTERS = 16
_COUNT = struct.Struct("<q")
_SPAN = struct.Struct("<qdd")
_HEAD = COUNTERS * _COUNT.size
_MOST_SPANS = 2_000_000
FOLDER = "HEADGATE_BENCH_FOLDER"


def now() -> float:
    """One clock for all processes of the machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Trace:
    """Written by one process. Counter 0 is the number of spans."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w+b") as file:
            # A sparse file: only what is written takes room.
            file.truncate(_HEAD + _MOST_SPANS * _SPAN.size)
            self._memory = mmap.mmap(file.fileno(), 0)
        self._counts = [0] * COUNTERS

    def count(self, which: int) -> None:
        self._counts[which] += 1
        # In one piece: `pack_into` writes zeros first, and somebody may read those.
        at = which * _COUNT.size
        self._memory[at : at + _COUNT.size] = _COUNT.pack(self._counts[which])

    def span(self, kind: int, began: float, ended: float) -> None:
        at = _HEAD + self._counts[0] * _SPAN.size
        _SPAN.pack_into(self._memory, at, kind, began, ended)
        # Counted after it is written: who reads meanwhile sees whole spans only.
        self.count(0)


_own: Trace | None = None


def own() -> Trace:
    """The trace of this process, made when it is first needed."""
    global _own
    if _own is None:
        _own = Trace(Path(os.environ[FOLDER]) / "trace" / f"{os.getpid()}.bin")
    return _own


def _forget() -> None:
    global _own
    _own = None


os.register_at_fork(after_in_child=_forget)


@dataclass(frozen=True, slots=True)
class Span:
    kind: int
    began: float
    ended: float


class Traces:
    """All traces of one fleet, read by the benchmark."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "trace"

    def clear(self) -> None:
        """Forget what earlier fleets left; none may be running."""
        for path in self._folder.glob("*.bin"):
            path.unlink()

    def counts(self) -> list[int]:
        sums = [0] * COUNTERS
        for counts in self._by_process():
            for i, count in enumerate(counts):
                sums[i] += count
        return sums

    def each(self, which: int) -> list[int]:
        """By process."""
        return [counts[which] for counts in self._by_process()]

    def _by_process(self) -> Iterator[list[int]]:
        for path in self._folder.glob("*.bin"):
            with path.open("rb") as file:
                head = file.read(_HEAD)
            whole = len(head) // _COUNT.size  # less where a process has just made it
            counts = [_COUNT.unpack_from(head, i * _COUNT.size)[0] for i in range(whole)]
            yield counts + [0] * (COUNTERS - whole)

    def count(self, which: int) -> int:
        return self.counts()[which]

    def spans(self) -> list[Span]:
        found: list[Span] = []
        for path in self._folder.glob("*.bin"):
            with path.open("rb") as file:
                head = file.read(_HEAD)
                if len(head) < _HEAD:
                    continue
                body = file.read(_COUNT.unpack_from(head, 0)[0] * _SPAN.size)
            found += [Span(*fields) for fields in _SPAN.iter_unpack(body)]
        return sorted(found, key=lambda span: span.began)


def most_at_once(spans: Iterable[Span]) -> int:
    """The most spans that overlap; one that ends when another begins does not.

    >>> most_at_once([Span(0, 0, 2), Span(0, 1, 3), Span(0, 3, 4)])
    2
    """
    edges = sorted(
        [(span.began, 1) for span in spans] + [(span.ended, -1) for span in spans],
    )
    most = running = 0
    for _, step in edges:
        running += step
        most = max(most, running)
    return most


def shares(spans: Sequence[Span]) -> dict[int, float]:
    """How much of all starts each kind had.

    >>> shares([Span(1, 0, 1), Span(1, 0, 1), Span(2, 0, 1), Span(2, 0, 1)])
    {1: 0.5, 2: 0.5}
    """
    counts = Counter(span.kind for span in spans)
    return {kind: count / len(spans) for kind, count in sorted(counts.items())}

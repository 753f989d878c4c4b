"""How long to wait before something that failed is tried once more."""

from __future__ import annotations

_FAR = 60
"""Doublings after which every wait is the longest: an outage of hours has thousands of failures,
and 2 to the power of that is no number any more."""


def doubled(failures: int, first: float, longest: float) -> float:
    """Seconds: `first`, and twice as long after each failure, up to `longest`.

    >>> [doubled(n, 0.5, 3.0) for n in (0, 1, 2, 3, 100_000)]
    [0.5, 1.0, 2.0, 3.0, 3.0]
    """
    return min(first * 2.0 ** min(failures, _FAR), longest)

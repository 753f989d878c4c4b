"""Small tables for the terminal: ratios first, absolute figures behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def show(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """The first column to the left, the others to the right."""
    lines = [list(titles), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip(), flush=True)


def rate(value: float) -> str:
    return f"{value:,.0f}/s"


def ratio(value: float) -> str:
    return f"{value:.2f}"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"

"""Tables and times: coloured in a terminal, plain and whole everywhere else."""

from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Sequence

import click

from headgate.cli.frame import Frame
from headgate.codec import visible
from headgate.why import age

WIDE = 130

STYLES = {
    "scheduled": "blue",
    "ready": "cyan",
    "running": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "magenta",
    "alive": "green",
    "stalled": "yellow",
    "stopping": "yellow",
    "dead": "red",
    "paused": "yellow",
    "full": "yellow",
    "lost": "red",
    "overdue": "red",
}


def table(frame: Frame, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under headings. A heading that ends in `>` is aligned to the right."""
    titles = [column.rstrip(">") for column in columns]
    right = [column.endswith(">") for column in columns]
    cells = [[_cell(value) for value in row] for row in rows]
    if frame.terminal:
        _rich_table(titles, right, cells)
    else:
        _plain_table(titles, right, cells)


def fields(frame: Frame, pairs: Sequence[tuple[str, object]]) -> None:
    """One thing, a line per field; empty ones are left out."""
    told = [(name, _cell(value)) for name, value in pairs if value not in (None, "", ())]
    width = max((len(name) for name, _ in told), default=0)
    if frame.terminal:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        for name, value in told:
            grid.add_row(Text(name, style="dim"), Text(value, style=STYLES.get(value, "")))
        Console().print(grid)
        return
    for name, value in told:
        first, *rest = value.split("\n")
        click.echo(f"{name:<{width}}  {first}")
        for line in rest:
            click.echo(f"{'':<{width}}  {line}")


def when(moment: float | None, now: float) -> str:
    """Local time and how long ago, or in how long.

    >>> when(None, 0.0)
    ''
    """
    if moment is None:
        return ""
    local, today = time.localtime(moment), time.localtime(now)
    style = "%H:%M:%S" if local[:3] == today[:3] else "%Y-%m-%d %H:%M:%S"
    distance = f"in {age(moment - now)}" if moment > now + 0.05 else f"{age(now - moment)} ago"
    return f"{time.strftime(style, local)} ({distance})"


def short(frame: Frame, moment: float | None, now: float) -> str:
    """A time in a column: where a line of the terminal is too short for both, only its age."""
    if moment is not None and frame.terminal and shutil.get_terminal_size().columns < WIDE:
        return f"in {age(moment - now)}" if moment > now else f"{age(now - moment)} ago"
    return when(moment, now)


def paragraph(frame: Frame, text: str) -> None:
    """Sentences, broken between words where somebody reads them."""
    text = visible(text)
    if frame.terminal:
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    click.echo(text)


def line(text: str) -> None:
    """One line of an answer, whatever it quotes."""
    click.echo(visible(" ".join(text.split("\n"))))


def note(text: str) -> None:
    """A word to the person, never mixed into the answer on stdout."""
    click.echo(visible(text), err=True)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return visible(text)


def _rich_table(titles: list[str], right: list[bool], cells: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for title, is_right in zip(titles, right, strict=True):
        # Ids are for copying: whole or not at all.
        drawn.add_column(
            title,
            justify="right" if is_right else "left",
            no_wrap=title in ("id", "holder", "state", "group", "what"),
            overflow="fold",
        )
    for row in cells:
        drawn.add_row(*(Text(cell, style=STYLES.get(cell.split(" ")[0], "")) for cell in row))
    Console().print(drawn)


def _plain_table(titles: list[str], right: list[bool], cells: list[list[str]]) -> None:
    flat = [[cell.replace("\n", "\\n") for cell in row] for row in [titles, *cells]]
    widths = [max(len(row[n]) for row in flat) for n in range(len(titles))]
    for row in flat:
        padded = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())

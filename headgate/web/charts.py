"""Charts, as SVG made here: colours are classes of the style sheet, and each says in words what
it shows."""

# ruff: noqa: S704 (every text that comes from elsewhere goes through `escape`)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup
from markupsafe import escape as escape_markup

from headgate.web.words import plainly

WIDTH = 720
HEIGHT = 180
LEFT = 44
BOTTOM = 22
TOP = 8
RIGHT = 8


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    css: str
    values: Sequence[float | None]


def escape(text: str) -> Markup:
    return escape_markup(plainly(text))


def bars(label: str, times: Sequence[float], series: Sequence[Series]) -> Markup:
    """Stacked bars, one for each moment."""
    totals = [sum(s.values[n] or 0 for s in series) for n in range(len(times))]
    top = _nice(max(totals, default=0))
    plot = WIDTH - LEFT - RIGHT
    step = plot / max(1, len(times))
    parts: list[str] = []
    for n, at in enumerate(times):
        below = 0.0
        told = ", ".join(f"{s.values[n] or 0:,.0f} {s.name}" for s in series)
        shapes: list[str] = []
        for s in series:
            value = s.values[n] or 0
            if value:
                y, height = _y(below + value, top), _y(below, top) - _y(below + value, top)
                shapes.append(
                    f'<rect class="fill-{s.css}" x="{LEFT + n * step + 1:.1f}" y="{y:.1f}"'
                    f' width="{max(1.0, step - 2):.1f}" height="{max(0.8, height):.1f}" rx="1"/>'
                )
                below += value
        if shapes:
            parts.append(f"<g><title>{clock(at)} — {escape(told)}</title>{''.join(shapes)}</g>")
    said = ", ".join(f"{sum(v or 0 for v in s.values):,.0f} {s.name}" for s in series)
    return _frame(f"{label}: {said}", "".join(parts), top, times) + _legend(series)


def lines(label: str, times: Sequence[float], series: Sequence[Series]) -> Markup:
    """A line for each series; a missing value breaks it."""
    known = [v for s in series for v in s.values if v is not None]
    top = _nice(max(known, default=0))
    parts: list[str] = []
    first, last = (times[0], times[-1]) if times else (0.0, 1.0)
    for s in series:
        path, down = "", False
        for at, value in zip(times, s.values, strict=True):
            if value is None:
                down = False
                continue
            x = LEFT + (at - first) / max(1e-9, last - first) * (WIDTH - LEFT - RIGHT)
            path += f"{'L' if down else 'M'}{x:.1f} {_y(value, top):.1f}"
            down = True
        if path:
            parts.append(f'<path class="line line-{s.css}" d="{path}"/>')
        if path and "L" not in path:
            x, y = path.rpartition("M")[2].split(" ")
            parts.append(f'<circle class="fill-{s.css}" cx="{x}" cy="{y}" r="3"/>')
    now = [(s.name, next((v for v in reversed(s.values) if v is not None), None)) for s in series]
    said = ", ".join(f"{name} {value:,.0f}" for name, value in now if value is not None)
    return _frame(f"{label}: {said or 'nothing yet'}", "".join(parts), top, times) + _legend(series)


def gauge(held: int, limit: int | None, label: str, *, alarms: bool = True) -> Markup:
    """How full something is; the words beside it tell the numbers. Without `alarms`, full is no
    worse than empty."""
    full = limit is not None and held >= limit
    share = 0.0 if not limit else min(1.0, held / limit)
    if limit is None or (limit == 0 and not held):
        full, share = False, 0.0
    css = "ok" if not alarms else "full" if full else "busy" if share >= 0.8 else "ok"
    wide = max(2.0 if held else 0.0, share * 100)
    return Markup(
        '<svg class="gauge" viewBox="0 0 100 8" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(label)}"><rect class="gauge-back" width="100" height="8" rx="2"/>'
        f'<rect class="gauge-{css}" width="{wide:.1f}" height="8" rx="2"/></svg>'
    )


def share(part: float, expected: float, label: str) -> Markup:
    """A share of the whole, with a mark at what is expected."""
    x = max(0.5, min(99.5, expected * 100))
    return Markup(
        '<svg class="gauge share" viewBox="0 0 100 8" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(label)}"><rect class="gauge-back" width="100" height="8" rx="2"/>'
        f'<rect class="gauge-ok" width="{min(100.0, part * 100):.1f}" height="8" rx="2"/>'
        f'<rect class="gauge-mark" x="{x - 0.5:.1f}" width="1" height="8"/></svg>'
    )


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a time line."""

    start: float
    end: float
    css: str
    label: str


def timeline(stretches: Sequence[Stretch], label: str) -> Markup:
    """What happened when, a line for each."""
    if not stretches:
        return Markup("")
    first = min(s.start for s in stretches)
    last = max(s.end for s in stretches)
    span = max(1e-6, last - first)
    row = 28
    height = row * len(stretches) + BOTTOM
    parts: list[str] = []
    for n, s in enumerate(stretches):
        x = 4 + (s.start - first) / span * (WIDTH - 8)
        wide = max(3.0, (s.end - s.start) / span * (WIDTH - 8))
        x = min(x, WIDTH - 4 - wide)
        anchor = "end" if x > WIDTH / 2 else "start"
        tx = x + wide - 4 if anchor == "end" else x + 4
        parts.append(
            f'<g><title>{escape(s.label)}</title><rect class="stretch stretch-{s.css}"'
            f' x="{x:.1f}" y="{n * row + 2}" width="{wide:.1f}" height="{row - 5}" rx="3"/>'
            f'<text class="stretch-text" x="{tx:.1f}" y="{n * row + 19}" text-anchor="{anchor}">'
            f"{escape(s.label)}</text></g>"
        )
    y = height - 6
    parts.append(f'<text class="tick" x="4" y="{y}">{clock(first, seconds=True)}</text>')
    if last - first > 1:
        end = clock(last, seconds=True)
        parts.append(f'<text class="tick" x="{WIDTH - 4}" y="{y}" text-anchor="end">{end}</text>')
    return Markup(
        f'<svg class="chart timeline" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def clock(at: float, *, seconds: bool = False) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S" if seconds else "%H:%M")


def _frame(label: str, inner: str, top: float, times: Sequence[float]) -> Markup:
    grid: list[str] = []
    for value in (0, top / 2, top):
        y = _y(value, top)
        grid.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        grid.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}'
            "</text>"
        )
    if times:
        marks = ((times[0], LEFT, "start"), (times[-1], WIDTH - RIGHT, "end"))
        if len(times) > 2:
            middle = times[0] + (times[-1] - times[0]) / 2
            marks = (*marks, (middle, LEFT + (WIDTH - LEFT - RIGHT) / 2, "middle"))
        for at, x, anchor in marks:
            grid.append(
                f'<text class="tick" x="{x}" y="{HEIGHT - 6}" text-anchor="{anchor}">{clock(at)}'
                "</text>"
            )
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(label)}">{"".join(grid)}{inner}</svg>'
    )


def _legend(series: Sequence[Series]) -> Markup:
    items = "".join(
        f'<li><span class="swatch fill-{s.css}" aria-hidden="true"></span>{escape(s.name)}</li>'
        for s in series
    )
    return Markup(f'<ul class="legend">{items}</ul>')


def _y(value: float, top: float) -> float:
    return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top), 1)


def _nice(value: float) -> float:
    """A round number at or above, for the top of a scale.

    >>> _nice(0), _nice(3), _nice(23), _nice(180)
    (2, 4, 40, 200)
    """
    scale = 1
    while True:
        for step in (2, 4, 10):
            if step * scale >= value:
                return step * scale
        scale *= 10


def short(value: float) -> str:
    """
    >>> short(0), short(1500), short(20_000), short(3_000_000)
    ('0', '1.5k', '20k', '3M')
    """
    for size, unit in ((1_000_000, "M"), (1000, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"

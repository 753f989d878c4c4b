"""What the demo shows while it runs: a live picture in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from headgate.stores.protocol import LimitRecord, WorkerRecord

PLAIN_EVERY = 2.0


@dataclass(frozen=True, slots=True)
class Scene:
    """One look at the store."""

    elapsed: float
    done: int
    total: int
    groups: list[LimitRecord]
    waiting: Mapping[str, tuple[int, int]]
    """By tenant: jobs not yet started, and all of them."""
    workers: list[WorkerRecord]


class View(Protocol):
    def show(self, scene: Scene) -> None: ...
    def say(self, text: str) -> None: ...


class Silent:
    """For `--json`: nothing but the answer."""

    def show(self, scene: Scene) -> None: ...
    def say(self, text: str) -> None: ...


class Plain:
    """A line every two seconds, and one for each thing that happens."""

    def __init__(self) -> None:
        self._next = 0.0

    def show(self, scene: Scene) -> None:
        if scene.elapsed < self._next:
            return
        self._next = scene.elapsed + PLAIN_EVERY
        held = "  ".join(f"{g.group} {g.held}/{g.value}" for g in scene.groups if g.held)
        waits = "  ".join(f"{name} {left}" for name, (left, _) in scene.waiting.items() if left)
        click.echo(
            f"{scene.elapsed:5.1f} s  {scene.done:>4}/{scene.total} done"
            f"  held: {held or 'nothing'}  waiting: {waits or 'none'}"
        )

    def say(self, text: str) -> None:
        click.echo(f"         {text}")


class Picture:
    """Bars of what is held and what waits, redrawn in place."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._said: list[tuple[float, str]] = []
        self._began = time.monotonic()

    def show(self, scene: Scene) -> None:
        self._live.update(self._draw(scene))

    def say(self, text: str) -> None:
        self._said.append((time.monotonic() - self._began, text))

    def _draw(self, scene: Scene) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        title = Text.assemble(
            ("headgate demo", "bold"),
            f"   {scene.elapsed:4.1f} s   {scene.done} of {scene.total} jobs done",
        )
        said = [Text(f"{t:5.1f} s  {text}", style="yellow") for t, text in self._said[-4:]]
        return Group(
            title,
            *_part("held, of each limit", self._groups(scene)),
            *_part("started, of each tenant's jobs", self._tenants(scene)),
            *_part("worker processes", self._workers(scene)),
            Text(),
            *said,
            Text(),
        )

    def _groups(self, scene: Scene) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(min_width=16)
        for group in scene.groups:
            limit = group.value or 0
            bar = Text("■ " * group.held, style="green" if group.held <= limit else "bold red")
            bar.append("□ " * max(0, limit - group.held), style="dim")
            grid.add_row(group.group, bar, Text(f"{group.held} of {limit}", style="dim"))
        return grid

    def _tenants(self, scene: Scene) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(min_width=16)
        for name, (left, total) in scene.waiting.items():
            bar = ProgressBar(total=total, completed=total - left, width=40)
            told = f"{left} of {total} wait" if left else "all started"
            grid.add_row(name, bar, Text(told, style="dim"))
        return grid

    def _workers(self, scene: Scene) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(min_width=16)
        for worker in sorted(scene.workers, key=lambda w: (w.name, w.started_at)):
            style = "green" if worker.state == "alive" else "red"
            running = f"process {worker.pid}, {worker.running} of {worker.concurrency} running"
            grid.add_row(worker.name, Text(worker.state, style=style), Text(running, style="dim"))
        return grid


def _part(title: str, content: RenderableType) -> list[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    return [Padding(Text(title, style="dim italic"), (1, 0, 0, 0)), content]


@contextmanager
def opened(live: bool, quiet: bool) -> Generator[View]:
    """The view that fits where the demo runs."""
    if quiet:
        yield Silent()
    elif not live:
        yield Plain()
    else:
        from rich.live import Live

        with Live(refresh_per_second=10, transient=False) as screen:
            yield Picture(screen)

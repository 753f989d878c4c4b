"""`headgate top`: groups, workers and throughput, live in the terminal."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from headgate.cli import values
from headgate.cli.frame import Frame, Verb, pass_frame
from headgate.stores.glances import glancing

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headgate.stores.protocol import Ended, LimitLoad, QueueRecord, Store, WorkerRecord

WINDOW = 60.0
"""Seconds over which throughput is counted."""
BOUND = 100_000
BARS = "▁▂▃▄▅▆▇█"
POINTS = 60
AGE = 0.2
"""Seconds that what is shown may be old: on a bucket, one request does for all that is asked."""


@dataclass(frozen=True, slots=True)
class Glance:
    """The store at a moment, from bounded reads."""

    at: float
    loads: Sequence[LimitLoad]
    workers: Sequence[WorkerRecord]
    queues: Sequence[QueueRecord]
    ended: Ended

    @property
    def running(self) -> int:
        return sum(queue.running for queue in self.queues)

    @property
    def waiting(self) -> str:
        count = sum(queue.waiting for queue in self.queues)
        return f"{count:,}{'+' if any(queue.bounded for queue in self.queues) else ''}"

    @property
    def room(self) -> int:
        return sum(worker.concurrency for worker in self.workers if worker.state == "alive")

    @property
    def per_second(self) -> float:
        return (self.ended.succeeded + self.ended.failed) / WINDOW


@click.command(cls=Verb)
@click.option("--once", is_flag=True, help="Show it once; so it is too where nobody looks.")
@click.option(
    "--every", metavar="2s", default="2s", show_default=True, callback=values.span,
    help="How often to look.",
)  # fmt: skip
@pass_frame
def top(frame: Frame, once: bool, every: float) -> None:
    """Groups, workers, queues and throughput, live. `q` or Ctrl-C ends it.

    Groups that are fullest stand first. Throughput is counted over the last minute.

    \b
    headgate top
    headgate top --every 10s
    headgate top --once --json
    """
    if every < 0.2:
        raise click.UsageError("--every: look at most five times a second, as in --every 0.2")
    store = frame.store()
    if frame.as_json:
        frame.print_json(_data(look(store)))
    elif once or not frame.terminal:
        _print(frame, look(store))
    else:
        _live(store, every)


def look(store: Store) -> Glance:
    with glancing(AGE):
        now = store.now()
        (ended,) = store.ended([now - WINDOW, now], BOUND)
        loads = sorted(store.loads(), key=_fullest)
        workers = sorted(store.workers(), key=lambda w: (w.state != "alive", -w.running, w.name))
        queues = sorted(store.queues(), key=lambda q: (-q.waiting, q.name))
    return Glance(now, loads, workers, queues, ended)


def _fullest(load: LimitLoad) -> tuple[float, int, str]:
    value = load.limit.value
    full = 0.0 if value is None or load.limit.keyed else load.held / value if value else 1.0
    return -full, -load.waiting, load.limit.group


# --- in words, or as data ------------------------------------------------------------------------


def _data(glance: Glance) -> dict[str, Any]:
    from headgate.cli import data

    ended = glance.ended
    return {
        "at": data.moment(glance.at),
        "running": glance.running,
        "room": glance.room,
        "throughput": {
            "seconds": WINDOW,
            "succeeded": ended.succeeded,
            "failed": ended.failed,
            "cancelled": ended.cancelled,
            "bounded": ended.bounded,
        },
        "groups": [
            {
                "group": load.limit.group,
                "limit": load.limit.value,
                "keyed": load.limit.keyed,
                "paused": load.limit.paused,
                "active": load.held,
                "active_bounded": load.held_bounded,
                "holders": load.holders,
                "waiting": load.waiting,
                "waiting_bounded": load.waiting_bounded,
                "oldest_ready_at": data.moment(load.oldest),
            }
            for load in glance.loads
        ],
        "workers": [data.worker(worker) for worker in glance.workers],
        "queues": [data.queue(queue) for queue in glance.queues],
    }


def _summary(glance: Glance) -> str:
    alive = sum(worker.state == "alive" for worker in glance.workers)
    more = "+" if glance.ended.bounded else ""
    return (
        f"{alive} worker{'' if alive == 1 else 's'} alive, {glance.running:,} of {glance.room:,}"
        f" running, {glance.waiting} waiting; last minute: {glance.ended.succeeded:,}{more}"
        f" succeeded, {glance.ended.failed:,} failed, {glance.per_second:,.1f}/s"
    )


def _print(frame: Frame, glance: Glance) -> None:
    from headgate.cli import show

    click.echo(_summary(glance))
    for columns, rows in _tables(glance, bars=False):
        if rows:
            click.echo()
            show.table(frame, columns, rows)


Rows = list[tuple[object, ...]]


def _tables(glance: Glance, *, bars: bool) -> list[tuple[list[str], Rows]]:
    from headgate.why import age

    def since(moment: float | None) -> str:
        return "" if moment is None else age(max(0.0, glance.at - moment))

    groups: Rows = [
        (
            load.limit.group,
            f"{load.held:,}{'+' if load.held_bounded else ''}",
            "unlimited" if load.limit.value is None else load.limit.value,
            _use(load, bars),
            f"{load.waiting:,}{'+' if load.waiting_bounded else ''}",
            since(load.oldest),
            _state(load),
        )
        for load in glance.loads
    ]
    workers: Rows = [
        (
            worker.name,
            worker.state,
            f"{worker.running}/{worker.concurrency}",
            ",".join(worker.queues) or "all",
            worker.host,
            since(worker.started_at),
        )
        for worker in glance.workers
    ]
    queues: Rows = [
        (
            queue.name,
            f"{queue.waiting:,}{'+' if queue.bounded else ''}",
            queue.running,
            queue.scheduled,
            since(queue.oldest_ready_at),
            "paused" if queue.paused else "open",
        )
        for queue in glance.queues
    ]
    return [
        (["group", "held>", "limit>", "used", "waiting>", "oldest>", "state"], groups),
        (["worker", "state", "running>", "queues", "host", "up>"], workers),
        (["queue", "waiting>", "running>", "scheduled>", "oldest>", "state"], queues),
    ]


def _use(load: LimitLoad, bars: bool, width: int = 12) -> str:
    value = load.limit.value
    if not value or load.limit.keyed:
        return "" if bars else "-"
    part = load.held / value
    if not bars:
        return f"{part:.0%}"
    full = min(width, round(width * part))
    return "█" * full + "·" * (width - full)


def _state(load: LimitLoad) -> str:
    limit = load.limit
    if limit.paused:
        return "paused"
    if limit.keyed:
        return f"{load.keys:,} keys held"
    return "full" if limit.value is not None and load.held >= limit.value else "open"


# --- live ----------------------------------------------------------------------------------------


def _live(store: Store, every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from headgate.errors import StoreBusy, StoreUnavailable

    past: deque[float] = deque(maxlen=POINTS)
    trouble = ""
    glance = look(store)
    with (
        _keys() as pressed,
        Live(console=Console(), screen=True, auto_refresh=False) as live,
        contextlib.suppress(KeyboardInterrupt),
    ):
        while True:
            past.append(glance.per_second)
            live.update(_screen(glance, past, trouble), refresh=True)
            if pressed(every):
                return
            try:
                glance, trouble = look(store), ""
            except (StoreBusy, StoreUnavailable) as error:
                # It may come back: what was seen last stays, and says how old it is.
                trouble = f"not seen since {time.strftime('%H:%M:%S')}: {error}"


def _screen(glance: Glance, past: Sequence[float], trouble: str) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from headgate.cli.show import STYLES
    from headgate.codec import visible

    parts: list[RenderableType] = [Text(_summary(glance), style="bold")]
    parts.append(Text(f"{spark(past)}  jobs a second", style="green"))
    if trouble:
        parts.append(Text(visible(trouble), style="red"))
    # Groups have half of the lines, workers and queues a quarter each; what is left out is said.
    left = max(6, shutil.get_terminal_size().lines - len(parts) - 3 * 3)
    for (columns, rows), share in zip(_tables(glance, bars=True), (2, 4, 4), strict=True):
        most = max(2, left // share)
        drawn = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, expand=False)
        for column in columns:
            right = column.endswith(">")
            drawn.add_column(column.rstrip(">"), justify="right" if right else "left", no_wrap=True)
        for row in rows[:most]:
            cells = [f"{c:,}" if isinstance(c, int) else visible(str(c)) for c in row]
            drawn.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in cells))
        parts.append(drawn)
        if len(rows) > most:
            parts.append(Text(f"… and {len(rows) - most:,} more", style="dim"))
    return Group(*parts)


def spark(points: Sequence[float]) -> str:
    """A line of bars, the highest for the greatest.

    >>> spark([0, 1, 2, 4])
    '▁▂▄█'
    """
    most = max(points, default=0.0)
    if most <= 0:
        return BARS[0] * len(points)
    return "".join(BARS[int(point / most * (len(BARS) - 1))] for point in points)


@contextlib.contextmanager
def _keys() -> Generator[Any]:
    """Gives a function that waits so many seconds and says whether `q` was pressed meanwhile."""
    if not sys.stdin.isatty():

        def rest(seconds: float) -> bool:
            time.sleep(seconds)
            return False

        yield rest
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([fd], [], [], left)[0]:
                # Nothing: the terminal is gone.
                typed = os.read(fd, 64)
                if not typed or b"q" in typed.lower():
                    return True
        return False

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)

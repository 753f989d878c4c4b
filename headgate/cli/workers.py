"""`headgate workers`: who is alive."""

from __future__ import annotations

import click

from headgate.cli.frame import Frame, Verb, pass_frame


@click.group()
def workers() -> None:
    """The workers that are alive."""


@workers.command("ls", cls=Verb)
@pass_frame
def list_workers(frame: Frame) -> None:
    """All worker processes: where they run, what they take, how busy they are.

    \b
    headgate workers ls
    """
    from headgate.cli import data, show

    store = frame.store()
    found = store.workers()
    if frame.as_json:
        frame.print_json({"workers": [data.worker(worker) for worker in found]})
        return
    if not found:
        show.note("no worker is running; start one with: headgate worker MODULE:APP")
        return
    now = store.now()
    rows = [
        (
            worker.name,
            worker.state,
            f"{worker.running}/{worker.concurrency}",
            ",".join(worker.queues) or "all",
            worker.host,
            str(worker.pid),
            show.short(frame, worker.started_at, now),
            worker.id,
        )
        for worker in found
    ]
    columns = ["worker", "state", "running>", "queues", "host", "pid>", "started", "id"]
    show.table(frame, columns, rows)

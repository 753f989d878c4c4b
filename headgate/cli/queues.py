"""`headgate queues`: what waits where, and pausing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headgate.cli.frame import Frame, Verb, me, pass_frame
from headgate.cli.pausing import add_pausing

if TYPE_CHECKING:
    from headgate.config import QueueConfig
    from headgate.stores.protocol import QueueRecord, Store


@click.group()
def queues() -> None:
    """List, pause and resume queues."""


@queues.command("ls", cls=Verb)
@pass_frame
def list_queues(frame: Frame) -> None:
    """All queues, with what waits and runs in each.

    \b
    headgate queues ls
    headgate queues ls --json
    """
    from headgate.cli import data, show

    store = frame.store()
    found = store.queues()
    if frame.as_json:
        frame.print_json({"queues": [data.queue(queue) for queue in found]})
        return
    if not found:
        show.note("no job waits or runs in any queue, and none is paused")
        return
    now = store.now()
    rows = [
        (
            queue.name,
            f"{queue.waiting:,}{'+' if queue.bounded else ''}",
            queue.running,
            queue.scheduled,
            show.short(frame, queue.oldest_ready_at, now),
            _state(queue, frame.config.queues.get(queue.name)),
        )
        for queue in found
    ]
    show.table(frame, ["queue", "waiting>", "running>", "scheduled>", "oldest", "state"], rows)


def _state(queue: QueueRecord, config: QueueConfig | None) -> str:
    if not queue.paused:
        if config is not None and config.closed:
            return "paused in the configuration"
        return "open"
    return f"paused by {queue.paused_by}" if queue.paused_by else "paused"


def _set(frame: Frame, queue: str, paused: bool, reason: str) -> None:
    from headgate.cli import data, show
    from headgate.limits import check_name

    check_name(queue, "queue")
    store: Store = frame.store()
    if queue not in {known.name for known in store.queues()}:
        show.note(f"note: queue {queue} holds no job now: is the name right?")
    store.pause_queue(queue, paused, by=me(), reason=reason)
    if frame.as_json:
        after = next((q for q in store.queues() if q.name == queue), None)
        told = data.queue(after) if after else {"queue": queue, "paused": paused}
        frame.print_json(told)
    else:
        click.echo(f"queue {queue} is {'paused' if paused else 'open'}")


add_pausing(
    queues,
    "queue",
    _set,
    pause="""Keep the jobs of QUEUE from starting; what runs goes on.

    \b
    headgate queues pause mail --reason "the provider is down"
    """,
    resume="""Let the jobs of QUEUE start again.

    \b
    headgate queues resume mail
    """,
)

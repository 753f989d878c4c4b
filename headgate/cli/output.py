"""`headgate jobs output`: what the command of a job wrote, now or as it comes."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.frame import Frame, Verb, pass_frame

if TYPE_CHECKING:
    from headgate.jobs import JobRecord
    from headgate.stores.protocol import OutputRecord, Store

_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


@click.command("output", cls=Verb)
@click.argument("id")
@click.option("--follow", "-f", is_flag=True, help="Go on as it comes, until the job is over.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Of this attempt only.")
@click.option("--stream", type=click.Choice(("out", "err")), help="Of this stream only.")
@pass_frame
def output(frame: Frame, id: str, follow: bool, attempt: int | None, stream: str | None) -> None:
    """What the command of a job wrote, in order, over all its attempts.

    \b
    headgate jobs output 0190c2a4-…
    headgate jobs output 0190c2a4-… --follow

    Which of it went to stderr is known only where the command has separate_streams. With
    --follow --json there is one JSON document a line.
    """
    from headgate.cli import show
    from headgate.commands import output as outputs
    from headgate.errors import JobNotFound

    store = frame.store()
    job = store.job(id)
    if job is None:
        raise JobNotFound(f"no job {id!r} in {store.url}: check the id; finished jobs are pruned")
    reader = _Reader(store, id, follow)
    chosen = (
        (record, shown)
        for record, shown in outputs.told(iter(reader))
        if attempt in (None, record.attempt) and stream in (None, record.stream)
    )
    if frame.as_json:
        _print_json(frame, job, reader, chosen)
        return
    last = None
    for record, shown in chosen:
        if last not in (None, record.attempt):
            show.note(f"--- attempt {record.attempt} ---")
        last = record.attempt
        write(shown)
    if reader.job is not None:
        why = f" ({reader.job.reason})" if reader.job.reason else ""
        show.note(f"{reader.job.state}{why}")
    elif last is None:
        show.note(f"no output is kept of this job, which is {job.state}")


class _Reader:
    """The pieces of the output; after the last, the job as it ended, where that was awaited."""

    def __init__(self, store: Store, id: str, follow: bool) -> None:
        self._store = store
        self._id = id
        self.follows = follow
        self.job: JobRecord | None = None

    def __iter__(self) -> Iterator[OutputRecord]:
        from headgate.commands import output as outputs

        if self.follows:
            self.job = yield from outputs.follow(self._store, self._id)
        else:
            yield from outputs.pieces(self._store, self._id)


def write(data: bytes) -> None:
    """To a file or a pipe as it is. In a terminal only text and colours: a command must not be
    able to type, or to hide what stands above."""
    if sys.stdout.isatty():
        text = data.decode(errors="replace")
        parts = _COLOUR.split(text)
        safe = (
            part if n % 2 else _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", part)
            for n, part in enumerate(parts)
        )
        click.echo("".join(safe), nl=False)
    else:
        click.echo(data, nl=False)


def as_data(record: OutputRecord) -> dict[str, Any]:
    from headgate.cli import data

    try:
        said = {"text": record.data.decode()}
    except UnicodeDecodeError:
        said = {"base64": base64.b64encode(record.data).decode()}
    return {
        "attempt": record.attempt,
        "stream": record.stream,
        "at": data.moment(record.at),
        "start": record.start,
        **said,
    }


def _print_json(
    frame: Frame, job: JobRecord, reader: _Reader, chosen: Iterator[tuple[OutputRecord, bytes]]
) -> None:
    found = (as_data(record) for record, _ in chosen)
    if not reader.follows:
        frame.print_json({"id": job.id, "state": job.state, "output": list(found)})
        return
    for one in found:
        click.echo(json.dumps(one, ensure_ascii=False))
    ended = reader.job
    if ended is not None:
        click.echo(json.dumps({"id": ended.id, "state": ended.state, "reason": ended.reason}))

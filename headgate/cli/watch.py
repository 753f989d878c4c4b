"""`headgate watch JOB`: how a job fares, until it ends."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from headgate.cli import values
from headgate.cli.exits import OK, TROUBLE
from headgate.cli.frame import Frame, Verb, pass_frame
from headgate.stores.glances import glancing

if TYPE_CHECKING:
    from headgate.jobs import JobRecord
    from headgate.stores.protocol import OutputRecord, Store

EVERY = 0.3
"""Seconds between looks: nothing rings when a job starts or tells how far it is."""
REST = 0.05
WHY_EVERY = 2.0
AGE = 1.0
"""Seconds that what is shown may be old: on a bucket every look is a request."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Something new about the job."""

    what: str
    """`state`, `progress`, `why` or `output`."""
    job: JobRecord
    text: str = ""
    piece: OutputRecord | None = None
    shown: bytes = b""


@click.command(cls=Verb)
@click.argument("id", metavar="JOB")
@click.option(
    "--timeout", metavar="SECONDS|2h", callback=values.span,
    help="Give up after so long; the job goes on.",
)  # fmt: skip
@click.option("--no-output", is_flag=True, help="Leave out what its command writes.")
@pass_frame
def watch(frame: Frame, id: str, timeout: float | None, no_output: bool) -> None:
    """Follow JOB until it ends: its state, why it waits, its progress, what its command writes.

    Exits 0 if it succeeded, 1 if it failed, was cancelled, or has not ended in time. What its
    command writes goes to stdout, all else to stderr. With --json there is one document a line.

    \b
    headgate watch 0190c2a4-…
    headgate watch $(headgate submit report) --timeout 10m
    """
    from headgate.errors import JobNotFound

    store = frame.store()
    if store.job(id) is None:
        raise JobNotFound(f"no job {id!r} in {store.url}: check the id; finished jobs are pruned")
    last: JobRecord | None = None
    with glancing(AGE):
        for seen in follow(store, id, timeout, output=not no_output):
            last = seen.job
            if frame.as_json:
                click.echo(json.dumps(_data(seen, store.now()), ensure_ascii=False))
            else:
                _show(seen)
    if last is None or not last.done:
        if timeout is not None:
            click.echo(f"headgate: job {id} has not ended after {timeout:g} s", err=True)
        else:
            click.echo(f"headgate: job {id} was pruned", err=True)
        sys.exit(TROUBLE)
    sys.exit(OK if last.state == "succeeded" else TROUBLE)


def follow(store: Store, id: str, timeout: float | None, *, output: bool) -> Iterator[Seen]:
    """What is new, as it comes; the last is the state in which it ended."""
    from headgate.commands import output as outputs

    until = None if timeout is None else time.monotonic() + timeout
    after, state, progress, why = (0, -1), "", "", ""
    why_at = float("-inf")
    reached: dict[int, int] = {}
    with ExitStack() as stack:
        # Opened before the first look: what changes after that look rings.
        bell = store.bell("done")
        stack.callback(bell.close)
        while True:
            job = store.job(id)
            if job is None:
                return
            told = _state(store, job)
            if told != state and not job.done:
                state = told
                yield Seen("state", job, told)
            # What was written is stored before the end is: so all of it comes before that.
            if output:
                for piece in outputs.pieces(store, id, after):
                    gap = piece.start - reached.get(piece.token, 0)
                    reached[piece.token] = piece.start + len(piece.data)
                    lost = b"\n[... %d bytes left out ...]\n" % gap if gap > 0 else b""
                    yield Seen("output", job, piece=piece, shown=lost + piece.data)
                    after = piece.place
            if job.done:
                yield Seen("state", job, told)
                return
            if (told := _progress(job)) != progress and told:
                progress = told
                yield Seen("progress", job, told)
            if job.state in ("ready", "scheduled") and time.monotonic() - why_at > WHY_EVERY:
                why_at = time.monotonic()
                told = _why(store, id)
                if told is not None and told[0] != why:
                    why = told[0]
                    yield Seen("why", job, told[1])
            left = EVERY if until is None else min(EVERY, until - time.monotonic())
            if left <= 0:
                return
            # It rings for every job that ends: not every ring is worth a look.
            time.sleep(min(left, REST))
            bell.wait(left)
            bell.drain()


def _state(store: Store, job: JobRecord) -> str:
    told = f"{job.state} ({job.reason})" if job.reason else job.state
    if job.state == "running":
        worker = next((w.name for w in store.workers() if w.id == job.worker), job.worker)
        told += f", attempt {job.attempt} on {worker}"
    if job.cancel_requested and not job.done:
        told += ", told to stop"
    if job.done and job.error is not None:
        told += f": {job.error.type}: {job.error.message}"
    return told


def _progress(job: JobRecord) -> str:
    if job.progress is None or job.state != "running":
        return ""
    return f"{job.progress:.0%} {job.progress_text}".strip()


def _why(store: Store, id: str) -> tuple[str, str] | None:
    """What it waits for, by a word and in sentences; None: it has started meanwhile."""
    from headgate.errors import JobNotFound
    from headgate.why import ask

    try:
        explained = ask(store, id)
    except JobNotFound:
        return None
    if explained.code in ("running", "cancelling", "done"):
        return None
    return explained.code, explained.text


def _show(seen: Seen) -> None:
    from headgate.cli.output import write
    from headgate.cli.show import note

    if seen.what == "output":
        write(seen.shown)
        return
    clock = time.strftime("%H:%M:%S")
    note(f"{clock}  {' '.join(seen.text.split())}")


def _data(seen: Seen, now: float) -> dict[str, Any]:
    from headgate.cli import data
    from headgate.cli.output import as_data

    job = seen.job
    told: dict[str, Any] = {"what": seen.what, "at": data.moment(now), "id": job.id}
    if seen.piece is not None:
        return {**told, **as_data(seen.piece)}
    told |= {"state": job.state, "reason": job.reason, "attempt": job.attempt}
    if seen.what == "progress":
        told |= {"progress": job.progress, "progress_text": job.progress_text}
    elif seen.what == "why":
        told |= {"text": seen.text}
    elif job.done:
        told |= {"job": data.job(job)}
    return told

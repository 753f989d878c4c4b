"""Cancel or retry many jobs: count them, ask, then act with a progress bar.

They are found in steps, state by state, each of which looks at some thousand jobs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.exits import NOT_FOUND, OK, TROUBLE
from headgate.cli.frame import Frame
from headgate.errors import HeadgateError, JobNotFound, StoreBusy, StoreUnavailable

if TYPE_CHECKING:
    from headgate.jobs import JobFilter, JobRecord
    from headgate.stores.protocol import Store

PAGE = 500
COUNTED = 10_000
"""So many are counted before the question; all are acted on."""
PASSES = 5
BAR_FROM = 100
SHOWN = 20


_ORDER = ("scheduled", "ready", "running", "failed", "cancelled", "succeeded")
_MOVING = frozenset(("scheduled", "ready", "running"))


@dataclass(frozen=True, slots=True)
class Action:
    verb: str
    done: str
    states: tuple[str, ...]
    """Which states a filter means when it names none."""
    run: Callable[[Store, str], JobRecord]


@dataclass(slots=True)
class Outcome:
    changed: list[JobRecord]
    unchanged: list[JobRecord]
    """They had ended before."""
    refused: list[tuple[str, HeadgateError]]


def act(
    frame: Frame, action: Action, ids: tuple[str, ...], chosen: dict[str, Any], yes: bool
) -> None:
    """Do it to the jobs named by id, or to all that the filter chooses after a preview."""
    filtered = any(chosen.values())
    if ids and filtered:
        raise click.UsageError("give ids or a filter, not both")
    if not ids and not filtered:
        raise click.UsageError(
            f"which jobs? Give their ids, or a filter such as --state {action.states[0]}"
        )
    store = frame.store()
    if ids:
        found: list[str] = list(dict.fromkeys(ids))
    else:
        from headgate.cli.jobs import make_filter

        chosen["state"] = chosen["state"] or action.states
        found = _preview(frame, store, action, make_filter(**chosen), yes)
    outcome = _each(frame, store, action, found)
    _tell(frame, action, outcome)
    missing = all(isinstance(error, JobNotFound) for _, error in outcome.refused)
    sys.exit(OK if not outcome.refused else NOT_FOUND if missing else TROUBLE)


def _preview(frame: Frame, store: Store, action: Action, filter: JobFilter, yes: bool) -> list[str]:
    # What is created from now on is not meant.
    rest = _ids(store, replace(filter, until=filter.until or store.now()))
    found = [] if yes else list(itertools.islice(rest, COUNTED + 1))
    if found:
        more = len(found) > COUNTED
        jobs = f"{'more than ' if more else ''}{_jobs(min(len(found), COUNTED))}"
        if not sys.stdin.isatty():
            raise click.UsageError(
                f"this would {action.verb} {jobs}; nobody is here to confirm: add --yes"
            )
        click.confirm(f"{action.verb} {jobs}?", abort=True, err=True)
    # The ids are read before the first change: acting moves jobs into other states, where they
    # would be met again.
    return found + list(rest)


def _ids(store: Store, filter: JobFilter) -> Iterator[str]:
    """Each once. While one state is read, a job may leave another that has not been read for one
    that has (it ran, and waits for its next attempt): what is not over is read again, until
    nothing new is found."""
    seen: set[str] = set()
    for _ in range(PASSES):
        before = len(seen)
        for state in sorted(filter.states, key=_ORDER.index):
            for id in _of_state(store, replace(filter, states=frozenset((state,)))):
                if id not in seen:
                    seen.add(id)
                    yield id
        if len(seen) == before or not filter.states & _MOVING:
            return


def _of_state(store: Store, filter: JobFilter) -> Iterator[str]:
    from headgate.stores.glances import glancing

    after: str | None = None
    while True:
        with glancing(0.0, texts=False):
            page = store.browse(filter, PAGE, after)
        yield from (job.id for job in page.jobs)
        after = page.after
        if after is None:
            return


def _each(frame: Frame, store: Store, action: Action, ids: list[str]) -> Outcome:
    outcome = Outcome([], [], [])
    began = store.now()
    for id in _with_bar(frame, ids, action):
        try:
            after = action.run(store, id)
        except (StoreBusy, StoreUnavailable):
            raise
        except HeadgateError as error:
            outcome.refused.append((id, error))
        else:
            ended_before = after.done and (after.finished_at or began) < began
            (outcome.unchanged if ended_before else outcome.changed).append(after)
    return outcome


def _with_bar(frame: Frame, ids: list[str], action: Action) -> Iterable[str]:
    if len(ids) < BAR_FROM or not sys.stderr.isatty():
        return ids
    from rich.console import Console
    from rich.progress import track

    return track(ids, f"{action.verb} {len(ids):,} jobs", console=Console(stderr=True))


def _tell(frame: Frame, action: Action, outcome: Outcome) -> None:
    if frame.as_json:
        frame.print_json(
            {
                "changed": [{"id": job.id, "state": job.state} for job in outcome.changed],
                "unchanged": [{"id": job.id, "state": job.state} for job in outcome.unchanged],
                "refused": [{"id": id, "error": str(error)} for id, error in outcome.refused],
            }
        )
        return
    for _, error in outcome.refused[:SHOWN]:
        click.echo(f"headgate: {error}", err=True)
    if len(outcome.refused) > SHOWN:
        more = len(outcome.refused) - SHOWN
        click.echo(f"headgate: … and {more:,} more were refused", err=True)
    told = [job for job in outcome.changed if job.cancel_requested and not job.done]
    count = len(outcome.changed) - len(told)
    if count or not (told or outcome.unchanged):
        click.echo(f"{_jobs(count)} {action.done}")
    if told:
        click.echo(f"{_jobs(len(told))} running: told to stop")
    if outcome.unchanged:
        click.echo(f"{_jobs(len(outcome.unchanged))} had ended before")


def _jobs(count: int) -> str:
    return f"{count:,} job{'' if count == 1 else 's'}"

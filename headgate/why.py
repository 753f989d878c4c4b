"""Why a job is where it is, in words: what it waits for, who holds it, its place in line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.jobs import AttemptRecord
    from headgate.stores.protocol import LimitRecord, SlotRecord, Store, Why, Word

HOLDERS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Explained:
    """Why a job is where it is: `text` for people, `why` for programs."""

    why: Why
    text: str

    @property
    def code(self) -> str:
        """The cause, as one stable word; see `headgate.stores.protocol.Why`."""
        return self.why.code

    def __str__(self) -> str:
        return self.text


def ask(store: Store, id: str, adjust: Callable[[Why], Why] | None = None) -> Explained:
    """Facts and words about one job; `JobNotFound` if there is none. `adjust` adds what only who
    asks can know.

    >>> print(ask(app.store, job_id))                                   # doctest: +SKIP
    The job waits for tenant/acme: 2 of 2 units are held by …
    """
    why = store.why(id)
    if adjust is not None:
        why = adjust(why)
    names = {worker.id: worker.name for worker in store.workers()}
    text = explain(why, now=store.now(), names=names, attempts=store.attempts(id))
    return Explained(why, text)


def explain(
    why: Why,
    *,
    now: float,
    names: Mapping[str, str] | None = None,
    attempts: Sequence[AttemptRecord] = (),
) -> str:
    """One or more sentences. `names` maps worker ids to the names people gave them; the last
    of `attempts` tells what a job is tried again for.

    >>> explain(store.why(job_id), now=store.now())              # doctest: +SKIP
    'The job waits for tenant/acme: 2 of 2 units are held by …'
    """
    words = _SENTENCES.get(why.code)
    if words is None:
        return f"The job is {why.job.state} ({why.code}). {why.detail}".strip()
    if attempts and why.job.error is None:
        why = replace(why, job=replace(why.job, error=attempts[-1].error))
    sentences = [words(why, now, names or {})]
    if why.detail and why.code not in _DETAIL_TOLD:
        sentences.append(f"{why.detail[0].upper()}{why.detail[1:].rstrip('.')}.")
    if why.job.state == "ready" and why.ahead is not None:
        sentences.append(_place(why))
    sentences += _estimate(why, now)
    return " ".join(sentences)


def age(seconds: float) -> str:
    """A span of time as a person would say it.

    >>> age(0.2), age(9.97), age(95), age(10_000), age(200_000)
    ('0.2 s', '10 s', '95 s', '2 h 46 min', '2 days')
    """
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{max(10, int(seconds))} s"
    minutes = int(seconds // 60)
    if minutes < 120:
        return f"{minutes} min"
    if minutes < 2880:
        return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
    return f"{minutes // 1440} days"


# --- one sentence per cause -------------------------------------------------------------

Names = Mapping[str, str]


def _scheduled(why: Why, now: float, names: Names) -> str:
    return f"The job is scheduled: it becomes ready {_in(why.until or why.job.run_at, now)}."


def _retry(why: Why, now: float, names: Names) -> str:
    error = why.job.error
    cause = f" after {error.type}: {_first_line(error.message)}" if error else ""
    return f"The job waits for its next attempt{cause}; it is due {_in(why.until, now)}."


def _unrouted(why: Why, now: float, names: Names) -> str:
    seen = "no running worker knows it" if why.detail else "no worker has seen the job yet"
    return (
        f"The job was submitted by the name of its task, {why.job.task!r}, and {seen}. The first"
        " worker whose app declares the task gives the job its queue and its limits."
    )


def _queue_paused(why: Why, now: float, names: Names) -> str:
    queue = why.job.queue
    by = f" (by {why.detail})" if why.detail else ""
    return f"Queue {queue} is paused{by}; `headgate queues resume {queue}` lets its jobs start."


def _queue_closed(why: Why, now: float, names: Names) -> str:
    return (
        f"Queue {why.job.queue} is paused, or its concurrency is 0, in {why.detail}: change it"
        " there and restart the workers that read it."
    )


def _unknown_task(why: Why, now: float, names: Names) -> str:
    if why.detail:
        return (
            "No worker is running. Start one whose app declares task"
            f" {why.job.task!r}: `headgate worker MODULE:APP`."
        )
    return (
        f"No running worker knows task {why.job.task!r}. Start one whose app declares it, or"
        " check the name."
    )


def _no_worker(why: Why, now: float, names: Names) -> str:
    return (
        f"No running worker takes task {why.job.task!r} from queue {why.job.queue}. Start one"
        " with `headgate worker`, or add the queue to its --queues."
    )


def _no_group(why: Why, now: float, names: Names) -> str:
    return (
        f"No machine that is there serves any of the concurrency groups it could run in:"
        f" {why.detail}. Start a scheduler with one of them in its --groups, or without --groups."
    )


def _limit_full(why: Why, now: float, names: Names) -> str:
    groups = [
        _full(group, why, now, names) if group.pace is None else _rate(group, now)
        for group in why.groups
    ]
    ends = ""
    if why.until is not None and why.code == "limit-full":
        ends = f" The first of these slots ends by itself {_in(why.until, now)}."
    for group in why.groups:
        if group.override is not None:
            said = _said(group.override, now)
            ends += f" The limit of {group.group} was set to {_value(group)}{said}."
    return f"The job waits for {'; and for '.join(groups) or 'a limit that is full'}.{ends}"


def _rate_full(why: Why, now: float, names: Names) -> str:
    """Where both are in the way, limits are told too."""
    return _limit_full(why, now, names)


def _limit_zero(why: Why, now: float, names: Names) -> str:
    groups = " and ".join(f"{g.group} is 0{_said(g.override, now)}" for g in why.groups)
    first = why.groups[0].group if why.groups else "GROUP"
    return (
        f"The limit of {groups or 'a group is 0'}, so nothing may start;"
        f" `headgate concurrency set {first} --limit N` changes it."
    )


def _limit_paused(why: Why, now: float, names: Names) -> str:
    told = [f"{group.group} is paused{_said(group.pause, now)}" for group in why.groups]
    first = why.groups[0].group if why.groups else "GROUP"
    return (
        f"{' and '.join(told) or 'A limit is paused'};"
        f" `headgate concurrency resume {first}` lets its jobs start."
    )


def _limit_missing(why: Why, now: float, names: Names) -> str:
    groups = " and ".join(group.group for group in why.groups)
    first = why.groups[0].group if why.groups else "GROUP"
    return (
        f"Nothing declares a value for {groups or 'a limit of the job'}, so the job cannot be"
        f" counted; declare it in code or headgate.toml, or"
        f" `headgate concurrency set {first} --limit N`."
    )


def _too_wide(why: Why, now: float, names: Names) -> str:
    units = {need.group: need.units for need in why.job.needs}
    told = [
        f"{units.get(group.group, 1)} units of {group.group}, whose limit is {_value(group)}"
        for group in why.groups
    ]
    return (
        f"The job needs {' and '.join(told) or 'more units than its limit has'}: it can never"
        " start unless the limit is raised."
    )


def _reserved(why: Why, now: float, names: Names) -> str:
    groups = " and ".join(group.group for group in why.groups) or "A group"
    if not why.detail:
        return (
            f"{groups} is reserved for code that has waited too long for a slot of it by hand;"
            " this job goes after it."
        )
    return (
        f"{groups} is reserved for job {why.detail}, which needs more at once and has waited too"
        " long for it; this job goes after it."
    )


def _cap(why: Why, now: float, names: Names) -> str:
    return f"The job waits for a cap: {why.detail.rstrip('.')}. It takes that one's place then."


def _priority(why: Why, now: float, names: Names) -> str:
    more = "more than " if why.before_bounded else ""
    are = "job" if why.before == 1 else "jobs"
    return (
        f"All that the job needs is free, but its workers are busy, and {more}{why.before:,} {are}"
        f" of queue {why.job.queue} with a better priority than {why.job.priority} go first."
    )


def _turn(why: Why, now: float, names: Names) -> str:
    turn = ""
    if why.job.turn:
        others = (why.turns or 1) - 1
        along = f", one of {others + 1:,} that take turns" if others else ""
        turn = f" (its turn is {why.job.turn!r}{along})"
    return f"All that the job needs is free; it waits for a worker with room{turn}."


def _running(why: Why, now: float, names: Names) -> str:
    job = why.job
    where = f" on worker {names.get(job.worker, job.worker)}" if job.worker else ""
    since = f", for {age(now - job.started_at)}" if job.started_at is not None else ""
    held = f", holding {', '.join(job.groups)}" if job.groups else ""
    return f"The job is running{where}{since}{held}."


def _cancelling(why: Why, now: float, names: Names) -> str:
    return f"{_running(why, now, names)} Its cancellation was asked for and waits for its code."


def _done(why: Why, now: float, names: Names) -> str:
    job = why.job
    reason = f" ({job.reason})" if job.reason else ""
    ago = f" {age(now - job.finished_at)} ago" if job.finished_at is not None else ""
    cause = job.error if job.state == "failed" else None
    error = f": {cause.type}: {_first_line(cause.message)}" if cause else ""
    return f"The job {_ENDED.get(job.state, job.state)}{reason}{ago}{error}."


_ENDED = {"succeeded": "succeeded", "failed": "failed", "cancelled": "was cancelled"}

_SENTENCES: dict[str, Callable[[Why, float, Names], str]] = {
    "scheduled": _scheduled,
    "retry": _retry,
    "unrouted": _unrouted,
    "queue-paused": _queue_paused,
    "queue-closed": _queue_closed,
    "unknown-task": _unknown_task,
    "no-worker": _no_worker,
    "no-group": _no_group,
    "limit-full": _limit_full,
    "rate-full": _rate_full,
    "limit-zero": _limit_zero,
    "limit-paused": _limit_paused,
    "limit-missing": _limit_missing,
    "too-wide": _too_wide,
    "reserved": _reserved,
    "cap": _cap,
    "priority": _priority,
    "turn": _turn,
    "running": _running,
    "cancelling": _cancelling,
    "done": _done,
}

_DETAIL_TOLD = frozenset(
    (
        "done",
        "queue-paused",
        "queue-closed",
        "reserved",
        "unrouted",
        "unknown-task",
        "no-group",
        "cap",
        "priority",
    )
)


# --- parts of sentences -----------------------------------------------------------------


def _full(group: LimitRecord, why: Why, now: float, names: Names) -> str:
    holders = [slot for slot in why.holders if slot.group == group.group]
    told = [_holder(slot, now, names) for slot in holders[:HOLDERS_SHOWN]]
    if group.holders > len(told):
        told.append(f"{group.holders - len(told):,} more" if told else f"{group.holders:,} holders")
    by = f" by {_and(told)}" if told else ""
    are = "is" if group.held == 1 else "are"
    return f"{group.group}: {group.held:,} of {_value(group)} units {are} held{by}"


def pace(group: LimitRecord) -> str:
    """What a rate allows, as a person would say it."""
    assert group.pace is not None, "only a rate has a pace"
    each = f"{_value(group)} starts per {period(group.pace.per)}"
    if group.pace.burst is None or (group.value is not None and group.pace.burst >= group.value):
        return each
    return f"{each}, {group.pace.burst:,} at once"


def _rate(group: LimitRecord, now: float) -> str:
    told = f"{group.group}: at most {pace(group)}"
    if group.opens_at is None:
        return told
    return f"{told}; the next may start {_in(group.opens_at, now)}"


def period(seconds: float) -> str:
    """A period as it was declared, more or less.

    >>> period(1), period(0.5), period(60), period(90), period(7200), period(86400)
    ('1 s', '0.5 s', '60 s', '90 s', '2 h', '24 h')
    """
    for length, unit in ((3600, "h"), (60, "min")):
        if seconds > 2 * length - 1 and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def _holder(slot: SlotRecord, now: float, names: Names) -> str:
    what = "job" if slot.job else "slot holder"
    units = f", {slot.units} units" if slot.units > 1 else ""
    overdue = ", overdue" if slot.overdue else ""
    lease = "" if slot.lease_ends is None else f", lease {age(slot.lease_ends - now)}"
    worker = names.get(slot.worker, slot.worker)
    since = age(now - slot.since)
    return f"{what} {slot.holder} (worker {worker}, for {since}{units}{lease}{overdue})"


def _place(why: Why) -> str:
    ahead = why.ahead or 0
    if why.ahead_bounded:
        return f"More than {ahead:,} jobs are ahead of it in its lane."
    if ahead == 0:
        return "It is the first in its lane."
    return f"{ahead:,} job{' is' if ahead == 1 else 's are'} ahead of it in its lane."


def _estimate(why: Why, now: float) -> list[str]:
    if why.estimated_start is None or why.job.state != "ready":
        return []
    when = "now" if why.estimated_start <= now else f"in about {age(why.estimated_start - now)}"
    if why.typical is None:
        # Where workers have room it is told already; a rate needs no measurement.
        return [f"It may start {when} at the earliest."] if why.code == "rate-full" else []
    told = f"take {age(why.typical)} as a rule (the median of the last {why.measured:,})"
    return [f"It may start {when} at the earliest: jobs of its task {told}."]


def _said(word: Word | None, now: float) -> str:
    """By whom, why and until when."""
    if word is None:
        return ""
    by = f" by {word.by}" if word.by else ""
    reason = f": {_first_line(word.reason)}" if word.reason else ""
    until = "" if word.until is None else f" (that ends by itself {_in(word.until, now)})"
    return f"{by}{reason}{until}"


def _value(group: LimitRecord) -> str:
    return "unlimited" if group.value is None else f"{group.value:,}"


def _in(moment: float | None, now: float) -> str:
    if moment is None:
        return "later"
    if moment <= now:
        return "now"
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    return f"in {age(moment - now)} ({stamp})"


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "(no message)"

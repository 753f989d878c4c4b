"""What an app schedules: declared here, told to the store when a worker starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from headgate.calls import Call
from headgate.errors import DeclarationError, HeadgateError, InvalidSchedule
from headgate.limits import check_name
from headgate.schedules import template
from headgate.schedules.schedule import Schedule
from headgate.stores.protocol import ScheduleSpec
from headgate.tasks import Task

if TYPE_CHECKING:
    from headgate.app import App


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A call and when it is submitted. Made by `app.schedule(...)`."""

    name: str
    call: Call[Any]
    schedule: Schedule
    """Checked: seconds and moments."""
    source: str = "code"

    def spec(self) -> ScheduleSpec:
        """As the store keeps it: the job is stamped now, with its limits and keys."""
        found = self.schedule
        return ScheduleSpec(
            name=self.name,
            when=found.when,
            timezone=found.timezone,
            jitter=cast("float", found.jitter),
            start=cast("float | None", found.start),
            end=cast("float | None", found.end),
            missed=found.missed,
            missed_window=cast("float", found.missed_window),
            pile_up=found.pile_up,
            skip_if_running=found.skip_if_running,
            late=cast("float", found.late),
            source=self.source,
            job=template.to_text(self.call.new_job()),
        )


def scheduled(
    app: App,
    name: str,
    call: Call[Any],
    when: str | Schedule,
    options: Mapping[str, Any],
    source: str,
) -> Scheduled:
    name = check_name(name, "schedule")
    # Also from untyped code.
    if not isinstance(call, Call):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidSchedule(
            f"schedule {name!r}: what it submits is a call, as task.call(…) gives it, got {call!r}"
        )
    if call.task.app is not app:
        raise DeclarationError(f"schedule {name!r}: task {call.task.name!r} is of another app")
    _check_call(name, call)
    if unknown := [o for o in options if o not in Schedule.__dataclass_fields__ or o == "when"]:
        known = ", ".join(field for field in Schedule.__dataclass_fields__ if field != "when")
        raise InvalidSchedule(
            f"schedule {name!r}: unknown option {unknown[0]!r}: known are {known}"
        )
    base = when if isinstance(when, Schedule) else Schedule(when)
    return Scheduled(name, call, replace(base, **options).checked(name), source)


def own_schedule(task: Task[..., Any], when: object, zone: str | None) -> Scheduled:
    """That of a task which says itself when it runs."""
    if when is None:
        raise InvalidSchedule(f"task {task.name!r}: timezone says nothing without schedule")
    try:
        call = task.call()
    except HeadgateError as error:
        raise InvalidSchedule(
            f"task {task.name!r} takes arguments, so it cannot say itself when it runs ({error}):"
            f' use app.schedule("{task.name}", task.call(…), …)'
        ) from None
    options = {} if zone is None else {"timezone": zone}
    return scheduled(task.app, task.name, call, cast("str | Schedule", when), options, "code")


def _check_call(name: str, call: Call[Any]) -> None:
    using = call.task._using
    for option, instead in (
        ("run_at", "its runs are due when it says"),
        ("idempotency_key", "all its runs but the first would be the same job"),
    ):
        if option in using:
            raise InvalidSchedule(f"schedule {name!r}: {option} cannot be used: {instead}")
    if call.task.conn is not None:
        raise InvalidSchedule(f"schedule {name!r}: conn cannot be used: workers submit its runs")

"""From a checked configuration to an app: a task for each job, its limits and its schedule."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headgate.app import App
from headgate.commands.task import CommandTask
from headgate.configuration.environment import exit_code
from headgate.configuration.model import JobConfig, Notify, Scheduled
from headgate.configuration.runs import NOTIFY, Runs, facts_of, trigger_type
from headgate.context import Context
from headgate.errors import HeadgateError
from headgate.limits import Limit, OneOf
from headgate.notify import tell_command, tell_webhook
from headgate.schedules.template import tick_of

LOST = "headgate.run-lost"
_DELIVERY_RETRIES = 8


def build(scheduled: Scheduled) -> tuple[App, Runs]:
    """An app with all the jobs of the configuration."""
    app = App(scheduled.config.url, config=scheduled.config)
    runs = Runs(app, scheduled)
    declare(app, scheduled, runs)
    return app, runs


def rebuild(app: App, scheduled: Scheduled, runs: Runs) -> None:
    """Let the app declare this configuration instead of the one before, or raise and leave it as
    it was. What runs goes on as it was begun; what waits, waits under the new limits.

    Made aside and put in place when it is whole: threads of this process look up tasks at any
    time, and must not find that one is missing which both configurations have.
    """
    aside = App(app.url, config=scheduled.config)
    declare(aside, scheduled, runs)
    aside.publication("")  # whatever cannot be resolved is told now
    aside.declared_schedules("")
    for task in aside.tasks.values():
        task.app = app
    aside._book._app = app
    app._config_source = scheduled.config
    app.__dict__.pop("config", None)  # read when it is next needed
    app._book = aside._book
    runs.scheduled = scheduled
    app.tasks.update(aside.tasks)
    for name in [name for name in app.tasks if name not in aside.tasks]:
        del app.tasks[name]
    app.schedules.clear()
    app.schedules.update(aside.schedules)


def declare(app: App, scheduled: Scheduled, runs: Runs) -> None:
    """Declare the jobs, and what tells of their ends."""
    for job in scheduled.jobs.values():
        _declare_job(app, scheduled, runs, job)
    _declare_notify(app, runs)


def _declare_job(app: App, scheduled: Scheduled, runs: Runs, job: JobConfig) -> None:
    own = own_limit(job, scheduled)
    limits: list[Limit | OneOf | str] = [*([own] if own is not None else []), *job.limits]
    if job.concurrency_groups:
        limits.append(OneOf(*job.concurrency_groups))
    task: CommandTask = app.command(
        job.name,
        job.command,
        environment=job.environment,
        inherit_environment=False,
        max_execution=job.max_execution,
        max_execution_grace=job.max_execution_grace,
        retry_exit_codes=job.retry_exit_codes or None,
        concurrent_runs=job.concurrent_runs or own is not None,
        before=functools.partial(runs.before, job),
        after=functools.partial(runs.after, job),
        limits=limits,
        retries=job.retries,
        retry_delay=job.retry_delay,
        queue=job.queue,
        priority=job.priority,
    )
    task.source = "file"
    if task.command is not None:
        # dsari's rule: what a stop kills has ended.
        task.command = replace(task.command, over_when_killed=scheduled.shutdown_kill_runs)
    task.on_end = runs.on_end
    if job.notify:
        task.on_aborted = LOST
    if job.schedule is not None:
        app.schedule(job.name, task.call(), job.schedule, source="file")


def own_limit(job: JobConfig, scheduled: Scheduled) -> Limit | None:
    """The limit that keeps a job from overlapping with itself, where the one of its own name is a
    concurrency group already: jobs and groups may have the same names."""
    taken = job.name in scheduled.groups or job.name in scheduled.config.rates
    if job.concurrent_runs or not taken:
        return None
    return Limit(f"{job.name} (runs)", 1)


# --- whom to tell ----------------------------------------------------------------------------


def _declare_notify(app: App, runs: Runs) -> None:
    """Notifications are jobs: stored with the end they tell of, delivered by any scheduler, and
    tried again when that fails."""

    async def notify(way: str, facts: dict[str, Any]) -> None:
        await _deliver(runs.scheduled.notify, way, facts)

    async def lost(ctx: Context, job: str, state: str, reason: str, args: Any) -> None:
        del args
        # Who cancels a run knows of it.
        if state != "failed":
            return
        found = runs.app.get_job(job)
        config = runs.scheduled.jobs.get(found.task)
        if config is None or "failure" not in config.notify:
            return
        facts = facts_of("failure", config, None, None, None)
        told: object = json.loads(found.args).get("trigger")
        if not told and tick_of(found.options) is not None:
            told = "schedule"
        facts |= {
            "run_id": job,
            "reason": reason,
            "start_time": found.started_at,
            "exit_code": exit_code(found),
            "trigger_type": trigger_type(told if isinstance(told, str) else ""),
        }
        for call in runs.notifications(facts):
            ctx.submit(call)

    options: dict[str, Any] = {"retries": _DELIVERY_RETRIES, "timeout": 3600}
    make: Callable[..., Any] = app.task
    make(NOTIFY, **options)(notify)
    make(LOST, **options)(lost)


async def _deliver(notify: Notify, way: str, facts: dict[str, Any]) -> None:
    if way == "command" and notify.command is not None:
        await tell_command(notify.command, facts, notify.timeout)
    elif way == "webhook" and notify.webhook is not None:
        await tell_webhook(notify.webhook, facts, notify.timeout)
    elif way not in ("command", "webhook"):
        raise HeadgateError(f"there is no way {way!r} of telling: command and webhook are known")
    # Else the configuration does not want it any more.

"""How a run of a command is begun: by the worker it runs in, else as a plain child process."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from headgate.commands.command import Command, CommandRun, Setting
from headgate.commands.ends import NotStarted, exit_code, why_not
from headgate.errors import CommandFailed
from headgate.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Generator

    from headgate.context import Context


class Launcher(Protocol):
    """Runs a command to its end, and says when that was begun."""

    def facts(self) -> Mapping[str, float]:
        """`created_at`, `ready_at` and `started_at` of the attempt."""
        ...

    async def run(self, program: Program) -> int:
        """The exit code, when nothing of it is alive any more."""
        ...

    def last_line(self) -> str:
        """The last line of its output, for who reads no more than the error."""
        ...


class Program:
    """All that the run of a program depends on."""

    __slots__ = ("argv", "command", "cwd", "environment")

    def __init__(
        self,
        command: Command,
        argv: tuple[str, ...],
        environment: dict[str, str],
        cwd: str | None,
    ) -> None:
        self.command = command
        self.argv = argv
        self.environment = environment
        self.cwd = cwd


_launcher: ContextVar[Launcher | None] = ContextVar("headgate_launcher", default=None)


@contextmanager
def launched_by(launcher: Launcher) -> Generator[None]:
    """Commands that begin inside the block are run by `launcher`."""
    mark = _launcher.set(launcher)
    try:
        yield
    finally:
        _launcher.reset(mark)


async def launch(
    name: str,
    command: Command,
    ctx: Context,
    arguments: tuple[str, ...],
    environment: Mapping[str, str] | None,
    trigger: str,
    schedule_time: float | None,
) -> object:
    """Run the command; 0 or what `after` makes of it, or `CommandFailed` with its exit code."""
    launcher = _launcher.get() or LocalLauncher()
    run = CommandRun(
        name=name,
        job=ctx.job_id,
        attempt=ctx.attempt,
        token=ctx.token,
        queue=ctx.queue,
        group=_group_told(name, ctx),
        groups=ctx.groups,
        arguments=arguments,
        environment=environment,
        trigger=trigger or ("schedule" if ctx.schedule is not None else ""),
        schedule_time=schedule_time if schedule_time is not None else ctx.scheduled_at,
        **launcher.facts(),
    )
    setting: Setting | None = None
    if command.before is not None:
        setting = await in_thread(command.before, run)
    setting = setting or Setting()
    program = Program(
        command,
        command.with_arguments(name, (*arguments, *setting.arguments)),
        {
            **(os.environ if command.inherit_environment else {}),
            **told(run),
            **(setting.environment or {}),
            **(command.environment or {}),
            **(environment or {}),
        },
        command.cwd if command.cwd is not None else _path(setting),
    )
    try:
        code = await launcher.run(program)
    except NotStarted as error:
        raise CommandFailed(
            f"command {name!r} could not be started (exit code {error.code}): {error.why}",
            error.code,
            again=command.may_retry(error.code),
        ) from None
    kept: object = None
    if command.after is not None:
        kept = await in_thread(command.after, run, code)
    if code != 0:
        raise failed(name, command, code, launcher.last_line())
    return code if kept is None else kept


def told(run: CommandRun) -> dict[str, str]:
    """The variables that every run is given.

    >>> run = CommandRun("backup", "0190", 1, 7, "default", None, (), 1.0, 2.0, 3.0)
    >>> told(run)["JOB_NAME"], told(run)["RUN_ID"], "CONCURRENCY_GROUP" in told(run)
    ('backup', '0190', False)
    """
    found = {
        "JOB_NAME": run.name,
        "RUN_ID": run.job,
        "RUN_ATTEMPT": str(run.attempt),
        "RUN_TOKEN": str(run.token),
        "START_TIME": str(round(run.started_at, 3)),
    }
    if run.schedule_time is not None:
        found["SCHEDULE_TIME"] = str(round(run.schedule_time, 3))
    if run.trigger:
        found["TRIGGER_TYPE"] = run.trigger
    if run.group is not None:
        found["CONCURRENCY_GROUP"] = run.group
    return found


def _group_told(name: str, ctx: Context) -> str | None:
    """Not the limit of its own name: that is no choice, and tells the command nothing."""
    if ctx.group is not None and ctx.group != name:
        return ctx.group
    return next((group for group in ctx.groups if group != name), None)


def _path(setting: Setting) -> str | None:
    return None if setting.cwd is None else os.fspath(setting.cwd)


def failed(name: str, command: Command, code: int, last: str) -> CommandFailed:
    by = ""
    if code > 128:
        with suppress(ValueError):
            by = f" ({signal.Signals(code - 128).name})"
    text = f"command {name!r} ended with exit code {code}{by}"
    return CommandFailed(f"{text}: {last}" if last else text, code, again=command.may_retry(code))


class LocalLauncher:
    """Where no worker runs it (a plain call, `headgate.testing`): a child process in a group of
    its own, its output going where ours goes."""

    def facts(self) -> Mapping[str, float]:
        now = time.time()
        return {"created_at": now, "ready_at": now, "started_at": now}

    async def run(self, program: Program) -> int:
        try:
            child = await asyncio.create_subprocess_exec(
                *program.argv,
                stdin=asyncio.subprocess.DEVNULL,
                env=program.environment,
                cwd=program.cwd,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise why_not(error, program.argv, program.cwd) from None
        try:
            return exit_code(await child.wait())
        finally:
            # Also when the wait was cut short: what it started does not outlive the call.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()

    def last_line(self) -> str:
        return ""

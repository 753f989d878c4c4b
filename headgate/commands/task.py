"""The task that `app.command(...)` gives: each of its jobs is one run of the command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headgate.commands.command import Command, check_environment, check_text
from headgate.commands.launch import launch
from headgate.context import Context
from headgate.errors import DeclarationError, InvalidArguments
from headgate.taskoptions import TaskOptions
from headgate.tasks import Task

if TYPE_CHECKING:
    from headgate.app import App


class CommandTask(Task[..., int]):
    """A command that can be submitted; the result of a run is its exit code.

    Made by `app.command`; calling it runs the command here and now.

    >>> backup = app.command("backup", ["pg_dump", "shop"])             # doctest: +SKIP
    >>> backup.submit(environment={"PGHOST": "db2"})                    # doctest: +SKIP
    """

    def __init__(self, app: App, name: str, command: Command, options: TaskOptions) -> None:
        if command.retry_exit_codes and not options.retries:
            raise DeclarationError(
                f"command {name!r}: retry_exit_codes says which failures are tried again, and"
                " retries how often: give both"
            )
        super().__init__(app, _runner(name, command), name, options)
        self.command = command

    def call(self, *args: Any, **kwargs: Any) -> Any:
        call = super().call(*args, **kwargs)
        _check_call(self.name, call.bound)
        return call

    def call_payload(self, payload: object) -> Any:
        call = super().call_payload(payload)
        _check_call(self.name, call.bound)
        return call

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        """Run the command here and now, its output going where ours goes."""
        running: Coroutine[Any, Any, int] = super().__call__(*args, **kwargs)
        return asyncio.run(running)

    def __repr__(self) -> str:
        return f"<Command {self.name!r}>"


def _runner(name: str, command: Command) -> Callable[..., Any]:
    async def run(
        ctx: Context,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        trigger: str = "",
        schedule_time: float | None = None,
    ) -> Any:
        return await launch(
            *(name, command, ctx, tuple(arguments), environment, trigger, schedule_time)
        )

    run.__name__ = run.__qualname__ = name
    return run


def _check_call(name: str, bound: Mapping[str, Any]) -> None:
    """Refused at submit rather than at the start of the run."""
    what = f"command {name!r}"
    try:
        check_environment(bound.get("environment"), what)
        for argument in bound.get("arguments", ()):
            check_text(argument, f"{what}: arguments")
    except DeclarationError as error:
        raise InvalidArguments(str(error)) from None

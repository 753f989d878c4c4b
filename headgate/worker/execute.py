"""Run the code of one attempt, hooks around it, and say how it ended.

The same for threads, for the event loop and for isolated processes. Whatever the code
raises, SystemExit and KeyboardInterrupt included, is its own ending, never ours.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from typing import Any

from headgate.context import Context, activate, active
from headgate.errors import Control, HeadgateError
from headgate.hooks import Hooks
from headgate.tasks import Task
from headgate.worker.outcome import Ending, ending_of, refused

log = logging.getLogger("headgate.worker")

AnyTask = Task[..., Any]
Await = Callable[[Awaitable[Any]], Any]
"""Runs an awaitable to its end from sync code."""


def run_sync(
    task: AnyTask, args: str, ctx: Context, hooks: Hooks, errors: int, wait_for: Await
) -> Ending:
    """Run a sync task in this thread."""
    with active(ctx):
        try:
            call_args, call_kwargs = task.bind(args, ctx)
        except Exception as error:
            return refused("arguments", error)
        try:
            if not hooks.around_job:
                return _returned(task, task.fn(*call_args, **call_kwargs))
            with ExitStack() as stack:
                for around in hooks.around_job:
                    manager = around(ctx)
                    if isinstance(manager, AbstractContextManager):
                        stack.enter_context(manager)
                    else:
                        wait_for(manager.__aenter__())
                        stack.push(_waiting_exit(manager.__aexit__, wait_for))
                value = task.fn(*call_args, **call_kwargs)
                return _returned(task, value)
            return Ending("returned", result="null")  # a hook took the error for its own
        except BaseException as error:
            for found in _tell(hooks, ctx, error):
                try:
                    wait_for(found)
                except BaseException:
                    _failed_hook(ctx)
            return ending_of(error, delay_before_retry(task, errors, error))


async def run_async(task: AnyTask, args: str, ctx: Context, hooks: Hooks, errors: int) -> Ending:
    """Run an async task in this event loop, as the one thing that this asyncio task is for."""
    activate(ctx)
    try:
        call_args, call_kwargs = task.bind(args, ctx)
    except Exception as error:
        return refused("arguments", error)
    try:
        if not hooks.around_job:
            return _returned(task, await task.fn(*call_args, **call_kwargs))
        async with AsyncExitStack() as stack:
            for around in hooks.around_job:
                manager = around(ctx)
                if isinstance(manager, AbstractContextManager):
                    stack.enter_context(manager)
                else:
                    await stack.enter_async_context(manager)
            value = await task.fn(*call_args, **call_kwargs)
            return _returned(task, value)
        return Ending("returned", result="null")
    except BaseException as error:
        for found in _tell(hooks, ctx, error):
            # Cancelled here, the hook is cut short; the code itself has ended before.
            try:
                await found
            except BaseException:
                _failed_hook(ctx)
        return ending_of(error, delay_before_retry(task, errors, error))


def _returned(task: AnyTask, value: object) -> Ending:
    try:
        return Ending("returned", result=task.encode_result(value))
    except Exception as error:
        return refused("result", error)


def delay_before_retry(task: AnyTask, errors: int, error: BaseException) -> float:
    """As the task says; a user's callable that fails must not keep the job from its retry."""
    try:
        return task.retry_delay_for(errors + 1, error)
    except Exception:
        log.exception("the retry_delay of task %r failed: waiting 1 s", task.name)
        return 1.0


def _tell(hooks: Hooks, ctx: Context, error: BaseException) -> list[Awaitable[None]]:
    """Call the on_error hooks; those that are async are handed back to be awaited."""
    if isinstance(error, Control | asyncio.CancelledError):
        return []
    waiting: list[Awaitable[None]] = []
    for hook in hooks.error:
        try:
            found = hook(ctx, error)
        except BaseException:
            _failed_hook(ctx)
        else:
            if inspect.isawaitable(found):
                waiting.append(found)
    return waiting


def _failed_hook(ctx: Context) -> None:
    """Whatever a hook raises, the ending of the job is told."""
    log.exception("an on_error hook failed for job %s", ctx.job_id)


def _waiting_exit(leave: Callable[..., Awaitable[Any]], wait_for: Await) -> Callable[..., Any]:
    def exit_(*details: Any) -> Any:
        return wait_for(leave(*details))

    return exit_


async def call_hooks(hooks: list[Any], what: str) -> None:
    """Worker start and stop hooks: an error in one is an error of the worker."""
    for hook in hooks:
        try:
            found = hook()
            if inspect.isawaitable(found):
                await found
        except Exception as error:
            raise HeadgateError(f"the {what} hook {hook!r} failed: {error!r}") from error

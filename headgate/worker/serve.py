"""`headgate worker`: the entry for the command line."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping

from headgate.errors import ConfigError
from headgate.worker.board import Board
from headgate.worker.guard import Guard, say
from headgate.worker.options import WorkerOptions

_MARGIN = 20.0


def serve(
    options: WorkerOptions,
    *,
    orders: Mapping[int, str] | None = None,
    called: str = "headgate worker",
) -> int:
    """Run a worker until it is stopped (or, with `burst`, until nothing is left to do).

    Gives the exit code: 0 after a graceful stop, 2 when the target cannot be used, 4 when
    the store cannot, else 1. Call it from the main thread of a process of its own. `orders`:
    signals that are passed on to the app instead (`hooks.order`), by what they mean. `called`: the
    command by which the user knows it.

    >>> serve(WorkerOptions("shop.jobs:app", burst=True))               # doctest: +SKIP
    0
    """
    options = options.checked()
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            "serve() must run in the main thread, which gets the signals; in another thread"
            " use Worker(app, …).run()"
        )
    tell = say
    if options.log_format == "json":
        from headgate.telemetry.jsonlog import line

        def tell(text: str) -> None:
            say(line("headgate.worker", text))

    return Guard(
        [sys.executable, "-m", "headgate.worker.keeper"],
        Board.create(options.processes),
        {"options": options.to_message()},
        patience=options.shutdown_timeout + options.grace + _MARGIN,
        orders=orders,
        called=called,
        tell=tell,
    ).run()

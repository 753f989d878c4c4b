"""Many schedules, whose runs write what they did to the execution log.

`python -m tests.schedules.scene` is a process that does nothing but tick."""

from __future__ import annotations

import os
import random
import time

from headgate import App, Context, Schedule
from headgate.execlog import recording
from headgate.schedules.rounds import Rounds

COUNT = int(os.environ.get("HEADGATE_TEST_SCHEDULES", "30"))
SECONDS = float(os.environ.get("HEADGATE_TEST_SECONDS", "0.05"))
WHEN = os.environ.get("HEADGATE_TEST_WHEN", "* * * * * *")

app = App()


def _log(ctx: Context) -> None:
    extra = {"schedule": ctx.schedule, "tick": ctx.scheduled_at}
    with recording(os.environ["HEADGATE_TEST_LOG"], ctx, **extra):
        pass


@app.task(queue="quick")
async def quick(ctx: Context) -> None:
    _log(ctx)


@app.task(queue="slow", max_concurrent=1)
def slow(ctx: Context) -> None:
    """One at a time for all its schedules: their ticks find runs that wait, and are merged."""
    _log(ctx)
    time.sleep(SECONDS)


for n in range(COUNT):
    if n % 3 == 0:
        app.schedule(f"slow-{n}", slow.call(), WHEN)
    else:
        app.schedule(f"quick-{n}", quick.call(), Schedule(WHEN, pile_up=n % 3 == 1, jitter=n % 2))


def main() -> None:
    rounds = Rounds(app.store)
    while True:
        time.sleep(min(rounds.round(), 0.5) + random.uniform(0, 0.002))


if __name__ == "__main__":
    main()

"""The tasks that the benchmarks run."""

from __future__ import annotations

import os
import time
from pathlib import Path

from headgate import App

app = App()


@app.task
async def nothing() -> None:
    """A job that does nothing: what remains is the queue's own cost."""


@app.task(max_concurrent=10)
async def limited() -> None:
    """The same under a limit of 10."""


@app.task
async def stamp(sent: float) -> None:
    """Writes how long it took from submit to start."""
    took = time.time() - sent
    path = Path(os.environ["HEADGATE_BENCH_FOLDER"]) / "pickup.log"
    with path.open("a") as log:
        log.write(f"{took:.6f}\n")

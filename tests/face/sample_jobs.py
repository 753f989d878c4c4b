"""Job classes that another process can import."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from headgate import Aborted, App, Job

app = App("sqlite:///:memory:")


@app.job(isolate="process")
@dataclass
class Isolated(Job):
    day: date
    times: int = 1

    def run(self) -> tuple[int, int, int]:
        return os.getpid(), self.day.year * self.times, self.context.attempt


@app.job(isolate="process")
class Told(Job):
    def __init__(self, path: str) -> None:
        self.path = path

    async def run(self) -> None: ...

    async def on_aborted(self, aborted: Aborted) -> None:
        with Path(self.path).open("a") as file:
            file.write(f"{aborted.reason} {os.getpid()}\n")

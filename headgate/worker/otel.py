"""`--otel` in all processes of a worker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.app import App

_TOLD = "HEADGATE_OTEL"
"""Set in the environment of the processes in which isolated tasks run."""


def export(app: App) -> None:
    """Spans and metrics of this process, and of all that it starts, go to a collector."""
    from headgate.telemetry import exporting

    os.environ[_TOLD] = "1"
    exporting.export(app)


def export_if_told(app: App) -> None:
    """The same in a process that runs isolated tasks, where its worker said so."""
    if _TOLD in os.environ:
        from headgate.telemetry import exporting

        exporting.export(app, soon=True)

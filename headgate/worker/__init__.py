"""Run: the processes that claim jobs, run them, and leave nothing behind."""

from __future__ import annotations

from headgate.worker.options import WorkerOptions

__all__ = ["WorkerOptions"]

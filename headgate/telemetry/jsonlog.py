"""Log lines as JSON, one document a line, with the job that they are about."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from headgate.context import maybe_current

FIELDS = ("job", "task", "attempt", "token", "queue", "group", "groups", "outcome", "reason")
"""What a line may have beside its text, in this order."""


class JsonFormatter(logging.Formatter):
    """`at`, `level`, `logger`, `pid`, `message`, then the fields of the job: those that the line
    carries, else those of the job whose code wrote it."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "at": _moment(record.created),
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        carried = record.__dict__
        found = {name: carried[name] for name in FIELDS if name in carried}
        ctx = maybe_current()
        if ctx is not None and found.get("job") in (None, ctx.job_id):
            found = {
                "job": ctx.job_id,
                "task": ctx.task,
                "attempt": ctx.attempt,
                "token": ctx.token,
                "queue": ctx.queue,
                "group": ctx.group,
                "groups": list(ctx.groups),
                **found,
            }
        told.update(found)
        if record.exc_info and record.exc_info[1] is not None:
            told["error"] = {
                "type": type(record.exc_info[1]).__qualname__,
                "message": str(record.exc_info[1]),
                "traceback": self.formatException(record.exc_info),
            }
        return json.dumps(told, ensure_ascii=False, default=str)


def line(logger: str, message: str) -> str:
    """One line outside of logging."""
    now = time.time()
    said = {"at": _moment(now), "level": "INFO", "logger": logger, "message": message}
    return json.dumps(said, ensure_ascii=False)


def _moment(at: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at))}.{int(at * 1000) % 1000:03d}Z"

"""What the processes of `headgate worker` say, on stderr."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headgate.jobs import Claimed

LogFormat = Literal["text", "json"]
JSON_LOGS = "HEADGATE_JSON_LOGS"
"""In the environment of isolated tasks: the level from which they log, as JSON."""


def set_up_logging(level: str, style: LogFormat = "text") -> None:
    """Plain lines or JSON, unless the program has set up logging of its own."""
    if style == "json":
        from headgate.telemetry.jsonlog import JsonFormatter

        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
        logging.basicConfig(level=level.upper(), handlers=[handler])
        return
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s",
    )


def about(claimed: Claimed, **more: object) -> dict[str, object]:
    """For `extra=` of a line about this attempt."""
    return {
        "job": claimed.job,
        "task": claimed.task,
        "attempt": claimed.attempt,
        "token": claimed.token,
        "queue": claimed.queue,
        "groups": [group for group, _ in claimed.groups],
        **more,
    }

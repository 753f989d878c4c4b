"""What the processes of `headgate worker` say, on stderr."""

from __future__ import annotations

import logging


def set_up_logging(level: str) -> None:
    """Plain lines, unless the program has set up logging of its own."""
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s",
    )

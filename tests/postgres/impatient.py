"""`headgate worker` with less patience: what waits for half a minute, or for five seconds, until
the server counts as gone waits here for a second and a half. A test that imported this would have
no more patience either.

`python -m tests.postgres.impatient OPTIONS` is the guard (OPTIONS as JSON), with `keeper …` the
keeper; the worker processes take their app from here.
"""

from __future__ import annotations

import json
import sys

from headgate.stores.postgres import bell, database, pool
from headgate.stores.postgres.connection import Connection
from headgate.worker import keeper
from headgate.worker.board import Board
from headgate.worker.guard import Guard
from headgate.worker.options import WorkerOptions
from tests.worker.sample import app

__all__ = ["app"]

SECONDS = 1.5

Connection.patience = SECONDS
for module in (database, pool):
    module.PATIENCE = module.BEGIN_PATIENCE = SECONDS
bell.PATIENCE = SECONDS


def main() -> int:
    if sys.argv[1] == "keeper":
        return keeper.main(sys.argv[2:])
    message = {"target": "tests.postgres.impatient:app", **json.loads(sys.argv[1])}
    options = WorkerOptions.from_message(message).checked()
    return Guard(
        [sys.executable, "-m", "tests.postgres.impatient", "keeper"],
        Board.create(options.processes),
        {"options": options.to_message()},
    ).run()


if __name__ == "__main__":
    sys.exit(main())

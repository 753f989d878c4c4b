"""`headgate worker` on a store with leases, made from the embedded one: renewals can be made
to fail, or to hang, by a file beside the store; while they fail, no death can be reported either.

`python -m tests.crash.leased` is the guard, with `keeper …` the keeper.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from headgate.errors import StoreUnavailable
from headgate.stores.protocol import Capabilities
from headgate.stores.sqlite.store import SQLiteStore
from headgate.worker import keeper, registrar
from headgate.worker.board import Board
from headgate.worker.guard import Guard
from headgate.worker.options import WorkerOptions


class LeasedStore(SQLiteStore):
    capabilities = Capabilities(leases=True, local=True)

    @property
    def _folder(self) -> Path:
        return Path(self.url.removeprefix("sqlite:///")).parent

    def renew(self, worker: str) -> bool:
        with (self._folder / "renewals").open("a") as file:
            file.write(f"{time.monotonic()}\n")
        while (self._folder / "hang").exists():
            time.sleep(0.01)
        self._answer()
        return super().renew(worker)

    def declare_dead(self, worker: str, reason: str, started: frozenset[int] | None = None) -> None:
        self._answer()
        super().declare_dead(worker, reason, started)

    def _answer(self) -> None:
        if (self._folder / "refuse").exists():
            raise StoreUnavailable("the store does not answer")


def main() -> int:
    if sys.argv[1:2] == ["keeper"]:
        registrar.open_store = LeasedStore
        return keeper.main(sys.argv[2:])
    options = WorkerOptions.from_message(
        {
            "target": "tests.worker.sample:app",
            "shutdown_timeout": 5,
            "grace": 0.2,
        }
    ).checked()
    return Guard(
        [sys.executable, "-m", "tests.crash.leased", "keeper"],
        Board.create(1),
        {"options": options.to_message()},
    ).run()


if __name__ == "__main__":
    sys.exit(main())

"""`headgate worker` whose keeper is killed amid its killing: right after its n-th SIGKILL.

`python -m tests.crash.dying N` is the guard, with `keeper N …` the keeper.
"""

from __future__ import annotations

import os
import signal
import sys

from headgate import kernel
from headgate.worker import keeper
from headgate.worker.board import Board
from headgate.worker.guard import Guard
from headgate.worker.options import WorkerOptions


def die_after(kills: int) -> None:
    """From here on this process ends as if somebody had killed it after so many kills."""
    left = kills
    plain = kernel.kill

    def counted(process: kernel.Process, number: int = signal.SIGKILL) -> bool:
        nonlocal left
        done = plain(process, number)
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    kernel.kill = counted


def main() -> int:
    if sys.argv[1] == "keeper":
        die_after(int(sys.argv[2]))
        return keeper.main(sys.argv[3:])
    options = WorkerOptions.from_message({"target": "tests.worker.sample:app"}).checked()
    return Guard(
        [sys.executable, "-m", "tests.crash.dying", "keeper", sys.argv[1]],
        Board.create(1),
        {"options": options.to_message()},
    ).run()


if __name__ == "__main__":
    sys.exit(main())

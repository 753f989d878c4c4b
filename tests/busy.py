"""`python -m tests.busy N COMMAND…`: run a command beside N busy loops, which die with it."""

from __future__ import annotations

import os
import subprocess
import sys


def main() -> int:
    loops, *command = sys.argv[1:]
    parent = os.getpid()
    for _ in range(int(loops)):
        if os.fork() == 0:
            while os.getppid() == parent:
                sum(range(10_000))
            os._exit(0)
    try:
        return subprocess.call(command)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""What the commands of these tests run: it writes down when it ran, holding what.

Started as `recorder.py SECONDS`; everything else it takes from its environment.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from headgate.execlog import recording


def main() -> None:
    env = os.environ
    groups = {env["JOB_NAME"]: 1}
    if "CONCURRENCY_GROUP" in env:
        groups[env["CONCURRENCY_GROUP"]] = 1
    attempt = {
        "job": env["RUN_ID"],
        "attempt": int(env["RUN_ATTEMPT"]),
        "token": int(env["RUN_TOKEN"]),
        "task": env["JOB_NAME"],
    }
    with recording(env["RUN_LOG"], attempt, groups=groups):
        time.sleep(float(sys.argv[1]))


if __name__ == "__main__":
    main()

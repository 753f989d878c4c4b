"""Other queues to compare with, each in a virtual environment of its own under the user's
cache, made when it is first needed."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

PGQUEUER = "pgqueuer[asyncpg]==1.6.0"


def python_with(requirement: str) -> Path:
    """The interpreter of an environment that has it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = "".join(c if c.isalnum() or c in ".-" else "-" for c in f"{requirement}-py{version}")
    home = cache / "headgate-bench" / name
    python = home / "bin" / "python"
    ready = home / ".ready"
    if not ready.exists():
        print(f"installing {requirement} …", flush=True)
        venv.create(home, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, requirement], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{requirement} could not be installed:\n{done.stderr}")
        ready.touch()
    return python

"""The target of `headgate scheduler`: imported by a worker process, it is the app to run."""

from __future__ import annotations

import os

from headgate.configuration.scheduler import from_environment

app = from_environment(os.environ)

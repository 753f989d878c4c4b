"""For all tests: generated examples are the same in every run, unless a proof asks for new
ones (`HEADGATE_PROOF=full`, as `make prove-…` does)."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("searching", deadline=None)
settings.load_profile("searching" if os.environ.get("HEADGATE_PROOF") else "repeatable")

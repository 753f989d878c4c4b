"""For all tests: generated examples are the same in every run, unless a proof asks for new
ones (`HEADGATE_PROOF=full`, as `make prove-…` does)."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("searching", deadline=None)
settings.load_profile("searching" if os.environ.get("HEADGATE_PROOF") else "repeatable")

# Under nohup SIGHUP is ignored, in the background of a script SIGINT, and children inherit that:
# a handler in its place is what they do not inherit, so that the tests of a hang-up and of an
# interrupt mean the same everywhere.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

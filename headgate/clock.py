"""Time: the store's wall clock for what users see, the boot clock for leases."""

from __future__ import annotations

import functools
import time
from pathlib import Path


class Clock:
    """The clocks of this machine. `headgate.testing` puts one under control in their place."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def boot(self) -> float:
        """Seconds since the machine started: counts suspension, never jumps."""
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def boot_id(self) -> str:
        """Of what run of that clock: an end noted in another one has passed."""
        return boot_id()


@functools.cache
def boot_id() -> str:
    """A text that differs after every start of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"

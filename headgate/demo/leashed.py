"""`headgate worker` on a leash: it stops when the process that started it is gone.

`python -m headgate.demo.leashed PARENT worker MODULE:APP …`
"""

from __future__ import annotations

import signal
import sys

from headgate.cli import main
from headgate.kernel import die_with_parent

if __name__ == "__main__":
    # However the demo ends, Ctrl-C or kill -9, the kernel tells its workers to stop.
    die_with_parent(int(sys.argv.pop(1)), signal.SIGTERM)
    main()

"""`make bench`, or `python -m bench [claim] [drain] [pickup]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench import claim_cost, drain, pickup

SCENARIOS = {"claim": claim_cost.run, "drain": drain.run, "pickup": pickup.run}


def main(names: list[str]) -> int:
    unknown = set(names) - set(SCENARIOS)
    if unknown:
        print(f"no scenario {', '.join(sorted(unknown))}; there are: {', '.join(SCENARIOS)}")
        return 2
    for name in names or SCENARIOS:
        print(f"\n== {name}")
        with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
            SCENARIOS[name](Path(folder))
    return 0


sys.exit(main(sys.argv[1:]))

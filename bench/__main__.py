"""`make bench [STORE=postgres] [SCENARIO=name]`, or `python -m bench --help`."""

from __future__ import annotations

import signal
import sys
import time

import click

from bench.horizon import PINNERS
from bench.place import opened
from bench.scenarios import SCENARIOS, names


def stop(_signal: int, _frame: object) -> None:
    """What was started is stopped, however this ends."""
    sys.exit(143)


@click.command()
@click.option("--store", type=click.Choice(("sqlite", "postgres", "bucket")), default="sqlite")
@click.option("--scale", type=float, default=1.0, help="Below 1: smaller, to try it out.")
@click.option("--minutes", type=float, default=1 / 3, help="How long a horizon is pinned.")
@click.option(
    "--pinned-by", type=click.Choice(tuple(PINNERS)), multiple=True, help="By all, if not said."
)
@click.argument("scenarios", nargs=-1)
def main(
    store: str,
    scale: float,
    minutes: float,
    pinned_by: tuple[str, ...],
    scenarios: tuple[str, ...],
) -> None:
    """Run SCENARIOS, or all that STORE has, and print what they measured."""
    known = names(store)
    unknown = [name for name in scenarios if name not in known]
    if unknown:
        raise click.UsageError(
            f"no scenario {', '.join(unknown)} for {store}; there are: {', '.join(known)}"
        )
    signal.signal(signal.SIGTERM, stop)
    for name in scenarios or known:
        print(f"\n== {name} ({store})", flush=True)
        began = time.monotonic()
        with opened(store, scale, minutes, pinned_by) as place:
            SCENARIOS[name](place)
        print(f"   took {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

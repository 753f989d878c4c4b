"""All scenarios by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench import claim_cost, drain, horizon, limits, newcomer, pickup, short_jobs, slots
from bench.place import Place

Scenario = Callable[[Place], Mapping[str, float]]

SCENARIOS: dict[str, Scenario] = {
    "concurrency-baseline": limits.baseline,
    "concurrency-enabled": limits.enabled,
    "concurrency-mixed": limits.mixed,
    "concurrency-high": limits.high,
    "drain": drain.run,
    "short-jobs": short_jobs.run,
    "claim-cost": claim_cost.run,
    "newcomer": newcomer.run,
    "pickup": pickup.run,
    "slots": slots.run,
    "pinned-horizon": horizon.run,
}
ONLY_POSTGRES = frozenset(("pinned-horizon",))


def names(store: str) -> list[str]:
    return [name for name in SCENARIOS if store == "postgres" or name not in ONLY_POSTGRES]

"""All scenarios by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench import (
    bucket,
    bucket_claims,
    claim_cost,
    drain,
    horizon,
    limits,
    newcomer,
    pickup,
    short_jobs,
    slots,
)
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
    "bucket": bucket.run,
    "bucket-claims": bucket_claims.run,
}
ONLY = {"pinned-horizon": "postgres", "bucket": "bucket", "bucket-claims": "bucket"}
"""Scenarios of one store; the bucket has no others."""


def names(store: str) -> list[str]:
    if store == "bucket":
        return [name for name in SCENARIOS if ONLY.get(name) == store]
    return [name for name in SCENARIOS if ONLY.get(name, store) == store]

"""Every benchmark in its smallest form: it runs to its end, every job ran once, and no limit
was passed. What it measures is not judged here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

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
from bench.scenarios import SCENARIOS, Scenario, names
from tests.postgres.server import Server

TINY = 0.001


@pytest.fixture
def place(postgres: Server, tmp_path: Path) -> Place:
    return Place(tmp_path, postgres, scale=TINY, minutes=1 / 60, peers=False)


@pytest.mark.parametrize(
    "scenario", [limits.baseline, limits.enabled, limits.mixed, limits.high, drain.run]
)
def test_jobs_that_do_nothing(place: Place, scenario: Scenario) -> None:
    assert min(scenario(place).values()) > 0


def test_limits_are_kept_and_shared(place: Place) -> None:
    found = short_jobs.run(place)
    most = {name: n for name, n in found.items() if name.endswith(", at once")}
    assert set(most) == {
        f"{name}, at once"
        for name in (
            short_jobs.BARE, "one lane", "one lane, in threads", "10 tenants",
        )
    }  # fmt: skip
    assert all(0 < n <= short_jobs.LIMIT for n in most.values()), most


def test_claims(place: Place) -> None:
    assert len(claim_cost.run(place)) == 10


def test_a_newcomer_starts(place: Place) -> None:
    assert newcomer.run(place)["ratio"] > 0


def test_pickup_and_slots(place: Place) -> None:
    assert pickup.run(place)["release to the next start, p50"] > 0
    assert slots.run(place)["take"] > 0


@pytest.mark.parametrize("pinner", horizon.PINNERS)
def test_a_pinned_horizon(place: Place, pinner: str) -> None:
    found = horizon.run(replace(place, pinned_by=(pinner,)))
    assert len(found) == 6, "both limits, beside the control"
    assert min(found.values()) > 0


def test_every_scenario_has_a_name() -> None:
    assert set(names("sqlite")) < set(names("postgres"))
    assert {*names("postgres"), *names("bucket")} == set(SCENARIOS)


def test_a_bucket(tmp_path: Path) -> None:
    place = Place(tmp_path, None, 0.02)
    assert bucket_claims.run(place)["largest ledger"] < 1_000_000
    with bucket.serving(latency=0.005) as site:
        speed, writes = bucket.drain(place, site, "nothing", 200, 1, 1)
    assert speed > 0
    assert 0 < writes < 1

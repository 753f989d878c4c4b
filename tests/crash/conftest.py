from __future__ import annotations

import pytest

from tests.stores import on_both
from tests.worker.site import site

__all__ = ["site"]

ON_POSTGRES = frozenset(
    {
        "test_slots_of_a_killed_worker_process_are_free_within_two_seconds",
        "test_other_worker_processes_keep_their_isolated_tasks",
        "test_warden_alone",
        "test_death_while_many_jobs_run",
        "test_stalled_and_alive_again",
        "test_stall_timeout_kills_anyway",
        "test_a_killed_process_loses_only_what_had_started",
        "test_with_its_keeper_gone_too_all_that_was_reserved_counts_as_started",
    }
)
"""Deaths that a keeper sees. Where nobody is left to see one, the lease decides on PostgreSQL:
tests/crash/test_leases.py."""

ON_A_BUCKET = frozenset({"test_death_while_many_jobs_run"})
"""In the short form. tests/crash/test_bucket.py has the deaths that nobody sees."""

THROUGH_A_POOLER = frozenset(
    {
        "test_slots_of_a_killed_worker_process_are_free_within_two_seconds",
        "test_death_while_many_jobs_run",
    }
)
ON_THE_SYSTEMS_SERVER = frozenset({"test_death_while_many_jobs_run"})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_both(metafunc, "site", ON_POSTGRES, ON_A_BUCKET, THROUGH_A_POOLER, ON_THE_SYSTEMS_SERVER)

"""A small limit of short jobs is used by several processes at once."""

from __future__ import annotations

from pathlib import Path

from bench.fill import fill
from bench.fleet import workers
from bench.tasks import LIMITED, app


def test_processes_share_a_small_limit_of_jobs_that_take_no_time(
    empty_database: str, tmp_path: Path
) -> None:
    """Each would be as fast with one slot as with ten: alone, one of them would keep all."""
    jobs = 40_000
    fill(empty_database, [(app.tasks["limited"].call().new_job(), jobs)])
    options = ("--processes", "3", "--concurrency", "100")
    with workers(tmp_path, empty_database, *options, held=True) as fleet:
        fleet.go()
        fleet.wait(lambda: fleet.traces.count(LIMITED) >= jobs, "all have run")
        ran = sorted(fleet.traces.each(LIMITED))
    assert sum(ran) == jobs
    assert ran[-2] > jobs // 20

"""A small limit of short jobs is used by several processes at once."""

from __future__ import annotations

from pathlib import Path

from bench.fill import fill
from bench.fleet import workers
from bench.tasks import LIMITED, app

BACKLOG = 10_000
SHARE = 2000
MOST = 400_000


def test_processes_share_a_small_limit_of_jobs_that_take_no_time(
    empty_database: str, tmp_path: Path
) -> None:
    """Each would be as fast with one slot as with ten: alone, one of them would keep all for as
    long as there is work."""
    jobs = [(app.tasks["limited"].call().new_job(), 2 * BACKLOG)]
    sent = fill(empty_database, jobs)
    options = ("--processes", "3", "--concurrency", "100")
    with workers(tmp_path, empty_database, *options, held=True) as fleet:

        def shared() -> bool:
            nonlocal sent
            if sent - fleet.traces.count(LIMITED) < BACKLOG:
                assert sent < MOST, "one process has kept all"
                sent += fill(empty_database, jobs)  # before the line is empty: who holds, holds
            return len(ran := sorted(fleet.traces.each(LIMITED))) > 1 and ran[-2] >= SHARE

        fleet.go()
        # On a machine that is busy with other things nobody has a processor to offer slots for.
        fleet.wait(shared, "two of them have run many")
        fleet.wait(lambda: fleet.traces.count(LIMITED) >= sent, "all have run")
    assert fleet.traces.count(LIMITED) == sent

"""From submit to start with idle workers, and what idling costs."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from bench.fleet import cpu_seconds, family, workers


def run(folder: Path, samples: int = 1000, idle: float = 30.0) -> dict[str, float]:
    url = f"sqlite:///{folder}/pickup.db"
    os.environ["HEADGATE_URL"] = url
    from bench.tasks import app, stamp

    app.close()
    app.__dict__.pop("config", None)
    log = folder / "pickup.log"
    with workers(folder, url, count=2) as store:
        keepers = family(os.getpid())[1:]
        for _ in range(20):
            stamp.submit(time.time()).result(timeout=10)
        log.unlink()
        for _ in range(samples):
            stamp.submit(time.time())
            time.sleep(0.005)
        while len(log.read_text().splitlines()) < samples:
            time.sleep(0.05)
        times = sorted(float(line) * 1e3 for line in log.read_text().splitlines())
        time.sleep(2)
        before = cpu_seconds(keepers)
        time.sleep(idle)
        cpu = (cpu_seconds(keepers) - before) / idle
        assert store.workers()
    app.close()
    cuts = statistics.quantiles(times, n=100)
    print(
        f"pick-up of {samples}: p50 {cuts[49]:.2f} ms, p95 {cuts[94]:.2f} ms, p99 {cuts[98]:.2f} ms"
    )
    print(f"idle: two workers with keepers and guards use {cpu:.2%} of a core over {idle:.0f} s")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "idle": cpu}

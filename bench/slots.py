"""What it takes to take and to release a slot by hand (`app.slots`)."""

from __future__ import annotations

import statistics
import time

from bench.place import Place, direct
from bench.table import ms, ratio, show
from headgate import App


def run(place: Place) -> dict[str, float]:
    samples = place.sized(2000, 30)
    times: dict[str, list[float]] = {"take": [], "release": []}
    with place.store("slots") as url:
        app = App(url)
        app.limit("gpu", 10)
        floor = direct(url) if place.server is not None else None
        if floor is not None:
            floor.execute("CREATE TABLE floor (n integer PRIMARY KEY, at float8)")
            floor.execute("INSERT INTO floor VALUES (1, 0)")
            times["one row updated and committed, for comparison"] = []
        for i in range(samples):
            began = time.perf_counter()
            slot = app.slots.try_acquire("gpu", None, f"holder-{i}", "bench", 30)
            taken = time.perf_counter()
            assert slot is not None
            assert app.slots.release(slot)
            released = time.perf_counter()
            times["take"].append(taken - began)
            times["release"].append(released - taken)
            if floor is not None:
                floor.execute("UPDATE floor SET at = at + 1 WHERE n = 1")
                times["one row updated and committed, for comparison"].append(
                    time.perf_counter() - released
                )
        app.close()
        if floor is not None:
            floor.close()
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    base = list(medians.values())[-1]
    rows = [
        [name, ratio(medians[name] / base), ms(medians[name]),
         ms(statistics.quantiles(taken, n=100)[98])]
        for name, taken in times.items()
    ]  # fmt: skip
    show(["slots by hand", "ratio", "p50", "p99"], rows)
    return {name: median * 1e3 for name, median in medians.items()}

"""Three tenants of very different size, two jobs at once for each, five at once in all.

    python examples/tenants.py

Everything happens in this process and in a temporary directory. The jobs count for themselves
how many of them run at once.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter

from headgate import App, Worker

folder = tempfile.TemporaryDirectory()
app = App(f"sqlite:///{folder.name}/jobs.db")
api = app.limit("payments-api", 5)
tenant = app.limit("tenant", 2, key="tenant_id")

running: Counter[str] = Counter()
most: Counter[str] = Counter()
started: list[str] = []


@app.task(limits=[api, tenant])
async def charge(tenant_id: str, amount: int) -> None:
    started.append(tenant_id)
    for name in (tenant_id, "all"):
        running[name] += 1
        most[name] = max(most[name], running[name])
    await asyncio.sleep(0.01)
    for name in (tenant_id, "all"):
        running[name] -= 1


def main() -> None:
    sizes = {"acme": 100, "bolt": 20, "coda": 4}
    for name, size in sizes.items():
        app.submit_many([charge.call(name, n) for n in range(size)])
    Worker(app, "example", concurrency=20, burst=True).run()

    for name, size in sizes.items():
        last = len(started) - started[::-1].index(name)
        print(f"{name}: {size} jobs, at most {most[name]} at once, the last was start no. {last}")
    print(f"all: {len(started)} jobs, at most {most['all']} at once")
    app.close()
    folder.cleanup()


if __name__ == "__main__":
    main()

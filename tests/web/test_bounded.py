"""What a page reads does not grow with the number of jobs and keys.

With `HEADGATE_PROOF=full` there are 1,000,000 jobs and 100,000 keys, beside a worker that drains
them, and every page must begin to answer within 300 ms.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.jobs import Finish
from headgate.stores.protocol import Claim, Exchange
from headgate.stores.sqlite.transaction import Transaction
from headgate.web import create_app
from headgate.web.survey import Survey
from tests.stores import store_url
from tests.waiting import PATIENCE, wait_until
from tests.web import scene as scenes
from tests.web.load import fill, fill_postgres
from tests.web.pages import addresses
from tests.web.scene import Hand, Scene
from tests.web.visit import visiting

FULL = bool(os.environ.get("HEADGATE_PROOF"))
MORE = {
    "jobs-text": "/jobs?text=no-such-words",
    "jobs-group": "/jobs?group=tenant/key-000007",
    "jobs-ready": "/jobs?state=ready",
    "group-hot": "/groups/show?group=tenant/hot",
    "keys-search": "/groups/keys?limit=tenant&q=key-0000",
    "metrics": "/metrics",
    "bulk": "/jobs/bulk?task=charge&action=cancel",
    "api-jobs": "/api/jobs?state=succeeded&task=nobody",
}
STATEMENTS = 60
ROWS = 12_000


class Reads:
    """Counts statements and rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements = self.rows = 0
        for name in ("rows", "row", "value"):
            monkeypatch.setattr(Transaction, name, self._counting(getattr(Transaction, name)))

    def _counting(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def counted(tx: Any, *args: Any) -> Any:
            self.statements += 1
            found = read(tx, *args)
            self.rows += len(found) if isinstance(found, list) else 1
            return found

        return counted

    def taken(self) -> tuple[int, int]:
        told = (self.statements, self.rows)
        self.statements = self.rows = 0
        return told


def file_of(scene: Scene) -> Path:
    return Path(scene.app.url.removeprefix("sqlite:///"))


def test_pages_read_no_more_when_there_is_more(
    small: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Surveys are for keys, which they go through in steps: they are looked at below.
    monkeypatch.setattr(Survey, "_start", lambda self: None)
    fill(file_of(small), ended=4000, hot=3000, keys=3000)
    reads = Reads(monkeypatch)
    with visiting(create_app(small.app)) as visit:
        for name, path in {**addresses(small), **MORE}.items():
            assert visit.get(path).status_code in (200, 404), name
            statements, rows = reads.taken()
            assert statements < STATEMENTS, name
            assert rows < ROWS, name


def scanned(plan: dict[str, Any]) -> float:
    """The most rows that one scan of a table went through."""
    inner = max((scanned(one) for one in plan.get("Plans", ())), default=0.0)
    if "Relation Name" not in plan:
        return inner
    passed = plan.get("Rows Removed by Filter", 0) + plan["Actual Rows"]
    return max(inner, passed * plan["Actual Loops"])


def test_postgres_reads_no_more_when_it_knows_nothing_of_its_tables(tmp_path: Path) -> None:
    """After a large load there are no statistics for a while: no plan may need them."""
    scene = scenes.make(store_url("postgres", tmp_path, quick=True))
    fill_postgres(scene.app.url, ended=60_000, hot=20_000, keys=20_000)
    store: Any = scene.store
    bound = {"limit": 1000, "queue": "default"}
    with store._read() as tx:
        look, watch = tx.sql.look, tx.sql.watch
        statements = {
            "queue_waiting": (look.queue_waiting, bound),
            "queue_oldest": (look.queue_oldest, bound),
            "queue_running": (look.queue_running, {}),
            "queue_reserved": (look.queue_reserved, {}),
            "queue_scheduled": (look.queue_scheduled, {"limit": 1000}),
            "before": (look.before, {"queue": "default", "priority": 1}),
            "durations": (look.durations, {"task": "charge"}),
            "overdue": (look.overdue, {}),
            "ends": (watch.ends, {"state": "succeeded", "since": 0.0, "limit": 1000}),
            "by_end": (watch.by_end, {"state": "succeeded", "at": 1e12, "job": 0, "look": 1000}),
        }
        read = {
            name: scanned(
                tx.rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", cells)[0]["QUERY PLAN"][0]["Plan"]
            )
            for name, (sql, cells) in statements.items()
        }
    scene.close()
    assert {name: rows for name, rows in read.items() if rows > 1100} == {}


@pytest.mark.skipif(not FULL, reason="a million jobs: make prove-dashboard")
@pytest.mark.timeout(600)
def test_a_million_jobs_and_a_hundred_thousand_keys(scene: Scene) -> None:
    if scene.app.url.startswith("sqlite"):
        fill(file_of(scene), ended=300_000, hot=600_000, keys=100_000)
    else:
        fill_postgres(scene.app.url, ended=300_000, hot=600_000, keys=100_000)
    small, over = scene, threading.Event()
    worker = threading.Thread(target=_drain, args=(small, over))
    worker.start()
    times: dict[str, list[float]] = {}
    try:
        with visiting(create_app(small.app)) as visit:
            for _ in range(3):
                for name, path in {**addresses(small), **MORE}.items():
                    began = time.monotonic()
                    with visit.stream("GET", path) as answer:
                        assert answer.status_code == 200
                        next(answer.iter_raw())
                        times.setdefault(name, []).append(time.monotonic() - began)
            keys = "/api/groups/keys?limit=tenant"
            wait_until(lambda: visit.get(keys).json()["complete"], 2 * PATIENCE, "the survey ends")
            assert len(visit.get("/metrics").content) < 1_000_000
    finally:
        over.set()
        worker.join()
    print({name: [f"{took * 1000:.0f} ms" for took in taken] for name, taken in times.items()})


def _drain(scene: Scene, over: threading.Event) -> None:
    hand = Hand(scene.app, "drains")
    while not over.wait(0.02):
        for claimed in hand.claim(20):
            hand.tell(Finish(claimed.token, "succeeded"))
    scene.store.exchange(Exchange(hand.id, claim=Claim(0, hand.tasks, hand.state)))
    scene.store.unregister(hand.id)
    for fd in hand.registration.fds:
        os.close(fd)

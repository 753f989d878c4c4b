"""A page on a bucket costs a few requests, whatever it shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.cli import root, top, watch
from headgate.jobs import NewJob
from headgate.stores.bucket.store import BucketStore
from headgate.stores.protocol import Output, OutputPiece
from headgate.telemetry.counts import Counts
from headgate.telemetry.gauges import Looker
from headgate.web import create_app
from tests.bucket.memory import MemoryObjects
from tests.web import scene as scenes
from tests.web.pages import addresses
from tests.web.visit import visiting

MOST = 6
LOOK = 2
"""Requests of a look at everything: has it changed, and how."""
LARGE = '{"to": "' + "x" * 10_000 + '"}'


def test_a_page_takes_few_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine that has just come, on a store in which others write: large arguments and
    outputs are objects of their own."""
    objects = MemoryObjects()

    def opened(url: str, clock: Any = None) -> BucketStore:
        return BucketStore(url, objects=objects)

    monkeypatch.setattr("headgate.app.open_store", opened)
    scene = scenes.make(f"s3://tests/x?cache={tmp_path}/one&poll=4")
    scene.store.submit(
        [NewJob("letter", args=LARGE.replace("x", "abc"[n % 3], n)) for n in range(60)]
    )
    pieces = [OutputPiece(100 + n, "out", 1.0, n << 16, b"%06d\n" % n * 9362) for n in range(40)]
    scene.store.put_output([Output(scene.running[0].token, pieces)])
    other = scenes.make_app(f"s3://tests/x?cache={tmp_path}/two&poll=4")
    store: Any = other.store
    more = {"metrics": "/metrics", "api-why": f"/api/jobs/{scene.jobs['ready']}/why",
            "text": "/jobs?text=nothing", "letters": "/jobs?task=letter",
            "cancel": "/jobs/bulk?task=letter&action=cancel"}  # fmt: skip
    site = create_app(other)
    took: dict[str, int] = {}
    with visiting(site) as visit:
        for n, (name, path) in enumerate({**addresses(scene), **more}.items()):
            scene.store.pause_queue("mail", n % 2 == 0)  # so that there is something to fetch
            site.state.site.sampler.forget()
            store._commits.following.looked_at = float("-inf")
            before = sum(objects.requests().values())
            page = visit.get(path)
            took[name] = sum(objects.requests().values()) - before
            assert page.status_code in (200, 404), (name, page.text)
            assert name != "job-running" or "000039\n" in page.text
    other.close()
    scene.close()
    print(took)
    assert {name: count for name, count in took.items() if count > MOST} == {}


def test_a_scrape_and_a_look_from_a_terminal_take_few_requests(tmp_path: Path) -> None:
    objects = MemoryObjects()
    one = BucketStore(f"s3://tests/x?cache={tmp_path}/one", objects=objects)
    other: Any = BucketStore(f"s3://tests/x?cache={tmp_path}/two", objects=objects)
    looker = Looker(lambda: other, Counts(), frozenset(("tenant",)))
    took: dict[str, int] = {}
    try:
        looks: list[tuple[str, Callable[[], object]]] = [
            ("first", looker.values), ("scrape", looker.values), ("top", lambda: top.look(other)),
        ]  # fmt: skip
        for n, (name, look) in enumerate(looks):
            one.pause_queue("mail", n % 2 == 0)
            looker._looked = other._commits.following.looked_at = float("-inf")
            before = sum(objects.requests().values())
            look()
            took[name] = sum(objects.requests().values()) - before
    finally:
        other.close()
        one.close()
    print(took)
    assert max(took.values()) <= LOOK


def test_following_a_job_does_not_ask_at_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = MemoryObjects()
    url = f"s3://tests/x?cache={tmp_path}/one&poll=4"
    with closing(BucketStore(url, objects=objects)) as store:
        (job,) = store.submit([NewJob("letter")])

    def opened(url: str) -> BucketStore:
        return BucketStore(url, objects=objects)

    monkeypatch.setattr("headgate.stores.open_store", opened)
    monkeypatch.setattr("headgate.stores.exists", lambda url: True)
    began, before = time.monotonic(), sum(objects.requests().values())
    words = ["--url", url, "watch", job.id, "--timeout", "3"]
    done = CliRunner().invoke(root, words, prog_name="headgate")
    took = time.monotonic() - began
    asked = sum(objects.requests().values()) - before
    print(asked, took)
    assert "has not ended after 3 s" in done.stderr
    assert asked <= took / watch.AGE + 9, f"{asked} requests in {took:.1f} s"

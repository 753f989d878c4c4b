"""A dashboard that is left open: what it and the browser hold on to stays level, whatever happens.

With `HEADGATE_PROOF=full` it is open for ten minutes, on each store.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx
import psycopg
import pytest
from playwright.sync_api import BrowserContext, CDPSession, Page, expect

from headgate.jobs import Finish, NewJob
from headgate.stores.postgres.url import parse
from headgate.stores.protocol import Output, OutputPiece
from headgate.web import create_app
from headgate.web.sampler import Sample, Sampler
from tests.stores import store_url
from tests.waiting import PATIENCE, wait_until
from tests.web import scene as scenes
from tests.web.browser import browsing, serving
from tests.web.load import fill, fill_postgres
from tests.web.scene import Hand, Scene, charge

FULL = bool(os.environ.get("HEADGATE_PROOF"))
SECONDS = 600.0 if FULL else 6.0
EVERY = 10 if FULL else 2
"""Refreshes of pages, all together, between two looks at what is held: there are two a second."""
LOOKS = 120 if FULL else 6
RATE = 100
"""Events a second."""
EVENTS = 0.7 * RATE * SECONDS
"""In all, at least: on a slow machine it lasts longer."""
TICK = 0.1
PAGE, CHANGES = 100, 20
"""Events that a page shows, and changes that a group's does: from then on they are full."""

# What the last third may have more than the first after warm-up: its middle value, in parts, and
# in numbers. The chart of the last hour has a bar more every minute.
PART, ELEMENTS, NODES = 0.05, 60, 600
MEGABYTES = 8.0
HEAP = 2.0
"""Megabytes of one page."""
STREAMS = 1
KEPT_OPEN = 6
"""Connections that a browser has to one server at most."""


# --- what happens ------------------------------------------------------------------------------


class Source:
    """So many events a second: jobs that are submitted and cancelled, each of which is one; and
    beside them jobs that run, a limit that changes, and a command that writes."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._hand = Hand(scene.app, "source")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Source:
        for value in range(CHANGES):
            self._change(24 + value % 2)
        before = self.made
        self._thread.start()
        wait_until(lambda: self.made >= before + PAGE, why="events happen")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._scene.store.unregister(self._hand.id)
        for fd in self._hand.registration.fds:
            os.close(fd)

    @property
    def made(self) -> int:
        """So many events have there been, as the store counts them."""
        return self._scene.store.events(limit=1)[0].seq

    def _change(self, value: int) -> None:
        self._scene.app.concurrency.set("gpu-memory", value, reason="a change", by="source")

    def _run(self) -> None:
        began, tick = time.monotonic(), 0
        while not self._over.wait(max(0.0, began + tick * TICK - time.monotonic())):
            self._tick(tick)
            tick += 1

    def _tick(self, tick: int) -> None:
        store = self._scene.store
        jobs = [NewJob("letter", queue="mail", args='{"to": "x"}') for _ in range(int(RATE * TICK))]
        for told in store.submit(jobs):
            store.cancel(told.id, by="source", reason="no longer wanted")
        if tick % 5 == 0:
            store.submit([charge(f"tenant-{tick % 7}"), charge(f"tenant-{tick % 5}")])
            for claimed in self._hand.claim(2):
                outcome = "succeeded" if tick % 15 else "failed"
                self._hand.tell(Finish(claimed.token, outcome))
        if tick % 10 == 0:
            self._change(20 + tick // 10 % 5)
        piece = OutputPiece(100 + tick, "out", 1.0, 1000 + tick * 400, b"%08d " % tick * 44 + b"\n")
        store.put_output([Output(self._scene.running[0].token, [piece])])


# --- what is looked at -------------------------------------------------------------------------


class Dashboard:
    """`headgate dashboard`, as a process of its own."""

    def __init__(self, url: str) -> None:
        postgres = url.startswith("postgres")
        self._conninfo = parse(url).conninfo if postgres else ""
        self._name = f"dashboard-{os.getpid()}"
        told = f"{url}&application_name={self._name}" if postgres else url
        words = [sys.executable, "-m", "headgate", "dashboard", "--url", told]
        self.process = subprocess.Popen(
            [*words, "--bind", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip().rstrip("/")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def megabytes(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise AssertionError("the dashboard is gone")

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def _links(self) -> list[str]:
        found: list[str] = []
        for fd in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                found.append(str(fd.readlink()))
            except FileNotFoundError:
                continue  # closed meanwhile
        return found

    def browsers(self) -> int:
        """Connections of browsers: to the port at which it listens."""
        port = f"{int(self.url.rpartition(':')[2]):04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(f":{port}") and row[3] == "01" for row in rows)

    def connections(self) -> int:
        """Connections to the store."""
        if not self._conninfo:
            return sum(link.endswith("/jobs.db") for link in self._links())
        with psycopg.connect(self._conninfo) as db:
            found = db.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (self._name,)
            ).fetchone()
            assert found is not None
            return found[0]

    def files(self) -> int:
        return len(self._links())


@dataclass
class Tab:
    name: str
    page: Page
    session: CDPSession
    refreshed: int = 0

    def count(self) -> None:
        self.refreshed += 1


@dataclass
class Seen:
    """Numbers by what they are of, in the order in which they were taken."""

    numbers: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def note(self, name: str, number: float) -> None:
        self.numbers.setdefault(name, []).append(number)

    def ends(self, name: str) -> tuple[float, float]:
        """The middle of the first third after warm-up, and of the last."""
        taken = self.numbers[name]
        taken = taken[len(taken) // 6 :]
        third = max(1, len(taken) // 3)
        return median(taken[:third]), median(taken[-third:])


def open_tabs(context: BrowserContext, url: str, scene: Scene) -> list[Tab]:
    paths = {
        "overview": "/",
        "events": "/events",
        "group": "/groups/show?group=gpu-memory",
        "job": f"/jobs/{scene.jobs['running']}",
    }
    found: list[Tab] = []
    for name, path in paths.items():
        page = context.new_page()
        page.goto(url + path)
        tab = Tab(name, page, context.new_cdp_session(page))
        tab.session.send("Performance.enable")
        page.on("requestfinished", lambda _, tab=tab: tab.count())
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        found.append(tab)
    return found


def look(tabs: list[Tab], dashboard: Dashboard, seen: Seen) -> None:
    for tab in tabs:
        seen.note(
            f"{tab.name} elements",
            tab.page.evaluate("document.getElementsByTagName('*').length"),
        )
        tab.session.send("HeapProfiler.collectGarbage")
        metrics = tab.session.send("Performance.getMetrics")["metrics"]
        numbers = {one["name"]: one["value"] for one in metrics}
        seen.note(f"{tab.name} nodes", numbers["Nodes"])
        seen.note(f"{tab.name} listeners", numbers["JSEventListeners"])
        seen.note(f"{tab.name} heap", numbers["JSHeapUsedSize"] / 1e6)
    seen.note("memory", dashboard.megabytes())
    seen.note("threads", dashboard.threads())
    seen.note("files", dashboard.files())
    seen.note("connections", dashboard.connections())
    seen.note("browsers", dashboard.browsers())


@contextmanager
def watched(url: str) -> Iterator[tuple[Source, Dashboard, list[Tab]]]:
    scene = scenes.make(url)
    # The last hour is full of ends: its chart has its bars already.
    if url.startswith("sqlite"):
        fill(Path(url.removeprefix("sqlite:///").partition("?")[0]), ended=6000, hot=50, keys=50)
    else:
        fill_postgres(url, ended=6000, hot=50, keys=50)
    dashboard = Dashboard(url)
    try:
        with browsing() as browser, Source(scene) as source:
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            yield source, dashboard, open_tabs(context, dashboard.url, scene)
            context.close()
    finally:
        dashboard.close()
        scene.close()


def warm_up(dashboard: Dashboard) -> None:
    """A dashboard keeps a thread, and with it a connection, for each request of as many as it ever
    answered at once. A browser makes no more at once than these."""

    def answered() -> bool:
        assert set(clients.map(lambda _: httpx.get(dashboard.url).status_code, crowd)) == {200}
        return dashboard.connections() >= KEPT_OPEN

    crowd = range(2 * KEPT_OPEN)
    with ThreadPoolExecutor(len(crowd)) as clients:
        wait_until(answered, why=lambda: f"{dashboard.connections()} connections to the store")


def level(seen: Seen, name: str, more: float) -> str:
    """Empty, or what is wrong."""
    first, last = seen.ends(name)
    return f"{name}: {first:.1f}, later {last:.1f}" if last > first * (1 + PART) + more else ""


@pytest.mark.parametrize(
    "store",
    ["sqlite", pytest.param("postgres", marks=pytest.mark.skipif(not FULL, reason="the proof"))],
)
@pytest.mark.timeout(int(SECONDS) + 240)
def test_what_is_held_stays_level(store: str, tmp_path: Path) -> None:
    seen = Seen()
    with watched(store_url(store, tmp_path, quick=True)) as (source, dashboard, tabs):
        warm_up(dashboard)
        began, made, looks = time.monotonic(), source.made, 0

        def enough() -> bool:
            nonlocal looks
            tabs[0].page.evaluate("0")  # what the pages fetch is counted in calls of the browser
            if sum(tab.refreshed for tab in tabs) >= EVERY * (looks + 1):
                look(tabs, dashboard, seen)
                looks += 1
            long_enough = time.monotonic() - began >= SECONDS
            return long_enough and looks >= LOOKS and source.made - made >= EVENTS

        wait_until(enough, SECONDS + 2 * PATIENCE, lambda: f"{looks} looks, {source.made} events")
        took = time.monotonic() - began
        rate = (source.made - made) / took
    for name in seen.numbers:
        first, last = seen.ends(name)
        print(f"{store} {name}: {first:.1f} → {last:.1f}, at most {max(seen.numbers[name]):.1f}")
    refreshed = {tab.name: tab.refreshed for tab in tabs}
    print(f"{store}: {rate:.0f} events a second for {took:.0f} s, refreshes: {refreshed}")
    # The tabs are alive: each was made anew some times.
    assert min(refreshed.values()) >= EVERY * LOOKS // 8
    assert max(seen.numbers["browsers"]) <= KEPT_OPEN
    bounds: dict[str, Callable[[str], str]] = {
        " elements": lambda name: level(seen, name, ELEMENTS),
        " nodes": lambda name: level(seen, name, NODES),
        " listeners": lambda name: level(seen, name, 5),
        " heap": lambda name: level(seen, name, HEAP if FULL else 10.0),
        "memory": lambda name: level(seen, name, MEGABYTES if FULL else 40.0),
        "files": lambda name: level(seen, name, 6),
        "threads": lambda name: level(seen, name, 3),
        "connections": lambda name: level(seen, name, 2),
        "browsers": lambda name: level(seen, name, 1),
    }
    wrong = [
        check(name) for name in seen.numbers for end, check in bounds.items() if name.endswith(end)
    ]
    assert [told for told in wrong if told] == []


@pytest.mark.parametrize("every", [1.0, 2.0, 5.0])
def test_an_hour_is_remembered_however_often_somebody_looks(every: float) -> None:
    sampler = Sampler(lambda: pytest.fail("nobody looks"))
    for n in range(int(7200 / every)):
        sampler._note(Sample(n * every, (), (), (), 0))
    totals = sampler.history.totals
    assert totals[-1].at == 7200 - every
    assert 3590 < totals[-1].at - totals[0].at < 4400
    assert len(totals) <= 720


def test_any_number_of_pages_have_one_stream(tmp_path: Path) -> None:
    """A browser has six connections to one server: with a stream each, the seventh page would
    never be shown. When the page that listens is closed, another goes on."""
    scene = scenes.make(store_url("sqlite", tmp_path))
    site = create_app(scene.app)
    try:
        with serving(site) as url, browsing() as browser:
            context = browser.new_context()
            pages = [context.new_page() for _ in range(KEPT_OPEN + 2)]
            for page in pages:
                page.goto(f"{url}/queues")
                expect(page.get_by_text("live", exact=True)).to_be_visible()
            assert site.state.streams.open == STREAMS
            pages.pop(0).close()
            scene.store.pause_queue("default", True)
            for page in pages:
                row = page.get_by_role("row").filter(has_text="default")
                expect(row.get_by_text("paused", exact=True)).to_be_visible()
            assert site.state.streams.open == STREAMS
            context.close()
    finally:
        scene.close()

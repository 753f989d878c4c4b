"""Every address of the dashboard, used as people do: in a real browser.

The list of addresses is the router's own. A test says which of them it uses, and is held to it;
an address that no test uses fails the build.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, expect
from starlette.applications import Starlette
from starlette.routing import Match, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.jobs import Finish
from headgate.stores.protocol import Exchange
from headgate.web import create_app
from headgate.web.routes import routes
from tests.waiting import PATIENCE
from tests.web.browser import browsing, serving
from tests.web.pages import addresses
from tests.web.scene import Scene
from tests.web.visit import OPERATOR, access

CLAIMED: set[str] = set()
T = TypeVar("T", bound=Callable[..., Any])


def uses(*names: str) -> Callable[[T], T]:
    CLAIMED.update(names)
    return pytest.mark.uses(*names)


def every_route() -> set[str]:
    found: set[str] = set()
    for route in routes():
        if isinstance(route, Mount):
            found.add(f"GET {route.path}")
        else:
            found |= {f"{m} {route.path}" for m in route.methods or () if m != "HEAD"}
    return found


def test_every_address_has_a_browser_test() -> None:
    assert every_route() == CLAIMED


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as made:
        yield made


class Recorder:
    """Notes which routes are asked for."""

    def __init__(self, site: Starlette) -> None:
        self.site = site
        self.seen: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for route in self.site.routes:
                if route.matches(scope)[0] is Match.FULL and isinstance(route, Route | Mount):
                    self.seen.add(f"{scope['method']} {route.path}")
                    break
        await self.site(scope, receive, send)


class Window:
    """A page of the browser, on a dashboard of the scene."""

    def __init__(self, page: Page, url: str, scene: Scene) -> None:
        self.page = page
        self.url = url
        self.scene = scene
        self.complaints: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: dialog.accept())

    def _console(self, message: ConsoleMessage) -> None:
        expected = "404" in message.text or "403" in message.text
        if message.type in ("error", "warning") and not expected:
            self.complaints.append(message.text)

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page


def _window(
    request: pytest.FixtureRequest, browser: Browser, scene: Scene, site: Starlette
) -> Iterator[Window]:
    recorder = Recorder(site)
    app: ASGIApp = recorder
    with serving(app) as url:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(PATIENCE * 1000)
        window = Window(context.new_page(), url, scene)
        yield window
        context.close()
        marks = request.node.iter_markers("uses")
        claimed = {name for mark in marks for name in mark.args}
        assert claimed <= recorder.seen, "the test uses what it says it does"
        # The policy that forbids scripts and styles of others' making complains here.
        assert window.complaints == []


@pytest.fixture
def window(request: pytest.FixtureRequest, browser: Browser, scene: Scene) -> Iterator[Window]:
    yield from _window(request, browser, scene, create_app(scene.app))


@pytest.fixture
def window_small(
    request: pytest.FixtureRequest, browser: Browser, small: Scene
) -> Iterator[Window]:
    yield from _window(request, browser, small, create_app(small.app))


@pytest.fixture
def guarded_window(
    request: pytest.FixtureRequest, browser: Browser, small: Scene
) -> Iterator[Window]:
    yield from _window(request, browser, small, create_app(small.app, access=access()))


@uses("GET /", "GET /stream", "GET /static", "GET /groups", "GET /events")
def test_the_overview_lives_and_leads_on(window: Window) -> None:
    page = window.open("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    running = page.get_by_role("link", name="running of 12")
    expect(running).to_contain_text("4")
    done = window.scene.running[0]
    window.scene.store.exchange(Exchange(window.scene.worker, [Finish(done.token, "succeeded")]))
    expect(running).to_contain_text("3")  # without a reload: the stream told the page
    page.get_by_role("link", name="All groups").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Groups")
    page.get_by_label("Name has").fill("gpu")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#limits tbody tr")).to_have_count(1)
    page.get_by_role("navigation").get_by_role("link", name="Events").click()
    page.get_by_label("What").select_option("limit changed")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#events tbody tr")).to_have_count(2)


@uses("GET /groups/show", "POST /groups/change", "POST /groups/release", "GET /groups/keys")
def test_a_group_is_changed_and_a_slot_released(window: Window) -> None:
    page = window.open("/groups/show?group=gpu-memory")
    page.get_by_text("Set the limit").first.click()
    page.get_by_label("Units at once").fill("40")
    page.get_by_label("Why").first.fill("a new machine")
    page.get_by_role("button", name="Set the limit").click()
    expect(page.get_by_role("status")).to_have_text("The limit was set.")
    expect(page.locator("#about")).to_contain_text("40")
    expect(page.locator("#stands")).to_contain_text("a new machine")
    page.get_by_role("button", name="Reset the limit").click()
    expect(page.locator("#about")).to_contain_text("24")
    row = page.get_by_role("row").filter(has_text="notebook of the analyst")
    row.get_by_text("Release…").click()
    expect(row).to_contain_text("not stopped")
    row.get_by_label("Take the slot all the same").check()
    row.get_by_role("button", name="Release slot").click()
    expect(page.get_by_role("status")).to_have_text("The slot is free.")
    expect(page.locator("#slots")).not_to_contain_text("notebook of the analyst")
    page = window.open("/groups/keys?limit=tenant")
    page.get_by_label("Key has").fill("umb")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name="umbrella").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("tenant/umbrella")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_have_text("Resumed.")
    assert not window.scene.store.group("tenant/umbrella")[0].paused


@uses("GET /jobs", "GET /jobs/{id}", "POST /jobs/{id}/move", "POST /jobs/{id}/cancel",
      "POST /jobs/{id}/retry")  # fmt: skip
def test_a_job_explains_itself_and_is_handled(window: Window) -> None:
    page = window.open("/jobs")
    page.get_by_label("State").select_option("ready")
    page.get_by_label("Task").fill("charge")
    page.get_by_role("button", name="Show").click()
    page.locator("#jobs tbody a").first.click()
    expect(page.locator("#state")).to_contain_text("3 of 3 units are held by job")
    page.get_by_text("Move").first.click()
    page.get_by_label("Priority").fill("9")
    page.get_by_role("button", name="Move it").click()
    expect(page.get_by_role("status")).to_have_text("Moved.")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#state")).to_contain_text("cancelled")
    page.get_by_role("button", name="Run it again").click()
    expect(page.locator("#state")).to_contain_text("ready")
    running = window.open(f"/jobs/{window.scene.jobs['running']}")
    expect(running.locator("pre.output")).to_contain_text("step 7 of ten")
    expect(running.locator("pre").filter(has_text="tenant_id")).to_contain_text("•••")


@uses("GET /jobs/bulk", "POST /jobs/bulk", "GET /jobs/bulk/{number:int}",
      "POST /jobs/bulk/{number:int}/stop")  # fmt: skip
def test_many_jobs_are_cancelled_after_a_preview(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = window.open("/jobs?state=ready&task=charge")
    count = page.locator("#jobs tbody tr").count()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.locator(".why")).to_contain_text(f"Cancel {count} jobs?")
    page.get_by_label("Why").fill("not needed")
    page.get_by_role("button", name="Cancel them").click()
    expect(page.locator("#bulk")).to_contain_text(f"{count} done")
    expect(page.locator("#bulk")).to_contain_text("done")
    # One that takes long enough to be stopped.
    gate = threading.Event()
    store = type(window.scene.store)
    retry = store.retry

    def slow(self: Any, id: str, by: str = "") -> Any:
        gate.wait(PATIENCE)
        return retry(self, id, by)

    monkeypatch.setattr(store, "retry", slow)
    page = window.open("/jobs/bulk?state=failed&action=retry")
    page.get_by_role("button", name="Run them again").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_contain_text("Stopped")
    gate.set()
    expect(page.locator("#bulk")).to_contain_text("stopped")


@uses("GET /queues", "POST /queues/pause", "GET /workers", "GET /workers/show", "GET /schedules",
      "GET /schedules/show", "POST /schedules/pause", "POST /schedules/run",
      "GET /fairness")  # fmt: skip
def test_queues_workers_schedules_and_fairness(window: Window) -> None:
    page = window.open("/queues")
    row = page.get_by_role("row").filter(has_text="default")
    row.get_by_text("Pause…").click()
    row.get_by_label("Why").fill("a break")
    row.get_by_role("button", name="Pause default").click()
    expect(page.get_by_role("row").filter(has_text="default")).to_contain_text("paused")
    page.get_by_role("navigation").get_by_role("link", name="Workers").click()
    page.get_by_role("link", name="web-1").click()
    expect(page.locator("#runs tbody tr")).to_have_count(4)
    page.get_by_role("navigation").get_by_role("link", name="Schedules").click()
    page.get_by_role("link", name="nightly").click()
    expect(page.locator("ol.feed li")).to_have_count(5)
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("#ticks")).to_contain_text("run")
    page.get_by_text("Pause").first.click()
    page.get_by_role("button", name="Pause nightly").click()
    expect(page.get_by_role("status")).to_contain_text("Paused")
    page.get_by_role("navigation").get_by_role("link", name="Fairness").click()
    expect(page.locator("#shares tbody tr")).to_have_count(3)


@uses("GET /login", "POST /login", "POST /logout")
def test_one_logs_in_and_out(guarded_window: Window) -> None:
    page = guarded_window.open("/jobs?state=failed")
    page.get_by_label("Password or token").fill("a wrong guess of mine")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")
    page.get_by_label("Password or token").fill(OPERATOR)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(re.compile(r"/jobs\?state=failed$"))
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")


@uses(*(name for name in every_route() if name.startswith(("GET /api", "POST /api"))),
      "GET /metrics")  # fmt: skip
def test_the_api_is_there_for_scripts_of_the_same_site(window_small: Window) -> None:
    window, jobs = window_small, window_small.scene.jobs
    page = window.open("/api")
    expect(page.get_by_role("heading", level=1)).to_have_text("API")
    asked = {"limit": "tenant", "group": "gpu-memory"}
    for name in sorted(every_route()):
        method, _, path = name.partition(" ")
        if not path.startswith(("/api/", "/metrics")):
            continue
        path = path.replace("{id}", jobs["failed"])
        needs = {"/api/groups/keys": "limit", "/api/group": "group"}.get(path)
        query = f"?{needs}={asked[needs]}" if needs and method == "GET" else ""
        status = page.evaluate(
            """async ([method, path]) => {
                const body = method === "POST" ? "{}" : undefined;
                const headers = { "content-type": "application/json" };
                return (await fetch(path, { method, body, headers })).status;
            }""",
            [method, path + query],
        )
        assert status in (200, 400), name
    window.complaints = [one for one in window.complaints if "400" not in one]


# --- for everybody -----------------------------------------------------------------------------


ALIKE = ("job-succeeded", "job-hostile", "job-scheduled", "job-unrouted", "group-key", "not-found")
"""Pages whose parts are all on others too."""
COLOURS = {"runOnly": ["color-contrast"]}


def test_pages_are_accessible_and_fit(browser: Browser, small: Scene) -> None:
    """By the rules that a program can check, in both colours; and nothing is wider than the
    window, on a desk or a phone. What does not depend on colours or width is checked once."""
    axe = Axe()
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    page = context.new_page()
    faults: list[str] = []

    def note(name: str, violations: list[dict[str, Any]]) -> None:
        faults.extend(f"{name}: {one['id']}: {one['nodes'][0]['html']}" for one in violations)

    def fit(name: str, width: int) -> None:
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            faults.append(f"{name}: {wide} pixels wide, of {width}")

    with serving(create_app(small.app)) as url:
        for name, path in addresses(small).items():
            if name in ALIKE and not os.environ.get("HEADGATE_PROOF"):
                continue
            page.set_viewport_size({"width": 1280, "height": 800})
            page.emulate_media(color_scheme="light")
            page.goto(url + path, wait_until="domcontentloaded")
            for summary in page.locator("summary").all()[:1]:
                summary.click()
            note(name, axe.run(page).response["violations"])
            fit(name, 1280)
            page.emulate_media(color_scheme="dark")
            again = "async (options) => (await axe.run(document, options)).violations"
            note(f"{name}, dark", page.evaluate(again, COLOURS))
            page.set_viewport_size({"width": 390, "height": 800})
            fit(name, 390)
        context.close()
    assert not faults, "\n".join(faults)


def test_the_keyboard_is_enough(window_small: Window) -> None:
    page = window_small.open("/groups/show?group=gpu-memory")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.get_by_text("Pause").first.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("by keyboard")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Paused")
    pause = window_small.scene.store.group("gpu-memory")[0].pause
    assert pause is not None
    assert pause.reason == "by keyboard"


def test_what_is_typed_or_opened_survives_a_refresh(window_small: Window) -> None:
    page = window_small.open("/queues")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    row = page.get_by_role("row").filter(has_text="default")
    row.get_by_text("Pause…").click()
    row.get_by_label("Why").fill("half a sent")
    window_small.scene.store.pause_queue("mail", False)
    with page.expect_response(re.compile("/queues$")):
        pass
    expect(row.get_by_label("Why")).to_have_value("half a sent")

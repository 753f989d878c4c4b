"""What an enemy may try: each address with every method, odd headers, guesses sent at once, text
that turns round what stands beside it, and a store that goes away."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from headgate.errors import StoreBusy
from headgate.jobs import Failure, Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores.protocol import Exchange, Store
from headgate.web import bulk, create_app
from headgate.web.bulk import Bulks, Order
from headgate.web.guard import POLICY
from headgate.web.routes import routes
from tests.postgres import server as postgres
from tests.waiting import PATIENCE
from tests.web import scene as scenes
from tests.web.pages import addresses
from tests.web.scene import Hand, Scene
from tests.web.visit import OPERATOR, VIEWER, Visit, access, visiting

ROUND = "\u202e"
"""Turns round the text that follows it."""
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "DELETE")


def every(scene: Scene) -> Iterator[tuple[str, set[str]]]:
    """Every address of the router, filled in, with the methods that it takes."""
    for route in routes():
        if isinstance(route, Route):
            path = route.path.replace("{id}", scene.jobs["ready"]).replace("{number:int}", "1")
            yield path, set(route.methods or ())
        elif isinstance(route, Mount):
            yield f"{route.path}/style.css", {"GET", "HEAD"}


def changing(scene: Scene) -> list[str]:
    entering = ("/login", "/logout")
    return [path for path, methods in every(scene) if "POST" in methods and path not in entering]


def send(visit: Visit, path: str, csrf: str, **more: Any) -> int:
    """The change that the page or the API takes there, as far as a guard looks."""
    if path.startswith("/api"):
        return visit.post(path, json={}, **more).status_code
    return visit.post(path, data={"csrf": csrf}, **more).status_code


def test_nobody_comes_in_by_any_method_or_address(still: Scene) -> None:
    with visiting(create_app(still.app, access=access())) as visit:
        for path, _ in every(still):
            if path == "/login" or path.startswith("/static"):
                continue
            for method in METHODS:
                answer = visit.request(method, path)
                assert answer.status_code in (303, 401, 403), (method, path)
                assert "charge" not in answer.text


TRICKS = (
    "//jobs", "/jobs/", "/%2fjobs", "/login/../jobs", "/login%2f..%2fjobs", "/static/../jobs",
    "/static/..%2fjobs", "/static/..%5caccess.py", "/static/%2e%2e/access.py", "/LOGIN", "/./jobs",
    "/api%2fjobs", "/API/jobs", "/metrics/", "/stream/", "/loginx", "/static", "/jobs;/login",
    "/jobs%00/login", "/login%00/../jobs", "/jobs?/login", "/jobs#/static/",
)  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "/ops", "/login", "/static"])
def test_no_way_of_writing_an_address_leads_past_the_guard(still: Scene, prefix: str) -> None:
    site = create_app(still.app, access=access())
    whole = Starlette(routes=[Mount(prefix, site)]) if prefix else site
    with visiting(whole) as visit:
        for trick in TRICKS:
            told = said(visit, f"GET {prefix}{trick} HTTP/1.1", "Host: x")
            assert "charge" not in told, trick
            assert not re.match(r"HTTP/1.1 (200|5\d\d)", told), trick
            where = re.search(r"(?im)^location: (.*)$", told)
            assert where is None or re.match(rf"{prefix}/[^/\\]", where[1]), trick


def test_who_may_look_can_send_no_change(still: Scene) -> None:
    with visiting(create_app(still.app, access=access())) as visit:
        visit.log_in(VIEWER)
        csrf = visit.csrf("/queues")
        assert {path: send(visit, path, csrf) for path in changing(still)} == dict.fromkeys(
            changing(still), 403
        )
        bearer = {"authorization": f"Bearer {VIEWER}"}
        for path in changing(still):
            assert visit.post(path, json={}, headers=bearer).status_code == 403, path


def test_a_read_only_dashboard_takes_no_change(still: Scene) -> None:
    with visiting(create_app(still.app, access=access(), read_only=True)) as visit:
        bearer = {"authorization": f"Bearer {OPERATOR}"}
        for path in changing(still):
            assert visit.post(path, json={}, headers=bearer).status_code == 403, path
    with visiting(create_app(still.app, read_only=True)) as visit:
        for page in addresses(still).values():
            forms = re.findall(r'method="post" action="([^"]*)"', visit.get(page).text)
            assert set(forms) <= {"/logout"}, page


def test_no_change_is_taken_from_another_site_or_without_its_token(
    visit_still: Visit, still: Scene
) -> None:
    others: tuple[dict[str, str], ...] = (
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://["},
        {"origin": ""},
    )
    csrf = visit_still.csrf("/queues")
    for path in [*changing(still), "/login", "/logout"]:
        assert visit_still.post(path, data={}).status_code in (403, 415), path
        for headers in others:
            assert send(visit_still, path, csrf, headers=headers) == 403, (path, headers)


def said(visit: Visit, *lines: str) -> str:
    """The answer to a request that no client would send."""
    with socket.create_connection((visit.base_url.host, visit.base_url.port or 80), 10) as wire:
        wire.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1"))
        found = b""
        while part := wire.recv(65536):
            found += part
    return found.decode("latin-1")


@pytest.mark.parametrize(
    "header",
    [
        "Host: [", "Host: x\r\nOrigin: http://[", "Host: a b", "Host: ",
        "Host: x\r\nCookie: headgate_session=x.\xe9", "Host: x\r\nCookie: headgate_session=\xe9.x",
        "Host: x\r\nCookie: headgate_seed=" + "\xe9" * 43,
        "Host: x\r\nAuthorization: Basic \xe9", "Host: x\r\nAuthorization: Bearer \xe9",
    ],
)  # fmt: skip
def test_headers_that_no_browser_sends_break_nothing(still: Scene, header: str) -> None:
    with visiting(create_app(still.app, access=access())) as visit:
        for line in ("GET /jobs", "POST /queues/pause", "GET /login", "POST /login"):
            told = said(visit, f"{line} HTTP/1.1", header)
            assert not told.startswith("HTTP/1.1 5"), line


def test_guesses_that_are_sent_at_once_are_counted(
    still: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = access()
    looked: list[str] = []
    by_token = allowed.by_token

    def counted(given: str) -> Any:
        looked.append(given)
        return by_token(given)

    monkeypatch.setattr(allowed, "by_token", counted)
    with visiting(create_app(still.app, access=allowed)) as visit, ThreadPoolExecutor(16) as many:
        csrf = visit.csrf("/login")
        guesses = [{"csrf": csrf, "password": f"guess {n}"} for n in range(32)]
        codes = [a.status_code for a in many.map(lambda g: visit.post("/login", data=g), guesses)]
    assert len(looked) == 8
    assert sorted(codes) == [403] * 8 + [429] * 24


def test_those_who_know_the_way_are_not_slowed_down(still: Scene) -> None:
    with visiting(create_app(still.app, access=access())) as visit:
        headers = {"authorization": f"Bearer {VIEWER}"}
        assert {visit.get("/api", headers=headers).status_code for _ in range(20)} == {200}


def test_the_way_in_does_not_tell_which_store_it_is(still: Scene) -> None:
    with visiting(create_app(still.app, access=access())) as visit:
        for path in ("/login", "/static/nowhere"):
            assert "sqlite" not in visit.get(path).text
        visit.log_in(VIEWER)
        assert "sqlite" in visit.get("/queues").text


def test_a_slash_too_many_leads_to_the_page_whatever_the_host_says(visit_still: Visit) -> None:
    answer = visit_still.get("/groups/?q=a%26b", headers={"host": "localhost:99"})
    assert (answer.status_code, answer.headers["location"]) == (307, "/groups?q=a%26b")
    told = said(visit_still, "GET //evil.example/ HTTP/1.1", "Host: localhost")
    assert "location: /evil.example\r\n" in told


# --- text -------------------------------------------------------------------------------------


def test_text_of_others_cannot_turn_round_or_hide(visit: Visit, scene: Scene) -> None:
    """Names of workers, keys, errors, reasons and output: nothing but what is printable, on any
    page; and what a form sends back is still the name that it was shown for."""
    odd = f"{ROUND}txt.exe\x1b[2J"
    key = f"k{ROUND}ey"
    hand = Hand(scene.app, f"w{odd}")
    scene.store.submit(
        [NewJob("letter", queue="q", args="{}", needs=Needs((Need("tenant", key),)))]
    )
    (job,) = (one for one in hand.claim(12) if one.queue == "q")
    error = Failure(f"E{odd}", odd, f"a\tb {odd}")
    scene.store.exchange(Exchange(hand.id, [Finish(job.token, "failed", error=error)]))
    group = f"tenant/{key}"
    scene.app.concurrency.pause(group, reason=odd, by=odd)
    paths = [*addresses(scene).values(), f"/jobs/{job.job}", f"/groups/show?group={group}",
             f"/workers/show?id={hand.id}", f"/events?subject={group}", f"/jobs?group={group}",
             f"/groups?q={ROUND}", f"/events?subject={ROUND}", f"/jobs?text={ROUND}"]  # fmt: skip
    for path in paths:
        page = visit.get(path).text
        assert "\x1b" not in page, path
        assert ROUND not in re.sub(r'<input [^>]*value="[^"]*"', "", page), path
    page = f"/groups/show?group={group}"
    field = re.search(r'name="group" value="([^"]*)"', visit.get(page).text)
    assert field
    assert field[1] == group
    assert visit.form(page, "/groups/change", group=field[1], action="resume").status_code == 303
    assert not scene.store.group(group)[0].paused
    assert "a\tb" in visit.get(f"/jobs/{job.job}").text, "tabs stay"
    scene.store.unregister(hand.id)


def test_passwords_in_addresses_are_not_shown(visit_small: Visit, small: Scene) -> None:
    url = "postgresql://app:hunter2@db/app"
    args = f'{{"to": "{url}", "headers": {{"X-Api-Key": "hunter2", "cookie": "hunter2"}}}}'
    small.store.submit([NewJob("letter", queue="q", args=args)])
    hand = Hand(small.app, "other")
    (job,) = (one for one in hand.claim(12) if one.queue == "q")
    error = Failure("Refused", f"no connection to {url}", f"connect({url!r})")
    finish = Finish(job.token, "failed", error=error)
    small.store.exchange(Exchange(hand.id, [finish]))
    for path in (
        f"/jobs/{job.job}",
        f"/api/jobs/{job.job}",
        "/api/jobs?state=failed",
        f"/api/jobs/{job.job}/why",
    ):
        page = visit_small.get(path).text
        assert "hunter2" not in page, path
        assert "@db/app" in page, path
    small.store.unregister(hand.id)


# --- what breaks --------------------------------------------------------------------------------


def test_a_failure_tells_no_more_than_that(still: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *args: Any, **more: Any) -> Any:
        raise RuntimeError("hunter2")

    monkeypatch.setattr(type(still.store), "past_events", broken)
    with visiting(create_app(still.app)) as visit:
        page, api = (
            visit.get(path, headers={"connection": "close"}) for path in ("/events", "/api/events")
        )
    for answer in (page, api):
        assert answer.status_code == 500
        assert "hunter2" not in answer.text
        assert "Traceback" not in answer.text
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "log" in api.json()["error"]


def test_a_store_that_is_away_is_told_of_in_words() -> None:
    """While a page is open; and all goes on when it is back."""
    server = postgres.shared()
    with server.database() as url:
        name = urlsplit(url).path.strip("/")
        scene = scenes.make(url)
        with visiting(create_app(scene.app)) as visit:
            paths = {**addresses(scene), "metrics": "/metrics", "api-jobs": "/api/jobs"}
            del paths["not-found"], paths["api"]  # which need no store
            server.run(
                f"ALTER DATABASE {name} ALLOW_CONNECTIONS false",
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
            )
            for path in paths.values():
                answer = visit.get(path)
                assert answer.status_code == 503, (path, answer.text)
                if path.startswith("/api"):
                    assert name in answer.json()["error"]
                else:
                    assert 'role="alert"' in answer.text
                assert "Traceback" not in answer.text
                assert 'File "' not in answer.text
            server.run(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
            again = {path: visit.get(path).status_code for path in paths.values()}
            assert again == dict.fromkeys(paths.values(), 200)
        scene.close()


def test_only_some_orders_are_under_way_at_once(small: Scene) -> None:
    gate = bulk.threading.Event()
    order = Order("retry", bulk.JobFilter(task="charge"), "operator")

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(small.store, name)

        def browse(self, *args: Any) -> Any:
            assert gate.wait(PATIENCE)
            return small.store.browse(*args)

    slow: Any = Slow()
    store: Store = slow
    bulks = Bulks(lambda: store)
    for _ in range(bulk.AT_ONCE):
        bulks.start(order)
    with pytest.raises(StoreBusy):
        bulks.start(order)
    gate.set()
    bulks.close()
    for _ in range(bulk.KEPT + 1):
        last = bulks.start(order)
        for thread in bulks._threads:  # pyright: ignore[reportPrivateUsage]
            thread.join(PATIENCE)
    assert bulks.get(1) is None
    assert bulks.get(last.id) is last

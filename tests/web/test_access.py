"""Nobody comes in who should not, and nothing is changed that nobody wanted changed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result
from starlette.applications import Starlette
from starlette.routing import Mount

from headgate.cli import root
from headgate.errors import ConfigError
from headgate.web import Access, User, create_app
from headgate.web.access import SESSION, Throttle
from headgate.web.guard import MAX_BODY, POLICY
from tests.waiting import PATIENCE
from tests.web.scene import Scene
from tests.web.visit import OPERATOR, VIEWER, Visit, access, from_afar, spoken, visiting

PAGES = (
    "/",
    "/groups",
    "/jobs",
    "/events",
    "/metrics",
    "/api/jobs",
    "/stream",
    "/api/openapi.json",
)


def test_without_credentials_only_this_machine_is_let_in(still: Scene) -> None:
    with visiting(from_afar(create_app(still.app))) as visit:
        assert {visit.get(page).status_code for page in PAGES} == {403}
        assert visit.post("/queues/pause").status_code == 403
    with visiting(from_afar(create_app(still.app, everywhere=True))) as visit:
        assert visit.get("/groups").status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", ""]
)
def test_a_name_that_was_made_to_lead_here_is_refused(visit_still: Visit, host: str) -> None:
    """A page of another site may have its own name resolve to this machine."""
    assert visit_still.get("/", headers={"host": host}).status_code in (400, 403)


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8765", "LOCALHOST"])
def test_names_of_this_machine_are_fine(visit_still: Visit, host: str) -> None:
    assert visit_still.get("/queues", headers={"host": host}).status_code == 200


def test_pages_ask_who_one_is_and_the_api_refuses(still: Scene) -> None:
    with visiting(from_afar(create_app(still.app, access=access()))) as visit:
        for page in ("/", "/groups", "/jobs?state=ready"):
            answer = visit.get(page)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/login?next=%2F")
        for page in ("/api/jobs", "/metrics", "/stream"):
            assert visit.get(page).status_code == 401
        assert visit.get("/login").status_code == 200
        assert visit.get("/static/style.css").status_code == 200


def test_a_token_and_a_user_may_log_in(still: Scene) -> None:
    with visiting(create_app(still.app, access=access())) as visit:
        answer = visit.log_in(OPERATOR)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = next(c for c in answer.headers.get_list("set-cookie") if "session" in c)
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert visit.get("/groups").status_code == 200
        assert visit.form("/queues", "/logout").headers["location"] == "/login"
        assert visit.get("/groups").status_code == 303
        assert visit.log_in("correct horse", "operator").status_code == 303
        assert '<span class="name">operator<' in visit.get("/groups").text


@pytest.mark.parametrize("next", ["//evil.example", "https://evil.example", "/\\evil.example", "x"])
def test_logging_in_leads_nowhere_else(still: Scene, next: str) -> None:
    with visiting(create_app(still.app, access=access())) as visit:
        answer = visit.form("/login", "/login", password=OPERATOR, next=next)
        assert answer.headers["location"] == "/"
        assert visit.form("/jobs", "/logout").status_code == 303
        answer = visit.form("/login", "/login", password=OPERATOR, next="/jobs?state=failed")
        assert answer.headers["location"] == "/jobs?state=failed"


def test_headers_carry_tokens_and_users(still: Scene) -> None:
    with visiting(create_app(still.app, access=access())) as visit:
        bearer = {"authorization": f"Bearer {VIEWER}"}
        assert visit.get("/api/jobs", headers=bearer).status_code == 200
        assert visit.get("/metrics", auth=("viewer", "only looking")).status_code == 200
        assert visit.get("/metrics", auth=("prometheus", VIEWER)).status_code == 200
        for wrong in ("Bearer x", "Basic x", "Basic ////", "Digest a", "Bearer", ""):
            answer = visit.get("/api/jobs", headers={"authorization": wrong})
            assert answer.status_code == 401


def test_guessing_is_slowed_down(still: Scene) -> None:
    with visiting(create_app(still.app, access=access())) as visit:
        csrf = visit.csrf("/login")
        codes = [
            visit.post("/login", data={"csrf": csrf, "password": f"guess {n}"}).status_code
            for n in range(10)
        ]
        assert codes[:8] == [403] * 8
        assert codes[8:] == [429, 429]
        answer = visit.post("/login", data={"csrf": csrf, "password": OPERATOR})
        assert answer.status_code == 429, "the right one is not looked at either"
        assert int(answer.headers["retry-after"]) <= 61
        headers = {"authorization": f"Bearer {OPERATOR}"}
        assert visit.get("/api/jobs", headers=headers).status_code == 429


def test_who_may_look_changes_nothing(still: Scene) -> None:
    with visiting(create_app(still.app, access=access())) as visit:
        visit.log_in(VIEWER)
        page = visit.get("/queues").text
        assert "Pause" not in page
        assert "view only" in page
        csrf = visit.csrf("/queues")
        answer = visit.post("/queues/pause", data={"csrf": csrf, "queue": "q", "action": "pause"})
        assert answer.status_code == 403
        answer = visit.post("/api/queues/pause", json={"queue": "q", "paused": True})
        assert answer.status_code == 403
    assert "q" not in {queue.name for queue in still.store.queues()}


def test_read_only_means_everybody(still: Scene) -> None:
    with visiting(create_app(still.app, read_only=True)) as visit:
        assert "read-only" in visit.get("/").text
        assert visit.post("/queues/pause", data={"queue": "q"}).status_code == 403
        headers = {"content-type": "application/json"}
        assert visit.post("/api/queues/pause", content="{}", headers=headers).status_code == 403


def test_a_form_without_its_token_changes_nothing(visit_still: Visit, still: Scene) -> None:
    good = visit_still.csrf("/queues")
    for csrf in ("", "0" * 64, good[:-1] + ("0" if good[-1] != "0" else "1")):
        answer = visit_still.post(
            "/queues/pause", data={"csrf": csrf, "queue": "q", "action": "pause"}
        )
        assert answer.status_code == 403
    with visiting(create_app(still.app)) as other:
        other.csrf("/queues")
        answer = other.post("/queues/pause", data={"csrf": good, "queue": "q", "action": "pause"})
        assert answer.status_code == 403, "the token of one browser is no good in another"
    assert "q" not in {queue.name for queue in still.store.queues()}


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_what_comes_from_another_site_is_refused(
    visit_still: Visit, headers: dict[str, str]
) -> None:
    fields = {"csrf": visit_still.csrf("/queues"), "queue": "q", "action": "pause"}
    assert visit_still.post("/queues/pause", data=fields, headers=headers).status_code == 403
    answer = visit_still.post(
        "/api/queues/pause", json={"queue": "q", "paused": True}, headers=headers
    )
    assert answer.status_code == 403


def test_a_form_cannot_reach_the_api(visit_still: Visit) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = visit_still.post(
            "/api/queues/pause", content=b'{"queue": "q", "paused": true}',
            headers={"content-type": kind},
        )  # fmt: skip
        assert answer.status_code == 415


def test_bodies_are_bounded(visit_still: Visit) -> None:
    big = {"csrf": "x", "queue": "q" * (MAX_BODY + 1)}
    assert visit_still.post("/queues/pause", data=big).status_code == 413
    many = "&".join(f"f{n}=1" for n in range(1000))
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert visit_still.post("/queues/pause", content=many, headers=kind).status_code == 400
    assert visit_still.post("/queues/pause", content=b"a=%ff", headers=kind).status_code == 400


def test_every_answer_says_what_browsers_may_do(visit_still: Visit) -> None:
    for page in ("/", "/nowhere", "/api/jobs", "/static/live.js", "/groups/show?group=nobody"):
        headers = visit_still.get(page).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    assert visit_still.get("/jobs").headers["cache-control"] == "no-store"
    assert "unsafe" not in POLICY


def test_no_page_has_scripts_or_styles_of_its_own(visit_still: Visit) -> None:
    for page in ("/", "/groups", "/groups/show?group=gpu-memory", "/jobs", "/fairness", "/workers"):
        text = visit_still.get(page).text
        assert re.findall(r"<script(?! src=)", text) == []
        assert re.findall(r"<style|\sstyle=|\son\w+=", text) == []
        assert re.findall(r'(?:src|href|action)="(?!/|#)', text) == []


def test_sessions_cannot_be_made_up(still: Scene) -> None:
    with visiting(create_app(still.app, access=access())) as visit:
        visit.log_in(VIEWER)
        session = visit.cookies["headgate_session"]
        text, _, signature = session.partition(".")
        other = Access({"another-token-0123456789": "operate"})
        for made in ("", ".", "x.y", f"{text}.", f"{text}x.{signature}", f"{text}.{'0' * 64}"):
            assert access().by_session(made) is None
        assert other.by_session(session) is None
        again = access().by_session(session)
        assert again is not None, "another process with the same credentials knows it"
        assert again.role == "view"


def test_logging_out_ends_the_session_and_every_copy_of_it(still: Scene) -> None:
    with visiting(create_app(still.app, access=access())) as visit:
        visit.log_in(OPERATOR)
        mine, copied = visit.cookies["headgate_session"], dict(visit.cookies)
        visit.cookies.clear()
        visit.log_in(OPERATOR)
        other = dict(visit.cookies)
        assert visit.cookies["headgate_session"] != mine, "each session is its own"
        visit.cookies.clear()
        visit.cookies.update(copied)
        assert visit.form("/queues", "/logout").status_code == 303
        for cookies, code in ((copied, 303), (other, 200)):
            visit.cookies.clear()
            visit.cookies.update(cookies)
            assert visit.get("/groups").status_code == code
        visit.cookies.clear()
        visit.cookies.update(copied)
        assert visit.get("/api/jobs").status_code == 401
        assert visit.get("/stream").status_code == 401


def test_only_what_was_ended_is_remembered_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = access()
    visitor = made.by_token(OPERATOR)
    assert visitor is not None
    for text in ("", "x.y", "ü"):
        made.end_session(text)
    assert not made._ended
    made.end_session(made.open_session(visitor))
    assert len(made._ended) == 1
    later = time.time() + SESSION + 1
    monkeypatch.setattr("headgate.web.access.time.time", lambda: later)
    last = made.open_session(visitor)
    made.end_session(last)
    assert len(made._ended) == 1, "the first has run out"
    assert made.by_session(last) is None


def test_cookies_are_for_https_where_it_is_spoken(still: Scene) -> None:
    for scheme in ("http", "https"):
        site = create_app(still.app, access=access())
        with visiting(spoken(site, scheme)) as visit:
            answer = visit.get("/login")
            found = re.search(r'name="csrf" value="([0-9a-f]+)"', answer.text)
            assert found
            seed = answer.headers["set-cookie"]
            # The client speaks plain http: it would not send back what is for https.
            headers = {"cookie": seed.partition(";")[0]}
            form = {"csrf": found[1], "password": OPERATOR}
            entered = visit.post("/login", data=form, headers=headers)
            session = entered.headers["set-cookie"]
            assert entered.status_code == 303
            assert ["; Secure" in cookie for cookie in (seed, session)] == [scheme == "https"] * 2


def test_mounted_under_a_prefix_all_links_stay_inside(small: Scene) -> None:
    inner = create_app(small.app, access=access())
    outer = Starlette(routes=[Mount("/ops/jobs", inner)])
    with visiting(outer, "/ops/jobs") as visit:
        answer = visit.get("/groups")
        assert answer.headers["location"] == "/ops/jobs/login?next=%2Fgroups"
        answer = visit.log_in(OPERATOR)
        assert answer.headers["location"] == "/ops/jobs/"
        assert any("Path=/ops/jobs;" in c for c in answer.headers.get_list("set-cookie"))
        for page in ("/", "/groups", "/jobs", "/queues", "/events"):
            text = visit.get(page).text
            assert re.findall(r'(?:src|href|action)="(?!/ops/jobs|#)', text) == []
        answer = visit.form("/queues", "/queues/pause", queue="mail", action="resume")
        assert answer.headers["location"] == "/ops/jobs/queues?done=resume"
        assert visit.get("/static/style.css").status_code == 200


@pytest.mark.parametrize(
    ("tokens", "users"),
    [
        ({"short": "view"}, {}),
        ({"ünicode-token-0123456789": "view"}, {}),
        ({OPERATOR: "admin"}, {}),
        ({}, {"operator": User("short")}),
        ({}, {"a:b": User("long enough")}),
    ],
)
def test_weak_credentials_are_refused(tokens: dict[str, str], users: dict[str, User]) -> None:
    with pytest.raises(ConfigError):
        Access(tokens, users)  # type: ignore[arg-type]


# --- the command -------------------------------------------------------------------------------


def command(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["dashboard", *arguments], prog_name="headgate")


def test_it_does_not_start_elsewhere_without_credentials(tmp_path: Path, still: Scene) -> None:
    url = ("--url", still.app.url)
    for bind in ("0.0.0.0:0", "[::]:0", "192.0.2.1:8765", "example.org:80"):
        done = command(*url, "--bind", bind)
        assert done.exit_code == 2
        assert "--token" in done.stderr
    for bind in ("nonsense", "127.0.0.1", "127.0.0.1:99999", ":80"):
        assert command(*url, "--bind", bind).exit_code == 2
    users = tmp_path / "users"
    users.write_text("operator:operate:correct horse\n")
    users.chmod(0o644)
    done = command(*url, "--users", str(users))
    assert done.exit_code == 2
    assert "chmod 600" in done.stderr
    users.chmod(0o600)
    users.write_text("operator:boss:correct horse\n")
    assert "line 1" in command(*url, "--users", str(users)).stderr
    assert "no store" in command("--url", f"sqlite:///{tmp_path}/none.db").stderr
    for proxy in ("*", "0.0.0.0/0", "::/0", "proxy.example", "10.0.0.1/8", ""):
        done = command(*url, "--forwarded", proxy)
        assert done.exit_code == 2
        assert "--forwarded" in done.stderr


@contextmanager
def running(scene: Scene, *arguments: str) -> Generator[str]:
    """`headgate dashboard` as a process, by its address."""
    words = [sys.executable, "-m", "headgate", "dashboard", "--url", scene.app.url, *arguments]
    env = {"HEADGATE_DASHBOARD_TOKEN": OPERATOR}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().replace("0.0.0.0", "127.0.0.1")
        finally:
            process.terminate()
            assert process.wait(PATIENCE) in (0, -15)


def test_it_serves_until_it_is_told_to_stop(still: Scene) -> None:
    with running(still, "--bind", "0.0.0.0:0") as url:
        by_https = {"x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.9"}
        assert httpx.get(f"{url}groups").status_code == 303
        assert "Secure" not in httpx.get(f"{url}login", headers=by_https).headers["set-cookie"]
        headers = {"authorization": f"Bearer {OPERATOR}"}
        assert "gpu-memory" in httpx.get(f"{url}groups", headers=headers).text


def test_a_proxy_is_believed_where_it_is_named(still: Scene) -> None:
    with running(still, "--bind", "127.0.0.1:0", "--forwarded", "127.0.0.1") as url:
        told = {"x-forwarded-proto": "https", "x-forwarded-for": "198.51.100.7, 203.0.113.9"}
        assert "; Secure" in httpx.get(f"{url}login", headers=told).headers["set-cookie"]
        assert "; Secure" not in httpx.get(f"{url}login").headers["set-cookie"]
        # Guesses are counted by who sent them, as the last proxy saw it.
        wrong = {"authorization": "Bearer no", **told}
        for _ in range(Throttle.FAILURES):
            assert httpx.get(f"{url}api/jobs", headers=wrong).status_code == 401
        assert httpx.get(f"{url}api/jobs", headers=wrong).status_code == 429
        others = {**wrong, "x-forwarded-for": "203.0.113.9, 198.51.100.7"}
        assert httpx.get(f"{url}api/jobs", headers=others).status_code == 401
    with running(still, "--bind", "127.0.0.1:0", "--forwarded", "192.0.2.0/24") as url:
        answer = httpx.get(f"{url}login", headers={"x-forwarded-proto": "https"})
        assert "Secure" not in answer.headers["set-cookie"], "that was no proxy of ours"

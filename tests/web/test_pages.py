"""Every page shows what is there and changes what it says it does, on every store, whatever
anybody has put into names, arguments and reasons."""

from __future__ import annotations

import html
import itertools
import re
import threading
import time

import pytest

from headgate.jobs import JobFilter, NewJob
from headgate.limits import Need, Needs
from headgate.stores.protocol import LimitLoad, Schedules, ScheduleSpec, Store
from headgate.web import create_app
from headgate.web.charts import Series, bars, gauge, lines
from headgate.web.pages.fairness import shares
from headgate.web.sampler import Sampler
from headgate.web.survey import Survey
from tests.waiting import PATIENCE, wait_until
from tests.web.pages import addresses
from tests.web.scene import HOSTILE, Scene, charge
from tests.web.visit import Visit, visiting

AMOUNT = re.compile(r"(?<![\w-])1250(?![\w-])")
"""Not where it is a part of an id."""


def text_of(page: str) -> str:
    """What a reader sees."""
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def test_every_page_opens_without_scripts(visit: Visit, scene: Scene) -> None:
    for name, path in addresses(scene).items():
        answer = visit.get(path)
        assert answer.status_code == (404 if name == "not-found" else 200), (name, answer.text)
        assert "<h1" in answer.text
        assert "</html>" in answer.text


def test_what_people_put_into_their_jobs_stays_text(visit: Visit, scene: Scene) -> None:
    name = '"><img src=x onerror=alert(1)>'
    scene.store.submit([NewJob(name[:100], queue="q<b>", args="{}")])
    spec = ScheduleSpec(f"s{name}", "0 0 * * *", job='{"task": "letter"}')
    scene.store.declare_schedules(Schedules("other", schedules=(spec,)))
    scene.app.concurrency.set(f"tenant/{name}", 3, reason=HOSTILE, by=HOSTILE)
    scene.store.pause_queue("q<b>", True, by=HOSTILE, reason=HOSTILE)
    paths = [
        *addresses(scene).values(), f"/groups?q={name}", f"/jobs?text={HOSTILE}",
        f"/events?subject={name}", f"/jobs?task={name}", f"/groups/show?group=tenant/{name}",
        f"/groups/keys?limit=tenant&q={name}", f"/jobs/{name}", f"/fairness?task={name}",
    ]  # fmt: skip
    for path in paths:
        page = visit.get(path).text
        assert "<img src=x" not in page, path
        assert "<script>alert" not in page, path
        assert "q<b>" not in page, path
        assert "960391" not in page, path
    page = visit.get(f"/jobs/{scene.jobs['hostile']}").text
    assert "<script>alert('x')</script>" in text_of(page)
    assert "\u202e" not in page, "what turns text round is shown by its number"


ODD = (
    "/jobs?state=nonsense",
    "/jobs?since=tomorrowish",
    "/jobs?group=%00",
    "/jobs?after=x",
    "/jobs?state=failed&after=nan_1",
    "/jobs?until=1e999",
    "/jobs?since=-5",
    "/jobs?text=%00",
    "/groups?offset=1e9",
    "/groups/keys",
    "/groups/keys?limit=a/b",
    "/groups/show",
    "/groups/show?group=%00x",
    "/groups/show?group=" + "x" * 500,
    "/events?before=x",
    "/events?kind=%ff%fe",
    "/jobs/bulk?action=explode&state=ready",
    "/jobs/bulk?action=cancel",
    "/jobs/bulk?action=retry&state=running",
    "/workers/show",
    "/workers/show?id=nobody",
    "/schedules/show?name=nobody",
    "/jobs/bulk/77",
    "/jobs/" + "0" * 36,
    "/jobs/é",
    "/jobs/bulk?action=priority&value=x&state=ready",
    "/jobs?queue=" + "q" * 3000,
    "/groups?others=%ff",
    "/jobs/..%2f..%2fetc",
    "/static/..%2f__init__.py",
)


def test_addresses_that_nobody_should_type_are_refused_in_words(visit: Visit) -> None:
    for path in ODD:
        answer = visit.get(path)
        assert answer.status_code in (200, 400, 404), (path, answer.text)
        assert "Traceback" not in answer.text


def test_secrets_are_not_shown(scene: Scene) -> None:
    ready = scene.jobs["ready"]
    with visiting(create_app(scene.app, redact={"charge": ["amount"]})) as visit:
        for path in (f"/jobs/{ready}", f"/api/jobs/{ready}", "/api/jobs?task=charge"):
            page = visit.get(path).text
            assert "sk_live" not in page
            assert not AMOUNT.search(page)
            assert "acme" in page or "umbrella" in page or "globex" in page
    if scene.app.url.startswith("postgres"):
        with visiting(create_app(scene.app)) as visit:
            assert "password" not in visit.get("/").text


# --- groups ------------------------------------------------------------------------------------


def test_a_limit_is_set_and_reset_with_a_reason(visit: Visit, scene: Scene) -> None:
    page = "/groups/show?group=payments-api"
    fields = {"group": "payments-api", "value": "9", "reason": "more room", "lasts": "2h"}
    answer = visit.form(page, "/groups/change", action="set", **fields)
    assert answer.headers["location"] == "/groups/show?group=payments-api&done=set"
    record = scene.store.group("payments-api")[0]
    assert record.value == 9
    assert record.override is not None
    assert record.override.by == "local (dashboard)"
    assert record.override.until == pytest.approx(time.time() + 7200, abs=60)
    shown = text_of(visit.get(answer.headers["location"]).text)
    assert "more room" in shown
    assert "The limit was set." in shown
    visit.form(page, "/groups/change", action="reset", group="payments-api")
    assert scene.store.group("payments-api")[0].value == 3


SENSELESS: tuple[dict[str, str], ...] = (
    {"value": "-1", "reason": "x"},
    {"value": "many", "reason": "x"},
    {"value": "5"},
    {"value": "5", "reason": "  "},
    {"value": "5", "reason": "x", "lasts": "soon"},
    {"value": "", "reason": "x"},
    {"value": "9" * 30, "reason": "x"},
    {"value": "5", "reason": "a\0b"},
    {"value": "5", "reason": "x" * 3000},
    {"value": "5", "reason": "x", "group": "a\nb"},
    {"action": "explode"},
)


def test_changes_that_make_no_sense_are_refused(visit_still: Visit, still: Scene) -> None:
    page = "/groups/show?group=payments-api"
    for odd in SENSELESS:
        fields = {"group": "payments-api", "action": "set", **odd}
        answer = visit_still.form(page, "/groups/change", **fields)
        assert answer.status_code == 400, (odd, answer.text)
        assert 'role="alert"' in answer.text
    assert still.store.group("payments-api")[0].value == 3


def test_groups_are_paused_and_weighed(visit: Visit, scene: Scene) -> None:
    page = "/groups/show?group=tenant/globex"

    def change(**fields: str) -> None:
        answer = visit.form(page, "/groups/change", group="tenant/globex", **fields)
        assert answer.status_code == 303, answer.text

    change(action="pause", reason="not now", lasts="30m")
    assert scene.store.group("tenant/globex")[0].paused
    change(action="resume")
    assert not scene.store.group("tenant/globex")[0].paused
    change(action="weight", value="3", reason="their contract")
    assert [w.weight.value for w in scene.store.words() if w.weight] == [3]
    change(action="reset-weight", reason="it ended")
    assert [w for w in scene.store.words() if w.weight] == []


def test_a_slot_is_released_only_from_the_holder_that_was_seen(visit: Visit, scene: Scene) -> None:
    page = "/groups/show?group=gpu-memory"
    slot = next(slot for slot in scene.store.group("gpu-memory")[1] if not slot.job)
    fields = {"group": "gpu-memory", "slot": str(slot.slot)}
    answer = visit.form(page, "/groups/release", token=str(slot.token), **fields)
    assert answer.status_code == 400
    assert "may still run" in answer.text
    answer = visit.form(page, "/groups/release", token=str(slot.token + 1), sure="yes", **fields)
    assert answer.status_code == 404, "somebody else's token"
    answer = visit.form(page, "/groups/release", token=str(slot.token), sure="yes", **fields)
    assert answer.status_code == 303
    assert all(held.job for held in scene.store.group("gpu-memory")[1])
    assert scene.store.past_events("slot_released")[0].subject == "gpu-memory"


def test_keys_are_sorted_and_searched(visit: Visit, scene: Scene) -> None:
    scene.store.submit([charge(key) for key in ("zeta", "zeta", "zeta", "alpha", "beta-1")])

    def keys(**params: str) -> list[str]:
        page = visit.get("/groups/keys", params={"limit": "tenant", **params}).text
        return re.findall(r'data-label="Key"><a[^>]*>([^<]+)<', page)

    assert keys(sort="waiting")[0] == "zeta"
    assert keys(sort="key") == sorted(keys(sort="key"))
    assert keys(q="beta") == ["beta-1"]
    assert keys(q="nobody") == []
    assert {"acme", "umbrella"} <= set(keys(sort="held")[:4])


def test_a_survey_sees_all_keys_in_steps(scene: Scene) -> None:
    jobs = [
        NewJob("charge", needs=Needs((Need("tenant", f"key-{n:04}"),)), turn=f"key-{n:04}",
               fair_limit="tenant")
        for n in range(950)
    ]  # fmt: skip
    scene.store.submit(jobs)
    survey = Survey(lambda: scene.store, "tenant")
    wait_until(lambda: survey.page("key", "key-", 0, 50).complete)
    page = survey.page("key", "key-", 0, 50)
    assert page.found == 950
    assert [load.key for load in page.keys] == [f"key-{n:04}" for n in range(50)]
    assert survey.page("key", "key-", 940, 50).keys[-1].key == "key-0949"
    survey.close()


# --- jobs ---------------------------------------------------------------------------------------


def test_a_job_is_cancelled_moved_and_run_again(visit: Visit, scene: Scene) -> None:
    ready, failed = scene.jobs["ready"], scene.jobs["failed"]
    page = f"/jobs/{ready}"
    answer = visit.form(page, f"{page}/move", queue="slow", priority="7")
    assert answer.status_code == 303
    moved = scene.store.job(ready)
    assert moved is not None
    assert (moved.queue, moved.priority) == ("slow", 7)
    assert visit.form(page, f"{page}/move", priority="x").status_code == 400
    visit.form(page, f"{page}/cancel", reason="not needed")
    cancelled = scene.store.job(ready)
    assert cancelled is not None
    assert (cancelled.state, cancelled.reason) == ("cancelled", "not needed")
    assert visit.form(f"/jobs/{failed}", f"/jobs/{failed}/retry").status_code == 303
    assert scene.store.past_events("job_retried")[0].subject == failed
    nobody = "0" * 8 + ready[8:]
    assert visit.form("/jobs/" + ready, f"/jobs/{nobody}/cancel").status_code == 404


def test_the_page_of_a_job_says_why_it_waits_and_what_it_wrote(visit: Visit, scene: Scene) -> None:
    waits = text_of(visit.get(f"/jobs/{scene.jobs['ready']}").text)
    assert "payments-api: 3 of 3 units are held by job" in waits
    runs = text_of(visit.get(f"/jobs/{scene.jobs['running']}").text)
    assert "40 %" in runs
    assert "step 7 of ten" in runs
    failed = text_of(visit.get(f"/jobs/{scene.jobs['failed']}").text)
    assert "PaymentError" in failed
    assert "attempt 1: " in failed


def test_jobs_are_filtered(visit: Visit, scene: Scene) -> None:
    def found(**params: str) -> int:
        return visit.get("/jobs", params=params).text.count('data-label="Job"')

    assert found() == scene.store.count(JobFilter())
    assert found(state="failed") == scene.store.count(JobFilter(states=frozenset(("failed",))))
    assert found(queue="mail") == 7
    assert found(group="tenant/globex") == scene.store.count(JobFilter(group="tenant/globex"))
    assert found(text="harbour") == 1
    assert found(since="1h") == found()
    assert found(until="1h") == 0
    assert found(task="charge", state="scheduled") == 1


def wait_for_bulk(visit: Visit, path: str) -> str:
    wait_until(lambda: 'data-state="running"' not in visit.get(path).text)
    return text_of(visit.get(path).text)


@pytest.mark.parametrize(
    ("action", "value", "filter"),
    [
        ("cancel", "", {"task": "charge"}),
        ("retry", "", {"state": "failed"}),
        ("priority", "5", {"task": "charge", "state": "ready"}),
        ("queue", "slow", {"task": "charge"}),
    ],
)
def test_many_jobs_are_changed_after_a_preview(
    visit: Visit, scene: Scene, action: str, value: str, filter: dict[str, str]
) -> None:
    cells = {**filter, "action": action, **({"value": value} if value else {})}
    if value:
        asked = visit.get("/jobs/bulk", params={**filter, "action": action}).text
        assert 'name="value" required' in asked
    preview = visit.get("/jobs/bulk", params=cells)
    count = re.search(r"<strong>(\d+)</strong> jobs?", preview.text)
    assert count, preview.text
    found = re.search(r'name="csrf" value="(\w+)"', preview.text)
    assert found
    answer = visit.post("/jobs/bulk", data={"csrf": found[1], **cells})
    assert answer.status_code == 303
    done = wait_for_bulk(visit, answer.headers["location"])
    assert f"{count[1]} done" in " ".join(done.split())
    kinds = {"cancel": "job_cancelled", "retry": "job_retried"}
    events = scene.store.past_events(kinds.get(action, "job_moved"))
    assert len(events) == int(count[1]) - (3 if action == "cancel" else 0)  # three run: told


# --- the rest ------------------------------------------------------------------------------------


def test_queues_and_schedules_are_paused_and_run(visit: Visit, scene: Scene) -> None:
    visit.form("/queues", "/queues/pause", queue="default", action="pause", reason="a break")
    assert next(q for q in scene.store.queues() if q.name == "default").paused
    visit.form("/queues", "/queues/pause", queue="default", action="resume")
    page = "/schedules/show?name=nightly"
    visit.form(page, "/schedules/pause", name="nightly", action="pause", reason="holidays")
    nightly = scene.store.schedule("nightly")
    assert nightly is not None
    assert nightly.paused
    assert "holidays" in visit.get(page).text
    visit.form(page, "/schedules/pause", name="nightly", action="resume")
    answer = visit.form(page, "/schedules/run", name="nightly")
    assert answer.headers["location"].endswith("done=run")
    assert scene.store.ticks("nightly")[0].by == "local (dashboard)"
    assert visit.form(page, "/schedules/run", name="nobody").status_code == 404


def test_events_are_paged_and_chosen(visit: Visit, scene: Scene) -> None:
    for n in range(120):
        scene.store.pause_queue("mail", n % 2 == 0, by="me")
    first = visit.get("/events").text
    assert first.count('data-label="What"') == 100
    more = re.search(r'rel="next" href="([^"]+)"', first)
    assert more
    rest = visit.get(html.unescape(more[1])).text
    assert rest.count('data-label="What"') >= 20
    chosen = visit.get("/events?kind=limit_changed").text
    assert chosen.count('data-label="What"') == 2
    assert "2 → 4" in chosen


def test_the_overview_tells_what_is_stuck(visit: Visit, scene: Scene) -> None:
    page = text_of(visit.get("/").text)
    assert "payments-api" in page
    assert "failed in the last hour" in page
    scene.store.overdue(scene.running[0].token, "its time was over, and it could not be stopped")
    scene.store.mark(scene.worker, "stalled")
    with visiting(create_app(scene.app)) as fresh:
        page = fresh.get("/").text
        assert "overdue attempt" in text_of(page)
        assert "stalled worker" in text_of(page)
        assert "workers, and 1 not well" in text_of(page)
        # The event leads to the job.
        event = fresh.get("/events?kind=attempt_overdue").text
        assert f'href="/jobs/{scene.running[0].job}"' in event


def test_failed_jobs_say_why_in_lists(visit_still: Visit) -> None:
    assert "PaymentError: card declined" in text_of(visit_still.get("/jobs?state=failed").text)


@pytest.mark.parametrize(("held", "wide", "css"), [(0, 0, "ok"), (6, 50, "ok"), (12, 100, "full")])
def test_bars_are_as_long_as_what_they_show(held: int, wide: int, css: str) -> None:
    assert f'<rect class="gauge-{css}" width="{wide}.0"' in gauge(held, 12, "units")
    assert f'<rect class="gauge-ok" width="{wide}.0"' in gauge(held, 12, "runs", alarms=False)


def test_open_pages_share_what_they_read_until_something_is_changed(
    visit_small: Visit, small: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.web.looks.FRESH", 1e9)  # a second, however slow this machine is
    live = {"x-headgate-live": "1"}

    def paused(**headers: str) -> bool:
        page = visit_small.get("/schedules/show?name=nightly", headers=headers).text
        return "badge-paused" in page

    assert not paused(**live)
    small.store.pause_schedule("nightly", True)
    assert not paused(**live), "within a second it is what was read for another"
    assert paused(), "who opens the page sees the store"
    path = "/schedules/show?name=nightly"
    visit_small.form(path, "/schedules/pause", name="nightly", action="resume")
    assert not paused(**live)
    visit_small.form(path, "/schedules/pause", name="nightly", action="pause")
    assert paused(**live), "and so do all after a change from here"


def test_shares_are_set_against_weights(scene: Scene) -> None:
    found = {share.key: share for share in shares(scene.store.ends(), {"acme": 2})}
    assert found["acme"].expected == pytest.approx(0.5)
    assert sum(share.part for share in found.values()) == pytest.approx(1.0)
    assert found["acme"].starts == 4


def test_charts_say_what_they_show() -> None:
    chart = bars(f"Ended {HOSTILE}", [0.0, 60.0], [Series("fine", "ok", [1, 2])])
    assert "3 fine" in chart
    assert "<script>" not in chart
    assert "nothing yet" in lines("Waiting", [], [Series("waiting", "ready", [])])


def test_the_stream_tells_of_changes(visit: Visit, scene: Scene) -> None:
    over = threading.Event()

    def change() -> None:
        for n in itertools.count():
            scene.store.pause_queue("mail", n % 2 == 0)
            if over.wait(0.3):
                return

    thread = threading.Thread(target=change)
    with visit.stream("GET", "/stream") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        thread.start()
        try:
            told = list(
                itertools.takewhile(lambda line: line != "event: change", stream.iter_lines())
            )
        finally:
            over.set()
            thread.join()
    assert told[0] == "retry: 3000"


class Slow:
    """A store whose limits are read, and then kept back for as long as a test likes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read, self.go_on = threading.Event(), threading.Event()

    def loads(self) -> list[LimitLoad]:
        found = self._store.loads()
        self.read.set()
        assert self.go_on.wait(PATIENCE)
        return found

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_what_was_changed_during_a_look_is_seen_by_the_next(scene: Scene) -> None:
    """Else a page that is shown after a change has no button to take it back."""
    slow = Slow(scene.store)
    sampler = Sampler(lambda: slow)  # type: ignore[arg-type, return-value]
    looking = threading.Thread(target=sampler.latest)
    looking.start()
    assert slow.read.wait(PATIENCE)
    scene.app.concurrency.set("gpu-memory", 40, reason="test", by="test")
    sampler.forget()
    slow.go_on.set()
    looking.join(PATIENCE)
    load = sampler.latest().load("gpu-memory")
    sampler.close()
    assert load is not None
    assert load.limit.value == 40

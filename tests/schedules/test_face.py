"""Declaring schedules: on tasks, on job classes, by name; and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate import App, Context, DeclarationError, InvalidSchedule, Job, Schedule, Worker
from headgate.config import Config
from headgate.schedules import rounds
from headgate.schedules.rounds import Rounds
from headgate.testing import TestClock, drain, memory_app
from headgate.worker.ticker import Ticker
from tests.waiting import PATIENCE, wait_until


@pytest.fixture
def app() -> App:
    return memory_app(clock=TestClock(start=1_800_000_000))


def test_a_task_says_when_it_runs(app: App) -> None:
    @app.task(schedule="H 2 * * *", timezone="Europe/Berlin", max_concurrent=1)
    def nightly() -> None: ...

    spec = app.schedules["nightly"].spec()
    assert (spec.name, spec.when, spec.timezone) == ("nightly", "H 2 * * *", "Europe/Berlin")
    assert json.loads(spec.job)["needs"] == '[[["nightly",null,1]],[]]'


def test_a_job_class_says_when_it_runs(app: App) -> None:
    @app.job
    class Nightly(Job):
        schedule = Schedule("@daily", missed="one", jitter=timedelta(minutes=5))
        timezone = "America/New_York"

        def run(self) -> None: ...

    @app.job(schedule="0 1 * * *")
    class Other(Nightly):
        def run(self) -> None: ...

    spec = app.schedules["Nightly"].spec()
    assert (spec.timezone, spec.missed, spec.jitter) == ("America/New_York", "one", 300.0)
    assert app.schedules["Other"].spec().when == "0 1 * * *"


def test_a_call_with_its_arguments_and_options(app: App) -> None:
    @app.task
    def charge(tenant: str, amount: int) -> None: ...

    app.schedule(
        "acme", charge.using(priority=-5, retries=2).call("acme", amount=3), "0 * * * *",
        start=datetime(2027, 1, 1), end=datetime(2027, 2, 1, tzinfo=UTC), timezone="Europe/Berlin",
    )  # fmt: skip
    spec = app.schedules["acme"].spec()
    assert spec.start == datetime(2026, 12, 31, 23, tzinfo=UTC).timestamp()
    job = json.loads(spec.job)
    assert json.loads(job["args"]) == {"tenant": "acme", "amount": 3}
    assert job["priority"] == -5
    assert json.loads(job["options"]) == {"priority": -5, "retries": 2}


def test_what_is_declared_ticks_and_runs(app: App) -> None:
    seen: list[tuple[str | None, float | None, int]] = []

    @app.task(retries=1)
    def note(ctx: Context, n: int) -> None:
        seen.append((ctx.schedule, ctx.scheduled_at, n))

    app.schedule("minutely", note.call(7), "* * * * *")
    app.store.declare_schedules(app.declared_schedules("test"))
    rounds = Rounds(app.store)
    rounds.round()
    assert isinstance(app.clock, TestClock)
    for _ in range(2):
        app.clock.advance(60)
        while rounds.round() == 0:
            pass
        drain(app)
    note.submit(8)
    drain(app)
    start = 1_800_000_000
    assert seen == [("minutely", start + 60, 7), ("minutely", start + 120, 7), (None, None, 8)]


def test_a_key_is_found_when_it_is_declared(app: App) -> None:
    tenant = app.limit("tenant", 2, key="tenant_id")

    @app.task(limits=[tenant])
    def work(tenant_id: str) -> None: ...

    app.schedule("acme", work.call("acme"), "@hourly")
    job = json.loads(app.schedules["acme"].spec().job)
    assert job["needs"] == '[[["tenant","acme",1]],[]]'
    assert job["turn"] == "acme"


def _twice(app: App, call: Any) -> None:
    app.schedule("a", call, "@daily")
    app.schedule("a", call, "@daily")


REFUSED: dict[str, tuple[Callable[[App, Any], object], str]] = {
    "twice": (_twice, "declared twice"),
    "text": (lambda app, call: app.schedule("a", call, "61 * * * *"), "'a'.*field minute"),
    "zone": (lambda app, call: app.schedule("a", call, "@daily", timezone="Mars"), "'a'.*zone"),
    "option": (lambda app, call: app.schedule("a", call, "@daily", often=1), "unknown option"),
    "missed": (lambda app, call: app.schedule("a", call, "@daily", missed="x"), "missed must"),
    "jitter": (lambda app, call: app.schedule("a", call, "@daily", jitter=-1), "'a'.*jitter"),
    "both": (
        lambda app, call: app.schedule("a", call, "@daily", pile_up=True, skip_if_running=True),
        "exclude each other",
    ),
    "end": (lambda app, call: app.schedule("a", call, "@daily", start=5, end=4), "before it"),
    "name": (lambda app, call: app.schedule(" a", call, "@daily"), "outer spaces"),
    "call": (lambda app, call: app.schedule("a", call.task, "@daily"), r"task\.call"),
    "key": (
        lambda app, call: app.schedule("a", call.task.using(idempotency_key="k").call(), "@daily"),
        "idempotency_key cannot be used",
    ),
    "time": (
        lambda app, call: app.schedule(
            "a", call.task.using(run_at=datetime.now(UTC)).call(), "@daily"
        ),
        "run_at cannot be used",
    ),
    "of a schedule": (
        lambda app, call: app.task(schedule="@daily", missed="all")(call.task.fn),
        r"schedule=Schedule\('@daily', missed=…\), or app.schedule",
    ),
    "zone alone": (lambda app, call: app.task(timezone="UTC")(lambda: 0), "no name of its own"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_says_what_and_why(app: App, what: str) -> None:
    @app.task
    def plain() -> None: ...

    declare, told = REFUSED[what]
    with pytest.raises(DeclarationError, match=f"(?s){told}"):
        declare(app, plain.call())


def test_a_task_with_arguments_cannot_say_it_itself(app: App) -> None:
    with pytest.raises(InvalidSchedule, match=r'app\.schedule\("work"'):

        @app.task(schedule="@daily")
        def work(n: int) -> None: ...

    with pytest.raises(InvalidSchedule, match="timezone says nothing"):

        @app.task(timezone="UTC")
        def idle() -> None: ...


def test_without_the_extra_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['croniter'] = None\n"
        "from headgate import App, HeadgateError\n"
        "app = App('sqlite:///:memory:')\n"
        "try:\n"
        "    app.task(schedule='@daily')(print_ := (lambda: 0))\n"
        "except HeadgateError as error: print(error)\n"
        "def f(): ...\n"
        "try: app.task(schedule='@daily')(f)\n"
        "except HeadgateError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "run pip install '.[schedules]' in a checkout" in done.stdout


def test_a_worker_at_rest_hears_that_a_schedule_is_resumed(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its safety poll out of the way, only the ring can end its rest."""
    monkeypatch.setattr(rounds, "SAFETY", 3600.0)
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = App(url, config=Config(url=url))
    ran = threading.Event()

    @app.task(name="often", schedule="* * * * * *")
    def often() -> None:
        ran.set()

    rests: list[float] = []

    async def rest(ticker: Ticker, seconds: float) -> None:
        rests.append(seconds)
        await plain(ticker, seconds)

    plain = Ticker._rest
    monkeypatch.setattr(Ticker, "_rest", rest)
    app.store.declare_schedules(app.declared_schedules("test"))
    (schedule,) = app.store.schedules()
    app.store.pause_schedule(schedule.spec.name, True)
    worker = Worker(app, "w")
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_until(lambda: 3600.0 in rests, why="it rests")
        assert not ran.is_set()
        app.store.pause_schedule(schedule.spec.name, False)
        assert ran.wait(PATIENCE)
    finally:
        worker.stop()
        thread.join()
        app.close()


def test_an_embedded_worker_ticks_unless_told_not_to(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = App(url, config=Config(url=url))
    ran = threading.Event()

    @app.task(schedule="* * * * * *")
    def often() -> None:
        ran.set()

    idle, busy = Worker(app, "idle", scheduler=False), Worker(app, "busy", queues=["none"])
    threads = [threading.Thread(target=worker.run) for worker in (idle, busy)]
    threads[0].start()
    assert not ran.wait(1.5)  # nobody ticks
    threads[1].start()
    assert ran.wait(PATIENCE)
    for worker in (idle, busy):
        worker.stop()
    for thread in threads:
        thread.join()
    app.close()

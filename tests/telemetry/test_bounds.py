"""However many keys, groups and tasks there are, a scrape stays small."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from headgate import App, Cap, ConcurrencyLimitReached
from headgate.jobs import Claimed, Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores import open_store
from headgate.stores.protocol import Publication, SlotRequest, Store
from headgate.telemetry import collector, gauges, names
from headgate.telemetry.counts import Counts
from headgate.telemetry.exposition import Counted, Gauges
from headgate.telemetry.gauges import Looker, Past
from headgate.telemetry.meter import Meter
from tests.stores import store_url
from tests.telemetry.conftest import parse

KEYS = 100_000
MB = 1_000_000
PROOF = os.environ.get("HEADGATE_PROOF") == "full"


def text(*collectors: object) -> str:
    registry = CollectorRegistry()
    for one in collectors:
        registry.register(one)  # type: ignore[arg-type]
    return generate_latest(registry).decode()


def attempt(n: int, group: str, task: str = "t", queue: str = "q") -> Claimed:
    return Claimed(str(n), n, 1, task, "{}", queue, 0, "", "{}", ((group, 0),), started_at=2.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(store_url("sqlite", tmp_path))
    yield opened
    opened.close()


def test_a_hundred_thousand_keys_are_less_than_a_megabyte(store: Store) -> None:
    store.publish(Publication("here", code={"tenant": 2}))
    for start in range(0, KEYS if PROOF else KEYS // 10, 1000):
        store.submit(
            [
                NewJob("t", needs=Needs((Need("tenant", f"key-{n}"),)), turn=f"key-{n}")
                for n in range(start, start + 1000)
            ]
        )
    counts, meter = Counts(), Meter()
    meter.sinks.append(counts)
    for n in range(KEYS):
        claimed = attempt(n, f"tenant/key-{n}")
        meter.started(claimed, 0.0)
        meter.ended(claimed, 0.1, Finish(n, "succeeded"))
    page = text(Gauges(Looker(lambda: store, counts).values), Counted(counts))
    assert len(page) < 20_000
    found = parse(page)
    assert found["headgate_concurrency_acquisition_total"][("tenant", "acquired")] == KEYS
    assert found["headgate_concurrency_waiting"][("tenant",)] > 0
    assert "key-" not in page


def test_keys_that_are_asked_for_are_bounded_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not PROOF:
        monkeypatch.setattr(gauges, "KEYS", 50)
    store.publish(Publication("here", code={"tenant": 2}))
    for n in range(gauges.KEYS + 10):
        store.take_slot(SlotRequest(f"tenant/key-{n:04}", "me", "here", 60.0))
    assert len(gauges.held_keys(store, {"tenant"})) == gauges.KEYS
    counts, meter = Counts(), Meter()
    meter.sinks.append(counts)
    meter.keyed = frozenset({"tenant"})
    for n in range(KEYS):
        meter.started(attempt(n, f"tenant/key-{n}"), 0.0)
    looker = Looker(lambda: store, counts, meter.keyed)
    page = text(Gauges(looker.values), Counted(counts))
    assert len(page) < MB
    found = parse(page)["headgate_concurrency_acquisition_total"]
    assert len(found) == 501
    assert sum(found.values()) == KEYS


def test_names_from_anywhere_are_bounded_in_number_and_length() -> None:
    counts, meter = Counts(), Meter()
    meter.sinks.append(counts)
    for n in range(5000):
        long = f"{n}-" + "x" * 300
        meter.know((long,))
        claimed = attempt(n, long, long, long)
        meter.started(claimed, 0.0)
        meter.ended(claimed, 0.1, Finish(n, "failed"))
    page = text(Counted(counts))
    assert len(page) < MB
    found = parse(page)
    assert found["headgate_jobs_ended_total"][("failed", "(other)")] == 4500
    assert sum(found["headgate_concurrency_wait_seconds_count"].values()) == 5000


def test_what_is_taken_out_is_counted_once() -> None:
    here, there = Counts(), Counts()
    here.add(names.ENDED, ("a", "failed"), 3)
    here.observe(names.WAIT, ("g",), 0.2)
    for _ in range(2):
        for delta in here.take():
            there.merge(delta)
        here.observe(names.WAIT, ("g",), 50.0)
    assert there.number(names.ENDED, ("a", "failed")) == 3
    (_, drawn), *_ = there.drawn(names.WAIT)
    assert sum(drawn[:-1]) == 2
    assert drawn[-1] == pytest.approx(50.2)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_refusals_of_one_minute_are_all_counted(kind: str, tmp_path: Path) -> None:
    """They are one event that is written on."""
    app = App(store_url(kind, tmp_path, quick=True))

    @app.task(caps=[Cap("one", max_total=1)])
    def once() -> None: ...

    own = collector(app)
    counts = Counts()
    with app:
        past = Past(counts)
        once.submit()
        for round in range(1, 4):
            past.note_events(app.store, rejected=True)
            for _ in range(5):
                with pytest.raises(ConcurrencyLimitReached):
                    once.submit()
            tally = getattr(app.store, "_tally", None)
            assert tally is not None
            tally.flush()
            past.note_events(app.store, rejected=True)
            assert counts.number(names.ACQUISITION, ("one", "rejected")) == 5 * round
            assert counts.number(names.EVENTS, ("cap_refused",)) == 5 * round
    found = parse(text(own))
    assert found["headgate_concurrency_acquisition_total"][("one", "rejected")] == 15
    assert found["headgate_jobs_submitted_total"] == {
        ("refused", "once"): 15,
        ("stored", "once"): 1,
    }

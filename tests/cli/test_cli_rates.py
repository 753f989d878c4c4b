"""`headgate concurrency` and `jobs why` of a rate."""

from __future__ import annotations

from conftest import Command
from hands import Hands, job

from headgate.rates import Pace
from headgate.stores.protocol import Publication, Store, TaskSpec


def publish(store: Store, value: int, pace: Pace) -> None:
    tasks = (TaskSpec("mail"),)
    store.publish(Publication("hands", tasks=tasks, code={"api": value}, code_rates={"api": pace}))


def test_a_rate_is_shown_as_one(headgate: Command, store: Store) -> None:
    publish(store, 2, Pace(60))
    ids = [one.id for one in store.submit([job("mail", "api") for _ in range(4)])]
    assert len(Hands(store, "mail").claim()) == 2
    line = headgate("concurrency", "status").out.splitlines()[1]
    assert line.split() == ["api", "2", "2", "per", "60", "s", "100%", "code", "full"]
    shown = headgate("concurrency", "status", "api").out
    assert "at most 2 starts per 60 s" in shown
    assert "2 in the last 60 s" in shown
    assert "may start in 5" in shown
    data = headgate("concurrency", "status", "api", "--json").json
    assert (data["limit"], data["per"], data["burst"], data["active"]) == (2, 60.0, None, 2)
    assert data["slots"] == []
    assert data["opens_at"] is not None
    why = headgate("jobs", "why", ids[-1]).out
    assert "waits for api: at most 2 starts per 60 s; the next may start in" in why
    why = headgate("jobs", "why", ids[-1], "--json").json
    assert why["code"] == "rate-full"


def test_a_rate_is_changed_like_a_limit(headgate: Command, store: Store) -> None:
    publish(store, 2, Pace(60, 1))
    told = headgate("concurrency", "set", "api", "--limit", "30", "--reason", "they allow it")
    assert told.out == "api: limit 30 per 60 s (override), 0 started\n"
    assert "at most 30 starts per 60 s, 1 at once" in headgate("concurrency", "status", "api").out


def test_a_start_cannot_be_released(headgate: Command, store: Store) -> None:
    publish(store, 1, Pace(60))
    store.submit([job("mail", "api")])
    Hands(store, "mail").claim()
    refused = headgate("concurrency", "release", "api", "0", "--force")
    assert refused.code != 0
    assert "'api' is a rate" in refused.err

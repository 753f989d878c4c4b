"""Looking is cheap and never an error of the database, whatever is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.errors import InvalidArguments, JobNotFound
from headgate.jobs import JobFilter, NewJob
from headgate.stores import open_store
from headgate.stores.protocol import Store

NO_IDS = ["x", "", "a\0b", "é" * 40, "'; --", "ABCDEF00-0000-7000-8000-000000000001", "{0}"]


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    store = open_store(postgres_url)
    yield store
    store.close()


@pytest.mark.parametrize("id", NO_IDS)
def test_a_text_that_is_no_id_is_the_id_of_no_job(store: Store, id: str) -> None:
    store.submit([NewJob("task")])
    assert store.job(id) is None
    assert store.attempts(id) == []
    assert store.find(JobFilter(ids=(id,))) == []
    assert store.find(JobFilter(), after=id) == []
    for act in (store.cancel, store.retry, store.why):
        with pytest.raises(JobNotFound):
            act(id)


def test_an_id_that_cannot_be_stored_is_refused(store: Store) -> None:
    for jobs in ([NewJob("task", id="mine")], [NewJob("task", id="mine") for _ in range(50)]):
        with pytest.raises(InvalidArguments, match="is not a UUID"):
            store.submit(jobs)
    assert store.count(JobFilter()) == 0


def test_pages_filters_and_bounded_counts(store: Store) -> None:
    ids = [done.id for done in store.submit([NewJob("task", queue="q") for _ in range(30)])]
    (late,) = store.submit([NewJob("other", delay=100)])
    assert store.cancel(ids[0]).state == "cancelled"
    first = store.find(JobFilter(task="task"), limit=20)
    rest = store.find(JobFilter(task="task"), limit=20, after=first[-1].id)
    assert [record.id for record in (*first, *rest)] == ids[::-1]
    states = {
        state: store.count(JobFilter(states=frozenset([state])))
        for state in ("scheduled", "ready", "running", "cancelled", "failed")
    }
    assert states == {"scheduled": 1, "ready": 29, "running": 0, "cancelled": 1, "failed": 0}
    both = JobFilter(states=frozenset(["scheduled", "cancelled"]))
    assert {record.id for record in store.find(both)} == {ids[0], late.id}
    assert store.count(JobFilter(), limit=7) == 7
    assert [record.id for record in store.find(JobFilter(ids=(ids[3], "x")))] == [ids[3]]
    assert {q.name: q.waiting for q in store.queues()} == {"q": 29, "default": 0}

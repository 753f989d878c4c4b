"""The words of `why`, from facts of a real store."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Command
from hands import Hands, job, publish

from headgate.jobs import Failure, Finish, NewJob
from headgate.limits import Need, Needs
from headgate.stores.protocol import LimitChange, Store
from headgate.why import age, explain


def words(store: Store, id: str) -> str:
    names = {worker.id: worker.name for worker in store.workers()}
    return explain(store.why(id), now=store.now(), names=names, attempts=store.attempts(id))


def test_a_full_limit_names_holders_and_place(store: Store, headgate: Command) -> None:
    publish(store, tenant=2)
    jobs = [job("mail", "tenant/acme") for _ in range(5)]
    store.submit(jobs)
    first, second = Hands(store, "mail").claim()
    text = words(store, jobs[4].id)
    assert text.startswith("The job waits for tenant/acme: 2 of 2 units are held by job ")
    assert f"job {first.job} (worker web-1, for" in text
    assert f"job {second.job} (worker web-1, for" in text
    assert text.endswith("2 jobs are ahead of it in its lane.")
    assert words(store, jobs[2].id).endswith("It is the first in its lane.")
    assert headgate("jobs", "why", jobs[4].id, "--json").json["code"] == "limit-full"
    assert headgate("jobs", "why", jobs[4].id).out.startswith("The job waits for tenant/acme")


def test_many_holders_are_counted(store: Store) -> None:
    publish(store, tenant=9)
    store.submit([job("mail", "tenant/acme") for _ in range(10)])
    last = job("mail", "tenant/acme")
    store.submit([last])
    Hands(store, "mail").claim(9)
    assert "and 4 more" in words(store, last.id)


def test_a_long_line(store: Store) -> None:
    publish(store, tenant=0)
    for _ in range(2):
        store.submit([job("mail", "tenant/acme") for _ in range(600)])
    last = job("mail", "tenant/acme")
    store.submit([last])
    assert words(store, last.id).endswith("More than 1,000 jobs are ahead of it in its lane.")


def test_zero_paused_missing_too_wide(store: Store) -> None:
    publish(store, gpu=4)
    Hands(store, "mail")
    wide = NewJob("mail", needs=Needs((Need("gpu", None, 3),)))
    plain, missing = job("mail", "gpu"), job("mail", "nowhere")
    store.submit([wide, plain, missing])

    def change(**told: object) -> None:
        store.change_limit(LimitChange("gpu", by="ann", reason="r", **told))  # type: ignore[arg-type]

    change(value=2, set_value=True)
    assert "needs 3 units of gpu, whose limit is 2" in words(store, wide.id)
    change(value=0, set_value=True)
    assert "The limit of gpu is 0" in words(store, plain.id)
    change(reset=True)
    change(paused=True)
    assert "gpu is paused by ann" in words(store, plain.id)
    assert "Nothing declares a value for nowhere" in words(store, missing.id)


def test_queue_worker_task_turn(store: Store) -> None:
    publish(store)
    one = job("mail", queue="slow")
    store.submit([one])
    assert words(store, one.id).startswith("No worker is running. Start one whose app declares")
    other = Hands(store, "resize")
    assert "No running worker knows task 'mail'" in words(store, one.id)
    store.unregister(other.id)
    Hands(store, "mail")
    assert "waits for a worker with room" in words(store, one.id)
    store.pause_queue("slow", True, "ann", "backup")
    assert words(store, one.id).startswith("Queue slow is paused (by ann: backup)")


def test_times_of_life(store: Store) -> None:
    publish(store)
    later, retried, failed, well = job("mail", delay=90), *(job("mail") for _ in range(3))
    store.submit([later, retried, failed, well])
    assert "becomes ready in 89 s" in words(store, later.id)
    hands = Hands(store, "mail")
    claimed = {c.job: c for c in hands.claim()}
    assert "The job is running on worker web-1, for" in words(store, well.id)
    error = Failure("ValueError", "bad\nlong story")
    hands.finish(
        Finish(claimed[retried.id].token, "retry", delay=30, error=error),
        Finish(claimed[failed.id].token, "failed", error=error),
        Finish(claimed[well.id].token, "succeeded", result="1"),
    )
    assert "next attempt after ValueError: bad; it is due in" in words(store, retried.id)
    assert words(store, failed.id).endswith("ago: ValueError: bad.")
    assert words(store, well.id).startswith("The job succeeded ")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0.0 s"), (0.04, "0.0 s"), (9.94, "9.9 s"), (59, "59 s"), (119.9, "119 s"),
     (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (10_000, "2 h 46 min"), (172_800, "2 days")],
)  # fmt: skip
def test_ages(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_a_queue_closed_by_the_configuration(
    store: Store, headgate: Command, tmp_path: Path
) -> None:
    (tmp_path / "headgate.toml").write_text("[queues.default]\npaused = true\n")
    publish(store)
    (made,) = store.submit([job()])
    answer = headgate("jobs", "why", made.id)
    assert "is paused, or its concurrency is 0, in headgate.toml" in answer.out
    assert headgate("jobs", "why", made.id, "--json").json["code"] == "queue-closed"
    assert "paused in the configuration" in headgate("queues", "ls").out

"""Listings of jobs: the newest first, in pages that look at so many jobs and no further."""

from __future__ import annotations

import pytest

from headgate.errors import JobNotFound, StoreError
from headgate.jobs import JobFilter, NewJob, State
from headgate.stores.protocol import LimitChange, SlotRequest
from headgate.stores.relational import looking, searching
from tests.conformance.conftest import Rig, need

WAITING: frozenset[State] = frozenset(("ready", "scheduled", "running"))


def listed(rig: Rig, filter: JobFilter, limit: int = 2, pages: int = 60) -> list[str]:
    """All of it, page by page."""
    found: list[str] = []
    after = None
    for _ in range(pages):
        page = rig.store.listing(filter, limit, after)
        assert len(page.jobs) <= limit
        found += [job.id for job in page.jobs]
        after = page.after
        if after is None:
            return found
    raise AssertionError("a listing comes to its end")


def some(rig: Rig) -> None:
    """Of every state, those that wait before those that are over."""
    hand = rig.hand(tasks=("task",))
    rig.submit(3)
    assert len(hand.claim(3)) == 3
    rig.clock.advance(1)
    rig.submit(5, task="other", queue="slow")
    rig.submit(4, task="other", needs=need("tenant", "a"), turn="a", fair_limit="tenant")
    rig.submit(4, delay=500.0)
    rig.store.submit([NewJob("nobody", routed=False)])
    rig.clock.advance(1)
    rig.submit(7)
    for n, claimed in enumerate(hand.claim(7)):
        rig.clock.advance(1)
        hand.end(claimed, "failed" if n % 3 == 1 else "succeeded")
    for id in rig.submit(2):
        rig.store.cancel(id)


FILTERS = {
    "all": JobFilter(),
    "task": JobFilter(task="other"),
    "queue": JobFilter(queue="slow"),
    "group": JobFilter(group="tenant/a"),
    "nothing": JobFilter(task="nosuch"),
    "ready": JobFilter(states=frozenset(("ready",))),
    "ready of a task": JobFilter(states=frozenset(("ready",)), task="other"),
    "ready of nobody's task": JobFilter(states=frozenset(("ready",)), task="nobody"),
    "ready of a queue": JobFilter(states=frozenset(("ready",)), queue="slow"),
    "ready in a group": JobFilter(states=frozenset(("ready",)), group="tenant/a"),
    "ready in a limit": JobFilter(states=frozenset(("ready",)), group="tenant"),
    "waiting": JobFilter(states=WAITING),
    "over": JobFilter(states=frozenset(("succeeded", "failed"))),
    "failed": JobFilter(states=frozenset(("failed",))),
    "some": JobFilter(states=frozenset(("scheduled", "cancelled", "ready"))),
    "every": JobFilter(states=frozenset(searching.ORDER)),
}


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_few_jobs_are_listed_the_newest_first(rig: Rig, limit: int) -> None:
    some(rig)
    for name, filter in FILTERS.items():
        expected = [job.id for job in rig.store.find(filter, 100)]
        assert expected or name == "nothing"
        assert listed(rig, filter, limit) == expected, name


@pytest.mark.parametrize("look", [1, 3, 8])
def test_many_are_listed_in_pages_each_once(
    rig: Rig, look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(rig)
    monkeypatch.setattr(searching, "LOOK", look)
    monkeypatch.setattr(searching, "AT_ONCE", 2)
    for name, filter in FILTERS.items():
        expected = [job.id for job in rig.store.find(filter, 100)]
        found = listed(rig, filter, 3)
        assert len(found) == len(expected), name
        assert set(found) == set(expected), name
        if not filter.states:
            assert found == expected, name


def test_what_waits_is_not_looked_for_among_what_is_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(rig)
    monkeypatch.setattr(searching, "LOOK", 6)
    for filter in (
        JobFilter(states=frozenset(("ready",)), queue="slow"),
        JobFilter(states=frozenset(("ready",)), group="tenant/a"),
        JobFilter(states=frozenset(("ready",)), task="nobody"),
        JobFilter(states=frozenset(("scheduled",))),
        JobFilter(states=frozenset(("running",))),
    ):
        page = rig.store.listing(filter, 10)
        assert page.after is None
        assert [job.id for job in page.jobs] == [job.id for job in rig.store.find(filter, 10)]


def test_a_page_goes_on_after_a_job(rig: Rig) -> None:
    ids = rig.submit(5)[::-1]
    first = rig.store.listing(JobFilter(), 2)
    assert first.after == first.jobs[-1].id == ids[1]
    assert [job.id for job in rig.store.listing(JobFilter(), 9, ids[2]).jobs] == ids[3:]
    ready = JobFilter(states=frozenset(("ready",)))
    rig.store.cancel(ids[2])
    assert [job.id for job in rig.store.listing(ready, 9, ids[2]).jobs] == ids[3:]
    for id in ("nope", "", "00000000-0000-7000-8000-000000000000", "é\0"):
        with pytest.raises(JobNotFound, match="names no job"):
            rig.store.listing(JobFilter(), 2, id)


def test_jobs_that_leave_move_no_others_place(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "LOOK", 4)
    for turn in "cab":
        rig.submit(5, turn=turn, fair_limit="tenant")
    ready = JobFilter(states=frozenset(("ready",)))
    left = {job.id for job in rig.store.find(ready, 100)}
    after = None
    while True:
        page = rig.store.browse(ready, 3, after)
        for job in page.jobs:
            left.remove(job.id)
            rig.store.cancel(job.id)
        after = page.after
        if after is None:
            break
    assert left == set()


def test_since_and_until_bound_a_search(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    old = rig.submit(4)
    rig.clock.advance(10_000)
    now = rig.store.now()
    new = rig.submit(9)
    monkeypatch.setattr(searching, "LOOK", 4)
    page = rig.store.listing(JobFilter(until=now - 5000), 10)
    assert [job.id for job in page.jobs] == old[::-1]
    page = rig.store.listing(JobFilter(since=now - 5000, task="nosuch"), 10)
    assert page.after is not None
    assert listed(rig, JobFilter(since=now - 5000), 3) == new[::-1]


PLACES = ["ready:x", "ready:at.", "ready:at.e30", "ready:at.WyJsaW5lIl0", "failed:1_1", ":"]


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_is_none_is_refused(rig: Rig, place: str) -> None:
    with pytest.raises(StoreError, match="place"):
        rig.store.listing(JobFilter(states=frozenset(("ready",))), 2, place)


# --- groups -----------------------------------------------------------------------------------


def some_groups(rig: Rig) -> None:
    """Keys that are held, that were, that operators spoke of, and groups that bring their value."""
    rig.declare(gpu=1, tenant=2, zoo=3)
    for n in range(9):
        rig.tenant(f"k{n}")
    hand = rig.hand()
    for claimed in hand.claim():
        if claimed.turn in ("k1", "k2", "k5"):
            hand.end(claimed)
    rig.set_limit("tenant/k0", 4)
    rig.set_limit("tenant/k2", 1)
    rig.pause("tenant/z")
    rig.store.change_limit(LimitChange("someone", weight=3, reason="test"))
    for group in ("build", "tenant-like"):
        slot = rig.store.take_slot(
            SlotRequest(group, "me", "here", lease=30.0, limit=2, carries_limit=True)
        )
        assert slot is not None
        assert rig.store.drop_slot(group, slot.slot, slot.token)


LIMITS = ["gpu", "tenant", "zoo"]
OTHERS = ["build", "tenant-like", *(f"tenant/k{n}" for n in (0, 2, 3, 4, 6, 7, 8)), "tenant/z"]
SAID = ["build", "someone", "tenant-like", "tenant/k0", "tenant/k2", "tenant/z"]


@pytest.mark.parametrize(("look", "limit"), [(1000, 100), (1000, 3), (1, 1), (2, 1), (2, 5)])
@pytest.mark.parametrize("said", [False, True])
def test_groups_are_listed_in_pages_each_once(
    rig: Rig, look: int, limit: int, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "LOOK", look)
    some_groups(rig)
    page = rig.store.limit_page(limit, said=said)
    assert [one.group for one in page.limits] == LIMITS
    found = list(page.groups)
    for _ in range(60):
        assert len(page.groups) <= limit
        if page.after is None:
            break
        page = rig.store.limit_page(limit, page.after, said=said)
        assert page.limits == (), "they were told on the first"
        found += page.groups
    else:
        raise AssertionError("a listing comes to its end")
    assert [one.group for one in found] == (SAID if said else OTHERS)
    records = {one.group: one for one in rig.store.limits()}
    for one in found:
        if one.group in records:
            assert one == records[one.group]


def test_where_there_is_nothing_there_is_one_page(rig: Rig) -> None:
    page = rig.store.limit_page()
    assert (page.limits, page.groups, page.after) == ((), (), None)

"""Slots by hand in one round trip, as tests/counts counts them: exact at every moment at which
somebody else is at work too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.errors import TooWide, UnknownLimit
from headgate.stores import open_store
from headgate.stores.postgres import leases
from headgate.stores.protocol import (
    LimitChange,
    NewWorker,
    Publication,
    SlotRecord,
    SlotRequest,
    Store,
)
from tests.postgres.rival import Rival, Waiter, until_blocked


def take(
    store: Store, group: str = "gpu", lease: float = 30.0, units: int = 1
) -> SlotRecord | None:
    return store.take_slot(SlotRequest(group, "me", "here", lease=lease, units=units))


def declare(store: Store, **values: int) -> None:
    store.publish(Publication("test", code=values))
    # The words are read by the first that is taken; from then on one round trip is enough.
    slot = take(store, "warm")
    assert slot is not None
    assert store.drop_slot("warm", slot.slot, slot.token)


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    """By the server's own clock: with one in a test's hand everything is in a transaction."""
    store = open_store(postgres_url)
    declare(store, warm=1, gpu=1, wide=5)
    yield store
    assert store.doctor() == []
    store.close()


@pytest.fixture
def rival(store: Store, postgres_url: str) -> Iterator[Rival]:
    with Rival(postgres_url) as made:
        yield made


@pytest.fixture
def watch(store: Store, postgres_url: str) -> Iterator[Rival]:
    with Rival(postgres_url) as made:
        yield made


HOLD = (
    "INSERT INTO headgate.slots (grp, epoch, slot, token, holder, worker_name, units, since, ends)"
    " SELECT %s, max(epoch), 0, nextval('headgate.tokens'), 'rival', 'rival', 1, 0, 1e12"
    " FROM headgate.epochs"
)
ALONE = "SELECT pg_advisory_xact_lock(headgate.salt(), headgate.lock_key(%s))"


def test_what_is_held_is_summed_after_the_wait(store: Store, rival: Rival, watch: Rival) -> None:
    rival.lock("gpu")
    rival.run(HOLD, "gpu")
    taking = Waiter(lambda: take(store))
    until_blocked(watch)
    rival.commit()
    assert taking.result() is None
    assert store.group("gpu")[0].held == 1


def test_a_grant_that_is_undone_leaves_the_room(store: Store, rival: Rival, watch: Rival) -> None:
    rival.lock("gpu")
    rival.run(HOLD, "gpu")
    taking = Waiter(lambda: take(store))
    until_blocked(watch)
    rival.rollback()
    assert taking.result() is not None


def test_after_a_change_nothing_is_granted_by_the_old_value(
    store: Store, rival: Rival, watch: Rival
) -> None:
    assert take(store, "wide") is not None
    rival.run(ALONE, leases.LIMITS)
    rival.run("UPDATE headgate.declared SET value = 1 WHERE name = 'wide'")
    rival.run("UPDATE headgate.counters SET value = value + 1 WHERE name = 'limits'")
    taking = Waiter(lambda: take(store, "wide"))
    until_blocked(watch)
    rival.commit()
    assert taking.result() is None
    store.change_limit(LimitChange("wide", value=2, set_value=True))
    assert take(store, "wide") is not None
    store.change_limit(LimitChange("wide", paused=True))
    assert take(store, "wide") is None


def test_a_lease_that_ends_during_the_wait_has_ended(
    store: Store, rival: Rival, watch: Rival
) -> None:
    """Who counts and who extends wait for the same lock: by the time it is theirs the slot is
    over for both, whenever they came."""
    slot = take(store, lease=1.0)
    assert slot is not None
    rival.lock("gpu")
    extending = Waiter(lambda: store.extend_slot("gpu", slot.slot, slot.token, 30))
    until_blocked(watch)
    rival.run("SELECT pg_sleep(greatest(0, %s - extract(epoch FROM clock_timestamp())))",
              slot.expires_at)  # fmt: skip
    rival.commit()
    assert extending.result() is None
    again = take(store)
    assert again is not None
    assert again.slot == slot.slot, "its row is used again"
    assert not store.drop_slot("gpu", slot.slot, slot.token)
    assert store.group("gpu")[0].held == 1


def test_the_slots_of_a_dead_worker_are_taken_away_first(store: Store, rival: Rival) -> None:
    store.register(NewWorker("w-1", "w", "k", "host", 1, (), (), 1, lease=1000.0))
    rival.run(
        "INSERT INTO headgate.slots"
        " (grp, epoch, slot, token, holder, worker, worker_name, units, since)"
        " SELECT 'gpu', max(epoch), 0, nextval('headgate.tokens'), '', 'w-1', 'w', 1, 0"
        " FROM headgate.epochs"
    )
    rival.commit()
    assert take(store) is None, "it lives"
    rival.run("UPDATE headgate.leases SET ends = 0 WHERE worker = 'w-1'")
    rival.run("UPDATE headgate.slots SET token = NULL, worker = NULL WHERE grp = 'gpu'")
    rival.commit()
    assert take(store) is not None
    assert store.events("worker_lost"), "nobody is granted anything beside a lease that has ended"


def test_who_has_reserved_comes_first(store: Store) -> None:
    slots = [take(store, "wide") for _ in range(5)]
    waiting = SlotRequest("wide", "patient", "here", lease=30.0, units=2, waited=6.0)
    assert store.take_slot(waiting) is None
    for slot in slots[:2]:
        assert slot is not None
        store.drop_slot("wide", slot.slot, slot.token)
        assert take(store, "wide") is None, "kept for who has waited"
    assert store.take_slot(waiting) is not None


def test_what_cannot_be_is_told(store: Store) -> None:
    with pytest.raises(TooWide):
        take(store, "wide", units=6)
    with pytest.raises(UnknownLimit):
        take(store, "nobody")
    carried = SlotRequest("own", "me", "here", lease=30.0, limit=1, carries_limit=True)
    first = store.take_slot(carried)
    assert first is not None
    assert store.take_slot(carried) is None
    assert store.drop_slot("own", first.slot, first.token)
    assert take(store, "own") is not None, "the value stays with the group"
    assert take(store, "own") is None

"""A worker lives by its lease: whoever counts an ended one as free has taken it first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.errors import StoreError
from headgate.stores import open_store
from headgate.stores.postgres import leases
from headgate.stores.protocol import Claim, Exchange, NewWorker, SlotRecord, SlotRequest, Store
from headgate.turns import ClaimState
from tests.conformance.conftest import HandClock, Rig, need
from tests.postgres.rival import Rival, Waiter, until_blocked


@pytest.fixture
def rig(postgres_url: str) -> Iterator[Rig]:
    clock = HandClock()
    store = open_store(postgres_url, clock=clock)
    yield Rig(store, clock)
    store.close()


def take(store: Store, group: str = "api") -> SlotRecord | None:
    return store.take_slot(SlotRequest(group, "me", "here", lease=1000))


def busy(rig: Rig) -> tuple[str, str]:
    """A worker whose one attempt holds the only slot; its id, and the job's."""
    rig.declare(api=1)
    (id,) = rig.submit(needs=need("api"))
    rig.store.register(NewWorker("w", "w", tasks=("task",), lease=30))
    claim = Claim(1, frozenset(["task"]), ClaimState())
    assert len(rig.store.exchange(Exchange("w", claim=claim)).claimed) == 1
    return "w", id


def test_an_ended_lease_frees_its_slots_at_the_next_grant(rig: Rig) -> None:
    worker, id = busy(rig)
    rig.clock.advance(29)
    assert take(rig.store) is None
    assert rig.store.renew(worker)
    rig.clock.advance(29)
    assert take(rig.store) is None, "it was renewed"
    rig.clock.advance(1)
    assert [w.state for w in rig.store.workers()] == ["dead"]
    assert take(rig.store) is not None, "no sweeper has to run first"
    assert rig.state(id) == "ready"
    assert [a.outcome for a in rig.store.attempts(id)] == ["lost"]
    assert rig.store.workers() == []


def test_a_sweep_takes_it_too_and_says_what_it_found(rig: Rig) -> None:
    worker, _ = busy(rig)
    rig.clock.advance(31)
    swept = rig.store.sweep()
    assert (swept.lost_workers, swept.lost_attempts) == ((worker,), 1)
    assert rig.held("api") == 0
    assert rig.store.doctor() == []


def test_a_dead_worker_stays_dead(rig: Rig) -> None:
    worker, _ = busy(rig)
    rig.clock.advance(31)
    rig.store.sweep()
    assert not rig.store.renew(worker)
    assert rig.store.exchange(Exchange(worker)).dead
    with pytest.raises(StoreError, match="leases_pkey"):
        rig.store.register(NewWorker(worker, "again"))
    rig.clock.advance(leases.REMEMBERED + 31)
    rig.store.sweep()
    assert not rig.store.renew(worker), "forgotten is dead, too"


def test_who_leaves_in_good_order_leaves_nothing(rig: Rig, watch: Rival) -> None:
    rig.hand().leave()
    assert watch.run("SELECT * FROM headgate.leases") == []


# --- with a transaction held open -----------------------------------------------------------------


def test_a_renewal_under_way_across_the_end_is_life(rig: Rig, rival: Rival) -> None:
    """It cannot be seen until it commits; its lock on the lease can."""
    worker, id = busy(rig)
    rival.run("UPDATE headgate.leases SET ends = ends + 30 WHERE worker = %s", worker)
    rig.clock.advance(31)
    # Who waited for the rival would be refused in the end: it commits only after both calls.
    assert take(rig.store) is None, "the slot counts: somebody is renewing"
    assert rig.store.sweep().lost_workers == ()
    rival.commit()
    assert take(rig.store) is None
    assert rig.state(id) == "running"


@pytest.mark.parametrize("renewed", [True, False], ids=["renewed", "not after all"])
def test_a_claim_beside_a_renewal_under_way_gets_nothing_and_does_not_wait(
    rig: Rig, rival: Rival, renewed: bool
) -> None:
    worker, id = busy(rig)
    (other,) = rig.submit(needs=need("api"))
    second = rig.hand("second")
    rival.run("UPDATE headgate.leases SET ends = ends + 30 WHERE worker = %s", worker)
    rig.clock.advance(31)
    for _ in range(3):
        assert Waiter(lambda: second.exchange(room=2)).result().claimed == ()
    if renewed:
        rival.commit()
        assert second.claim(room=2) == []
        assert (rig.state(id), rig.state(other)) == ("running", "ready")
    else:
        rival.rollback()
        assert [c.job for c in second.claim(room=2)] == [id], "it comes back at its place"
    assert rig.held("api") == 1


def test_a_renewal_that_never_committed_is_none(rig: Rig, rival: Rival) -> None:
    worker, _ = busy(rig)
    rival.run("UPDATE headgate.leases SET ends = ends + 30 WHERE worker = %s", worker)
    rig.clock.advance(31)
    assert take(rig.store) is None
    rival.rollback()
    assert take(rig.store) is not None


def test_a_round_trip_under_way_is_life(rig: Rig, rival: Rival) -> None:
    """What it is about to commit (a claim, the end of an attempt) must not meet a dead worker."""
    worker, id = busy(rig)
    rival.lock(leases.lock_name(worker))
    rig.clock.advance(31)
    assert take(rig.store) is None
    assert rig.state(id) == "running"
    rival.commit()
    assert take(rig.store) is not None


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "not after all"])
def test_a_renewal_waits_for_who_takes_the_lease_and_is_told(
    rig: Rig, rival: Rival, watch: Rival, taken: bool
) -> None:
    worker, _ = busy(rig)
    rival.run("UPDATE headgate.leases SET dead = true WHERE worker = %s", worker)
    renewal = Waiter(lambda: rig.store.renew(worker))
    until_blocked(watch)
    if taken:
        rival.commit()
    else:
        rival.rollback()
    assert renewal.result() is not taken


def test_no_producer_holds_up_a_renewal(rig: Rig, rival: Rival) -> None:
    worker, _ = busy(rig)
    jobs = '[{"id": "00000000-0000-7000-8000-000000000001", "task": "t", "queue": "q",'
    jobs += ' "priority": 0, "band": "b", "turn": "", "lane": "", "args": "{}", "options": "{}",'
    jobs += ' "needs": "[[],[]]", "delay": 0, "max_lost": 3}]'
    rival.run("SELECT * FROM headgate.submit(%s)", jobs)
    assert Waiter(lambda: rig.store.renew(worker)).result() is True


def test_a_keepers_word_waits_for_what_the_worker_had_sent(
    rig: Rig, rival: Rival, watch: Rival
) -> None:
    """A claim of a worker that is dead by now may still be under way on the server."""
    worker, id = busy(rig)
    rival.lock(leases.lock_name(worker))
    (other,) = rig.submit()
    rival.run("DELETE FROM headgate.ready WHERE job = (SELECT n FROM headgate.jobs WHERE id = %s)",
              other)  # fmt: skip
    rival.run(
        "INSERT INTO headgate.running (token, job, worker, attempt, started_at, ready_at, slots)"
        " SELECT nextval('headgate.tokens'), n, %s, 1, 0, 0, '[]' FROM headgate.jobs WHERE id = %s",
        worker, other,
    )  # fmt: skip
    word = Waiter(lambda: rig.store.declare_dead(worker, "killed"))
    until_blocked(watch)
    rival.commit()
    word.result()
    assert (rig.state(id), rig.state(other)) == ("ready", "ready")
    assert rig.store.doctor() == []


def test_two_who_find_it_ended_take_it_once(rig: Rig) -> None:
    worker, id = busy(rig)
    rig.clock.advance(31)
    sweeps = [Waiter(rig.store.sweep) for _ in range(4)]
    lost = [found for sweep in sweeps for found in sweep.result().lost_workers]
    assert lost == [worker]
    assert [a.outcome for a in rig.store.attempts(id)] == ["lost"]

"""What others do, or what fails, between two lines of ours: nothing lost, doubled or stuck."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import StoreError, StoreInDoubt, StoreUnavailable
from headgate.jobs import CapUse, JobFilter, NewJob
from headgate.stores.bucket import patience, replacing
from headgate.stores.bucket.ledger import NONCES
from headgate.stores.bucket.objects import Lost, Trouble
from headgate.stores.bucket.poller import Poller
from headgate.stores.protocol import Claim, Exchange, Exchanged, LimitChange
from headgate.turns import ClaimState
from tests.bucket.machines import LEDGER, Faulty, need, opened
from tests.bucket.memory import MemoryObjects
from tests.waiting import PATIENCE


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 0.2)


def test_an_end_is_not_stale_because_the_copy_could_not_note_its_beginning(tmp_path: Path) -> None:
    with opened(tmp_path, MemoryObjects(), "a") as (a,):
        worker = a.worker(lease=1e6)
        a.add(1)
        original = a._replica.set_head

        def fail(connection: object, head: object) -> None:
            a._replica.set_head = original  # type: ignore[method-assign]
            raise sqlite3.OperationalError("database or disk is full")

        a._replica.set_head = fail  # type: ignore[method-assign]
        claimed = a.claim(worker)
        assert len(claimed) == 1
        assert a.finish(worker, claimed) == ()
        assert a.count(JobFilter(states=frozenset(("succeeded",)))) == 1


class Slow(Faulty):
    """Keeps a write until it is told to carry it out."""

    def arrive(self) -> None:
        self._arrive_late()

    def _arrive(self) -> None:
        return

    def _arrive_late(self) -> None:
        super()._arrive()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("asks", [0, 10])
def test_what_is_carried_out_after_somebody_has_looked_for_it_is_not_held_for_ever(
    tmp_path: Path, asks: int
) -> None:
    objects = Slow()
    with opened(tmp_path, objects, "a") as (a,):
        a.limit("narrow", 1)
        worker = a.worker(lease=1e6)
        (job,) = a.add(1, needs=need("narrow"))
        objects.faults = iter(["late", *["dead"] * 100])
        with pytest.raises(StoreInDoubt):
            a.claim(worker)
        objects.faults = iter(())
        claimed = list(a.exchange(Exchange(worker)).claimed) if not asks else a.claim(worker, asks)
        objects.arrive()
        claimed = claimed or a.claim(worker)
        assert [one.job for one in claimed] == [job]
        assert a.finish(worker, claimed) == ()
        assert a.group("narrow")[0].held == 0


def test_a_write_is_not_taken_for_lost_when_its_mark_is_too_old_to_be_told(tmp_path: Path) -> None:
    """Its answer was lost, and until it was asked again others have written that often."""
    objects = Faulty()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        a.limit("narrow", 1)
        worker = a.worker(lease=1e6)
        (job,) = a.add(1, needs=need("narrow"))

        def others() -> None:
            objects.before_answer = None
            for _ in range(NONCES + 1):
                b._commits._fence()

        objects.before_answer = others
        objects.faults = iter(["cut"])
        with pytest.raises(StoreInDoubt):
            a.claim(worker)
        claimed = a.claim(worker)
        assert [one.job for one in claimed] == [job], "it is held, by who knows of it"
        assert a.finish(worker, claimed) == ()


class Conflicting(MemoryObjects):
    """The first write of a body gets no answer and fails, while the second is refused for it."""

    tries = 0

    def create(self, key: str, body: bytes) -> str:
        if "/bodies/" in key:
            self.tries += 1
            if self.tries == 1:
                raise Trouble("no answer", maybe=True)
            if self.tries == 2:
                raise Lost("409")
        return super().create(key, body)


def test_a_body_is_named_only_when_it_is_there(tmp_path: Path) -> None:
    objects = Conflicting()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        text = f'"{"x" * 10_000}"'
        (id,) = a.add(1, args=text)
        found = b.job(id)
        assert found is not None
        assert found.args == text


def test_what_was_granted_is_found_whatever_failed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, MemoryObjects(), "a") as (a,):
        worker = a.worker(lease=1e6)
        (job,) = a.add(1)

        def fail(claimed: object) -> Any:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(a._bodies, "claimed", fail)
            with pytest.raises(RuntimeError):
                a.claim(worker)
        assert [one.job for one in a.claim(worker)] == [job]


@pytest.mark.usefixtures("impatient")
def test_that_a_limit_changed_is_told_though_the_first_answer_was_lost(tmp_path: Path) -> None:
    """Else what was granted ahead under the old one would stay."""
    objects = Faulty()
    with opened(tmp_path, objects, "a") as (a,):
        a.limit("narrow", 2)
        worker = a.worker(lease=1e6)
        state = ClaimState()

        def ask() -> Exchanged:
            claim = Claim(1, frozenset(("task",)), state)
            return a.exchange(Exchange(worker, claim=claim))

        assert not ask().recall
        a.change_limit(LimitChange("narrow", value=1, set_value=True))
        a.add(1)
        objects.faults = iter(["dead"] * 100)
        with pytest.raises(StoreInDoubt):
            ask()
        objects.faults = iter(())
        assert ask().recall


# --- a worker's second thread ---------------------------------------------------------------------


class Hooked(MemoryObjects):
    """`meanwhile` happens once, before the next write to this ledger."""

    where = LEDGER
    meanwhile: Callable[[], None] | None = None

    def replace(self, key: str, body: bytes, known: str) -> str:
        meanwhile = self.meanwhile
        if meanwhile is not None and key.endswith(self.where):
            self.meanwhile = None
            meanwhile()
        return super().replace(key, body, known)


def test_a_round_trip_beside_one_in_doubt_does_not_forget_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other has looked for what nobody heard of before there was anything, and ends after."""
    objects = Hooked()
    with opened(tmp_path, objects, "a") as (a,):
        worker = a.worker(lease=1e6)
        (first, second) = a.add(2)
        (running,) = a.claim(worker, 1)
        assert running.job == first

        def unheard(claimed: object) -> Any:
            raise StoreUnavailable("no answer")

        with monkeypatch.context() as patched:
            patched.setattr(a._bodies, "claimed", unheard)
            with pytest.raises(StoreUnavailable):
                a.claim(worker, 1)
        late = a._unheard.of(worker)
        a._unheard.settle(worker, late)
        assert [one.job for one in late] == [second]
        objects.meanwhile = lambda: a._unheard.add(worker, late)
        assert a.finish(worker, [running]) == ()
        assert [one.job for one in a.claim(worker, 1)] == [second]


def test_a_refusal_counts_once_however_often_it_was_tried(tmp_path: Path) -> None:
    """What else is in the submission makes it a write, and others are quicker, again and again."""
    objects = Hooked()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        refused = NewJob("task", caps=(CapUse("few", max_total=0),))
        a.submit([refused])
        tries = 0

        def quicker() -> None:
            nonlocal tries
            tries += 1
            b.add(1)  # which is a write itself, and must not come here again
            if tries < 3:
                objects.meanwhile = quicker

        objects.meanwhile = quicker
        a.submit([NewJob("task"), refused])
        assert tries == 3
        a._tally.flush()
        (event,) = b.events("cap_refused")
        assert event.data["count"] == 2


def test_two_round_trips_that_fail_at_once_forget_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins and fails between the first one's commit and the failure of the first."""
    with opened(tmp_path, MemoryObjects(), "a") as (a,):
        worker = a.worker(lease=1e6)
        jobs = a.add(2)

        def fail(claimed: object) -> Any:
            raise StoreUnavailable("no answer")

        def beside(claimed: object) -> Any:
            patched.setattr(a._bodies, "claimed", fail)
            with pytest.raises(StoreUnavailable):
                a.claim(worker, 1)
            fail(claimed)

        with monkeypatch.context() as patched:
            patched.setattr(a._bodies, "claimed", beside)
            with pytest.raises(StoreUnavailable):
                a.claim(worker, 1)
        claimed = a.claim(worker, 2)
        assert sorted(one.job for one in claimed) == sorted(jobs)
        assert a.finish(worker, claimed) == ()


# --- said -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"jobs": {"put"', "runs/.* is damaged .*put it back"),
        (b"\xff", "runs/.* is damaged .*put it back"),
        (b'{"later": {"put": [[1]]}}', "'later' that this Headgate does not know"),
    ],
)
def test_an_object_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes, words: str
) -> None:
    monkeypatch.setattr(replacing, "INLINE", 10)
    objects = MemoryObjects()
    with opened(tmp_path, objects, "a", "b") as (a, b):
        a.add(1)
        key = next(key for key in reversed(objects.held) if "/runs/" in key)
        good = objects.held[key]
        objects.held[key] = (body, *good[1:])
        with pytest.raises(StoreError, match=words):
            b.count(JobFilter())
        objects.held[key] = good
        assert b.count(JobFilter()) == 1


def test_who_looks_for_others_goes_on_whatever_happens(tmp_path: Path) -> None:
    failed = threading.Event()
    again = threading.Event()

    def look() -> bool:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        again.set()
        return False

    poller = Poller(tmp_path, look, 0.05)
    poller.start()
    try:
        assert failed.wait(PATIENCE)
        assert again.wait(PATIENCE)
    finally:
        poller.close()

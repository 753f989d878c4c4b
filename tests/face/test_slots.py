"""Promise: slots by hand share their groups with jobs, exactly, from any process."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate import App, DeclarationError, HeadgateError, SlotLost, UnknownLimit, WouldDeadlock
from headgate.config import Config
from headgate.stores.protocol import LimitChange, SlotRecord, SlotRequest
from headgate.testing import TestClock, drain, inline
from tests.waiting import PATIENCE, wait_until, wait_until_async


def test_the_slot_manager(app: App) -> None:
    slots = app.slots
    first = slots.try_acquire("gpu", 2, "job-1", "host-1", 30)
    second = slots.try_acquire("gpu", 2, "job-2", "host-1", timedelta(seconds=60))
    assert first is not None
    assert second is not None
    assert slots.try_acquire("gpu", 2, "job-3", "host-2", 30) is None
    assert first.slot_id != second.slot_id
    assert second.token > first.token
    assert first.expires_at.tzinfo is UTC
    assert first.expires_at == datetime.fromtimestamp(app.clock.now() + 30, UTC)
    status = slots.get_status("gpu")
    assert (status.group, status.limit, status.active) == ("gpu", 2, 2)
    seen = {(s.slot_id, s.task_id, s.worker_id) for s in status.slots}
    assert seen == {(first.slot_id, "job-1", "host-1"), (second.slot_id, "job-2", "host-1")}
    assert slots.groups() == ["gpu"]
    assert slots.release(first) is True
    assert slots.release(first) is False
    third = slots.try_acquire("gpu", 2, "job-3", "host-2", 30)
    assert third is not None
    assert slots.release(first) is False, "a stale token frees nobody else's slot"
    assert slots.get_status("gpu").active == 2
    for slot in (second, third):
        slots.release(slot)


def test_leases_end_and_are_extended(app: App) -> None:
    clock = app.clock
    assert isinstance(clock, TestClock)
    slot = app.slots.try_acquire("gpu", 1, "a", "w", 30)
    assert slot is not None
    clock.advance(20)
    slot = app.slots.extend_lease(slot, timedelta(seconds=20))
    assert slot.expires_at == datetime.fromtimestamp(clock.now() + 30, UTC)
    clock.advance(29)
    assert app.slots.try_acquire("gpu", 1, "b", "w", 30) is None
    clock.advance(2)
    other = app.slots.try_acquire("gpu", 1, "b", "w", 30)
    assert other is not None, "an ended lease does not count, swept or not"
    with pytest.raises(SlotLost, match="not held by 'a' any more"):
        app.slots.extend_lease(slot, 30)
    assert app.slots.release(slot) is False
    clock.advance(31)
    assert app.slots.cleanup_expired("gpu") == 1
    assert app.slots.cleanup_expired("gpu") == 0
    assert app.slots.get_status("gpu").slots == []


def test_whose_limit_counts(app: App) -> None:
    app.limit("declared", 1)
    slots = [app.slots.try_acquire("declared", 5, str(n), "w", 30) for n in range(3)]
    assert [slot is not None for slot in slots] == [True, False, False]
    first = app.slots.try_acquire("carried", 1, "a", "w", 30)
    assert first is not None
    assert app.slots.try_acquire("carried", 9, "b", "w", 30) is None, "the first word counts"
    app.store.change_limit(LimitChange("carried", 2, set_value=True, by="test"))
    second = app.slots.try_acquire("carried", 1, "b", "w", 30)
    assert second is not None
    with pytest.raises(UnknownLimit, match="'nowhere'"):
        app.slots.try_acquire("nowhere", None, "a", "w", 30)
    for slot in (slots[0], first, second):
        assert slot is not None
        app.slots.release(slot)


def test_units(app: App) -> None:
    wide = app.slots.try_acquire("gpu", 7, "a", "w", 30, units=5)
    assert wide is not None
    assert app.slots.try_acquire("gpu", 7, "b", "w", 30, units=3) is None
    narrow = app.slots.try_acquire("gpu", 7, "b", "w", 30, units=2)
    assert narrow is not None
    assert app.slots.get_status("gpu").active == 7
    app.slots.release(wide)
    app.slots.release(narrow)


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": ""},
        {"group": None},
        {"group": "a\0b"},
        {"limit": -1},
        {"limit": 1.5},
        {"task_id": ""},
        {"task_id": None},
        {"worker_id": 3},
        {"lease_duration": 0},
        {"lease_duration": -5},
        {"lease_duration": float("nan")},
        {"units": 0},
        {"units": -1},
    ],
)
def test_bad_input(app: App, wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "group": "g",
        "limit": 1,
        "task_id": "t",
        "worker_id": "w",
        "lease_duration": 30,
    }
    with pytest.raises(DeclarationError):
        app.slots.try_acquire(**(good | wrong))


def test_jobs_and_slots_share_groups(app: App) -> None:
    @app.task(max_concurrent=1)
    def work() -> None: ...

    slot = app.slots.try_acquire("work", None, "me", "w", 30)
    assert slot is not None
    handle = work.submit()
    assert drain(app).attempts == 0
    assert handle.status() == "ready"
    app.slots.release(slot)
    assert drain(app).succeeded == 1


def test_the_block(app: App) -> None:
    with app.slot("gpu", limit=2) as one, app.slot("gpu", limit=2):
        assert app.slots.get_status("gpu").active == 2
        assert one.lost is False
        assert one.group == "gpu"
        with (
            pytest.raises(TimeoutError, match="no room in group 'gpu'"),
            app.slot("gpu", timeout=0),
        ):
            pytest.fail("there was no room")
    assert app.slots.get_status("gpu").active == 0
    with pytest.raises(KeyError), app.slot("gpu"):
        raise KeyError
    assert app.slots.get_status("gpu").active == 0
    block = app.slot("gpu")
    with block, pytest.raises(HeadgateError, match="in use"), block:
        pass
    with block:
        assert app.slots.get_status("gpu").active == 1


def test_the_block_waits_for_room(file_app: App) -> None:
    inside = threading.Event()
    leave = threading.Event()
    order: list[str] = []

    def hold() -> None:
        with file_app.slot("gpu", limit=1):
            inside.set()
            leave.wait(PATIENCE)
            order.append("first leaves")

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(PATIENCE)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with file_app.slot("gpu", timeout=0.05):
                pass
        asyncio.get_running_loop().call_later(0.1, leave.set)
        async with file_app.slot("gpu", timeout=20):
            order.append("second enters")
        assert file_app.slots.get_status("gpu").active == 0

    asyncio.run(main())
    thread.join()
    assert order == ["first leaves", "second enters"]


def test_a_cancelled_wait_leaves_no_slot(file_app: App) -> None:
    async def main() -> None:
        async with file_app.slot("gpu", limit=1):
            waiting = [asyncio.ensure_future(enter()) for _ in range(3)]
            await wait_until_async(lambda: len(file_app.watch("room")._waiters) == 3)
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        assert file_app.slots.get_status("gpu").active == 0

    async def enter() -> None:
        async with file_app.slot("gpu", limit=1):
            entered.append("never")

    entered: list[str] = []
    asyncio.run(main())
    assert entered == []


def test_a_slot_granted_after_the_cancel_is_given_back(
    file_app: App, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process keeps the store locked, so that the grant comes after the cancel."""
    warm = file_app.slots.try_acquire("gpu", 1, "warm", "w", 30)
    assert warm is not None
    file_app.slots.release(warm)
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    asked: list[SlotRequest] = []
    take = file_app.store.take_slot

    def noted(request: SlotRequest) -> SlotRecord | None:
        asked.append(request)
        return take(request)

    monkeypatch.setattr(file_app.store, "take_slot", noted)

    async def main() -> None:
        other.execute("BEGIN IMMEDIATE")
        taking = asyncio.ensure_future(file_app.slots.atry_acquire("gpu", 1, "a", "w", 600))
        await wait_until_async(lambda: asked, why="the store is asked")
        assert not taking.done()
        taking.cancel()
        await asyncio.sleep(0)  # the task is told
        assert not taking.done()
        other.execute("COMMIT")
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert file_app.slots.get_status("gpu").active == 0

    asyncio.run(main())
    other.close()


def test_the_lease_is_renewed_while_the_block_runs(file_app: App) -> None:
    with file_app.slot("gpu", limit=1, lease_duration=0.6) as held:
        first = held.slot.expires_at
        wait_until(lambda: held.slot.expires_at >= first + timedelta(seconds=0.7))
        assert file_app.slots.try_acquire("gpu", 1, "other", "w", 1) is None
        left = held.slot.expires_at - datetime.now(UTC)
        assert left <= timedelta(seconds=0.6), "never more than one lease is left"
        assert not held.lost


def test_a_lost_slot_is_told(file_app: App) -> None:
    def lose(group: str) -> None:
        slot = file_app.slots.get_status(group).slots[0]
        assert file_app.store.drop_slot(group, slot.slot_id, None)

    def lose_and_notice() -> None:
        with file_app.slot("a", limit=1, lease_duration=0.3) as held:
            lose("a")
            wait_until(lambda: held.lost)

    def lose_and_fail() -> None:
        with file_app.slot("b", limit=1):
            lose("b")
            raise KeyError

    with pytest.raises(SlotLost, match="lost before the block ended"):
        lose_and_notice()
    with pytest.raises(KeyError) as failed:
        lose_and_fail()
    assert "was lost" in failed.value.__notes__[0], "the block's own error is not hidden"


def test_a_job_does_not_wait_for_what_it_holds(app: App) -> None:
    @app.task(max_concurrent=2)
    def work() -> str:
        with pytest.raises(WouldDeadlock, match="holds 'work'"), app.slot("work"):
            pass
        with app.slot("work", timeout=0):
            return "with a time-out it may"

    with inline(app):
        assert work.submit().result() == "with a time-out it may"


def test_async_manager(app: App) -> None:
    async def main() -> None:
        slot = await app.slots.atry_acquire("gpu", 1, "a", "w", 30)
        assert slot is not None
        slot = await app.slots.aextend_lease(slot, 60)
        assert (await app.slots.aget_status("gpu")).active == 1
        assert await app.slots.agroups() == ["gpu"]
        assert await app.slots.acleanup_expired("gpu") == 0
        assert await app.slots.arelease(slot)

    asyncio.run(main())


def _contend(url: str, out: str, rounds: int) -> None:
    app = App(url, config=Config(url=url))
    with Path(out).open("a", buffering=1) as log, app:
        for _ in range(rounds):
            with app.slot("g", limit=2):
                log.write("+\n")
                active = app.slots.get_status("g").active
                assert active <= 2, active
                log.write("-\n")


def test_exact_over_processes(url: str, tmp_path: Path) -> None:
    """Every process appends + on entering and - on leaving; never may three be inside."""
    out = tmp_path / "log"
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_contend, args=(url, str(out), 10)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    inside = most = 0
    for line in out.read_text().splitlines():
        inside += 1 if line == "+" else -1
        most = max(most, inside)
    assert inside == 0
    assert most <= 2

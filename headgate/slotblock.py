"""`with app.slot(...)`: wait for a slot, keep its lease from a thread, give it back."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING

from headgate.context import maybe_current
from headgate.errors import HeadgateError, SlotLost, StoreError, WouldDeadlock
from headgate.jobs import new_id
from headgate.limits import check_group, check_units, check_value
from headgate.options import seconds
from headgate.slots import Slot, who
from headgate.threads import in_thread
from headgate.waiting import Deadline, aringing, ringing, rung_within

if TYPE_CHECKING:
    from headgate.app import App


class HeldSlot:
    """The slot inside the block; `lost` tells long code that it is held no more."""

    def __init__(self, app: App, slot: Slot, lease: float) -> None:
        self.slot = slot
        self._app = app
        self._lease = lease
        self._lost = threading.Event()
        self._stop = threading.Event()
        self._renewer = threading.Thread(
            target=self._renew, name=f"headgate-slot-{slot.group}", daemon=True
        )
        self._renewer.start()

    @property
    def group(self) -> str:
        return self.slot.group

    @property
    def token(self) -> int:
        return self.slot.token

    @property
    def lost(self) -> bool:
        """True once the lease could not be kept: stop what the slot protects."""
        return self._lost.is_set()

    def _renew(self) -> None:
        clock = self._app.clock
        confirmed = clock.boot()
        while not self._stop.wait(self._lease / 3):
            # Only the time that has passed is added, so that a whole lease is left and never
            # more: a holder that dies is not waited for longer than that.
            sent = clock.boot()
            if sent <= confirmed:
                continue  # a clock under control that stands still
            try:
                self.slot = self._app.slots.extend_lease(self.slot, sent - confirmed)
            except SlotLost:
                self._lost.set()
                return
            except StoreError:
                # Not a loss yet: the lease still runs, and the next third may find the store
                # again. At its end somebody else may be granted the slot.
                if sent - confirmed >= self._lease * 2 / 3:
                    self._lost.set()
                    return
            else:
                confirmed = sent

    def give_back(self) -> bool:
        """Stop renewing and release; False when the slot had been lost before."""
        self._stop.set()
        self._renewer.join()
        return self._app.slots.release(self.slot) and not self.lost


class SlotBlock:
    """A slot for the time of a block. Made by `app.slot(...)`; sync and async."""

    def __init__(
        self,
        app: App,
        group: str,
        limit: int | None,
        units: int,
        timeout: float | None,
        lease_duration: float | timedelta | None,
    ) -> None:
        self._app = app
        self._group = check_group(group)
        self._limit = check_value(limit, group)
        self._units = check_units(units, group)
        self._timeout = None if timeout is None else seconds(timeout, "timeout", above=False)
        self._lease = (
            None
            if lease_duration is None
            else seconds(lease_duration, "lease_duration", above=True)
        )
        self._holder = f"slot-{new_id()}"
        self._held: HeldSlot | None = None

    def _try(self, deadline: Deadline) -> Slot | None:
        return self._app.slots.try_acquire(
            *(self._group, self._limit, self._holder, who(), self._lease_seconds()),
            units=self._units,
            waited=deadline.waited,
        )

    def _lease_seconds(self) -> float:
        return self._app.config.default_lease if self._lease is None else self._lease

    def _check(self) -> None:
        if self._held is not None:
            raise HeadgateError(f"this slot block of {self._group!r} is in use: make another one")
        ctx = maybe_current()
        if ctx is not None and self._group in ctx.holding and self._timeout is None:
            raise WouldDeadlock(
                f"job {ctx.job_id} ({ctx.task}) holds {self._group!r} and would wait for more of"
                " it: declare the task with units(n), or give a timeout"
            )

    def _take(self, slot: Slot) -> HeldSlot:
        self._held = HeldSlot(self._app, slot, self._lease_seconds())
        return self._held

    def _timed_out(self) -> TimeoutError:
        return TimeoutError(f"no room in group {self._group!r} within {self._timeout} s")

    def __enter__(self) -> HeldSlot:
        self._check()
        deadline = Deadline(self._timeout, time.monotonic)
        slot = self._try(deadline)
        if slot is not None:
            return self._take(slot)
        if deadline.passed:
            raise self._timed_out()
        with ringing(self._app.watch("room")) as rung:
            while True:
                rung.clear()
                slot = self._try(deadline)
                if slot is not None:
                    return self._take(slot)
                if deadline.passed:
                    raise self._timed_out()
                rung.wait(deadline.pause())

    async def __aenter__(self) -> HeldSlot:
        self._check()
        deadline = Deadline(self._timeout, time.monotonic)
        with aringing(self._app.watch("room")) as rung:
            while True:
                rung.clear()
                slot = await self._atry(deadline)
                if slot is not None:
                    return self._take(slot)
                if deadline.passed:
                    raise self._timed_out()
                await rung_within(rung, deadline.pause())

    async def _atry(self, deadline: Deadline) -> Slot | None:
        return await self._app.slots.atry_acquire(
            *(self._group, self._limit, self._holder, who(), self._lease_seconds()),
            units=self._units,
            waited=deadline.waited,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        held, self._held = self._held, None
        assert held is not None
        if held.give_back():
            return
        lost = SlotLost(
            f"slot {held.slot.slot_id} of {self._group!r} was lost before the block ended:"
            " another holder may have run at the same time"
        )
        if error is not None:
            error.add_note(str(lost))  # the block's own error says more
            return
        raise lost

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Shielded: a cancellation in the middle must not leave the slot held.
        await asyncio.shield(in_thread(self.__exit__, kind, error, trace))

"""Slots by hand: for code that is not a job but shares its groups.

`app.slots` is the manager, one call per operation; `app.slot(...)` is the block that waits
for a slot, keeps its lease and gives it back.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headgate.errors import DeclarationError, SlotLost
from headgate.handle import is_text
from headgate.limits import check_group, check_units, check_value
from headgate.options import seconds
from headgate.rates import refuse_slots
from headgate.stores.protocol import SlotRecord, SlotRequest
from headgate.threads import in_thread, twin

if TYPE_CHECKING:
    from headgate.app import App

MAX_HOLDER = 512


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that is held. `token` fences it: an older holder of the number changes nothing."""

    group: str
    slot_id: int
    token: int
    expires_at: datetime
    task_id: str = ""
    worker_id: str = ""
    units: int = 1


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """A slot as anyone may look at it; `expires_at` is None while it lives by its worker."""

    slot_id: int
    task_id: str
    worker_id: str
    expires_at: datetime | None
    units: int = 1


@dataclass(frozen=True, slots=True)
class ConcurrencyStatus:
    """A group at one moment; `active` counts units, `limit` None is unlimited."""

    group: str
    limit: int | None
    active: int
    slots: list[SlotInfo]


class Slots:
    """The slot manager of an app, `app.slots`.

    >>> slot = app.slots.try_acquire("gpu", 2, "import-7", "host-1", 30)   # doctest: +SKIP
    >>> if slot is not None:                                            # doctest: +SKIP
    ...     app.slots.release(slot)
    """

    def __init__(self, app: App) -> None:
        self._app = app

    def try_acquire(
        self,
        group: str,
        limit: int | None,
        task_id: str,
        worker_id: str,
        lease_duration: float | timedelta | None = None,
        *,
        units: int = 1,
        waited: float = 0.0,
    ) -> Slot | None:
        """Take a slot of the group now, or give None if there is no room.

        `limit` counts only where nothing else declares a value for the group; None leaves it
        to the declared one. The slot ends by itself after `lease_duration` seconds. Who asks
        again says for how long it has `waited` under this `task_id`: after some seconds what
        becomes free is kept for it, or a backlog of jobs would always be faster.
        """
        group = check_group(group)
        carries, value = self._carried(group, check_value(limit, group))
        record = self._app.store.take_slot(
            SlotRequest(
                group=group,
                holder=_check_text(task_id, "task_id"),
                worker=_check_text(worker_id, "worker_id"),
                lease=self._lease(lease_duration),
                limit=value,
                carries_limit=carries,
                units=check_units(units, group),
                waited=seconds(waited, "waited", above=False),
            )
        )
        if self._app.meter is not None:
            self._app.meter.slot(group, record is not None)
        return None if record is None else _slot(record)

    def release(self, slot: Slot) -> bool:
        """Give a slot back; False when it was not held any more."""
        return self._app.store.drop_slot(slot.group, slot.slot_id, slot.token)

    def extend_lease(self, slot: Slot, additional: float | timedelta) -> Slot:
        """Add `additional` seconds to what is left of a lease; raises `SlotLost` if it is gone."""
        length = seconds(additional, "additional", above=True)
        ends = self._app.store.extend_slot(slot.group, slot.slot_id, slot.token, length)
        if ends is None:
            raise SlotLost(
                f"slot {slot.slot_id} of {slot.group!r} is not held by {slot.task_id!r} any"
                " more: its lease ended or somebody released it. Stop what it protects"
            )
        return replace(slot, expires_at=_aware(ends))

    def cleanup_expired(self, group: str) -> int:
        """Remove the slots whose lease ended, and say how many. They did not count anyway."""
        return self._app.store.expire_slots(check_group(group))

    def groups(self) -> list[str]:
        """All groups with a value or a holder of their own."""
        return self._app.store.groups()

    def get_status(self, group: str) -> ConcurrencyStatus:
        """Who holds what of a group."""
        limit, held = self._app.store.group(check_group(group))
        infos = [
            SlotInfo(
                slot_id=record.slot,
                task_id=record.holder,
                worker_id=record.worker,
                expires_at=None if record.expires_at is None else _aware(record.expires_at),
                units=record.units,
            )
            for record in held
        ]
        # Of a rate it is the starts of its period: nobody holds them.
        active = limit.held if limit.pace is not None else sum(record.units for record in held)
        return ConcurrencyStatus(limit.group, limit.value, active, infos)

    # --- the same for code in an event loop ---------------------------------------------

    async def atry_acquire(
        self,
        group: str,
        limit: int | None,
        task_id: str,
        worker_id: str,
        lease_duration: float | timedelta | None = None,
        *,
        units: int = 1,
        waited: float = 0.0,
    ) -> Slot | None:
        """`try_acquire` for code in an event loop.

        If it is cancelled while the store decides, a slot that was granted is given back.
        """
        taking = asyncio.ensure_future(
            in_thread(
                *(self.try_acquire, group, limit, task_id, worker_id, lease_duration),
                units=units,
                waited=waited,
            )
        )
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            # The thread goes on and may be granted a slot that nobody would ever release.
            await asyncio.wait([taking])
            if not taking.cancelled() and taking.exception() is None:
                slot = taking.result()
                if slot is not None:
                    await in_thread(self.release, slot)
            raise

    arelease = twin(release)
    aextend_lease = twin(extend_lease)
    acleanup_expired = twin(cleanup_expired)
    agroups = twin(groups)
    aget_status = twin(get_status)

    # --- inside -------------------------------------------------------------------------

    def _lease(self, duration: float | timedelta | None) -> float:
        if duration is None:
            return self._app.config.default_lease
        return seconds(duration, "lease_duration", above=True)

    def _carried(self, group: str, passed: int | None) -> tuple[bool, int | None]:
        """What this program says the value is, for a group of which nobody else says it."""
        refuse_slots(self._app.declared_pace(group), group)
        found, value = self._app.declared_value(group)
        if found:
            return True, value
        if passed is None:
            self._app.require_limit(group)
        return passed is not None, passed


def who() -> str:
    """This process, as a holder of slots."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _slot(record: SlotRecord) -> Slot:
    assert record.expires_at is not None, "a slot taken by hand has a lease of its own"
    return Slot(
        group=record.group,
        slot_id=record.slot,
        token=record.token,
        expires_at=_aware(record.expires_at),
        task_id=record.holder,
        worker_id=record.worker,
        units=record.units,
    )


def _aware(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _check_text(value: object, what: str) -> str:
    text = value if isinstance(value, str) and is_text(value) else ""
    if not 1 <= len(text) <= MAX_HOLDER:
        raise DeclarationError(
            f"{what} must be a text of 1 to {MAX_HOLDER} characters, got {str(value)[:40]!r}"
        )
    return text

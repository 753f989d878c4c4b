"""Wake-ups: what rings, and who acts on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """What the thread that hears a bell does when it rings, or at a certain time at the latest."""

    act: Callable[[], float | None]
    """Says by when to do it again, on the monotonic clock; None: it is done."""
    done: Callable[[], None]
    """Called when it is done, and another order may be given."""
    drop: Callable[[], None]
    """Called instead when the order was taken back, or nobody hears the bell any more."""


class Bell(Protocol):
    """Rings when something changed. `fileno()` is readable then; None: poll instead."""

    def awake(self, busy: bool) -> None:
        """Who is busy need not be woken, and where that costs something, nobody tries. A bell
        is listened to from the start; after `awake(False)` it rings once more if it may have
        missed something."""
        ...

    @property
    def attends(self) -> bool:
        """Is there a thread that hears the bell and carries out orders?"""
        ...

    def attend(self, order: Order, until: float) -> bool:
        """Let the thread that hears the bell carry this out. Until it is done or dropped, the bell
        is not heard by anybody else. False: it has rung by now, or nobody hears it."""
        ...

    def dismiss(self) -> None:
        """Drop the order. If it is being carried out, that comes to its end."""
        ...

    def fileno(self) -> int | None: ...
    def drain(self) -> None: ...
    def wait(self, timeout: float) -> bool: ...
    def close(self) -> None: ...


class Unattended:
    """A bell with nobody between it and who listens: ringing costs next to nothing, and there is no
    one to give orders to."""

    def awake(self, busy: bool) -> None:
        return

    @property
    def attends(self) -> bool:
        return False

    def attend(self, order: Order, until: float) -> bool:
        return False

    def dismiss(self) -> None:
        return

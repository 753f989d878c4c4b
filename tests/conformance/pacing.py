"""Rates and the starts under them, in short."""

from __future__ import annotations

from headgate.rates import Pace
from headgate.stores.protocol import Publication
from tests.conformance.conftest import Hand, Rig


def declare(
    rig: Rig,
    value: int | None,
    per: float,
    burst: int | None = None,
    *,
    name: str = "api",
    **limits: int | None,
) -> None:
    code = {name: value, **{n.replace("_", "-"): v for n, v in limits.items()}}
    rates = {name: Pace(per, burst)}
    rig.store.publish(Publication("test", code=code, code_rates=rates))


def starts(hand: Hand, room: int = 100) -> int:
    """How many start now; they end at once."""
    found = len(hand.claim(room))
    hand.end_all()
    return found


def wake_in(hand: Hand) -> float | None:
    return hand.exchange().wake_in

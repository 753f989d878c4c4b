"""What a store costs, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.stores.protocol import Costs, Price

_KINDS = {"write": "writes", "read": "reads", "list": "lists", "delete": "deletes"}


def lines(costs: Costs) -> list[str]:
    """For people who read `headgate doctor`."""
    ledger = costs.ledger
    objects = ", ".join(f"{count:,} {name}" for name, count in costs.objects.items())
    told = [
        f"ledger  {_size(ledger.bytes)}, written {ledger.seq:,} times; {ledger.entries:,} entries,"
        f" {ledger.runs:,} runs ({_size(ledger.run_bytes)}), {_checkpoint(costs)};"
        f" format {ledger.format}",
        f"copy    {_size(ledger.copy_bytes)} on this machine",
        f"objects {objects}; {costs.unnamed:,} that nobody names",
    ]
    days = "1 day" if costs.days == 1 else f"{costs.days} days"
    told.append(
        f"counted {_requests(costs.requests)}, while {costs.jobs:,} jobs ended, on {days}"
        if costs.days
        else "counted nothing yet"
    )
    if costs.million is not None:
        told.append(f"cost    of a million jobs: {_price(costs.million)}")
    told.append(f"cost    of an idle machine with one worker, a month: {_price(costs.idle)}")
    told.append(f"        at the prices of {costs.prices}; traffic and storage come on top")
    return told


def _checkpoint(costs: Costs) -> str:
    ledger = costs.ledger
    if ledger.checkpoint is None:
        return "no checkpoint yet"
    return f"checkpoint at {ledger.checkpoint:,} ({_size(ledger.checkpoint_bytes)})"


def _price(price: Price) -> str:
    return f"{_requests(price.requests)}, about ${price.dollars:,.2f}"


def _requests(counts: Mapping[str, float]) -> str:
    return ", ".join(
        f"{counts[kind]:,.0f} {name}" for kind, name in _KINDS.items() if counts.get(kind)
    )


def _size(count: int) -> str:
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1000:,.0f} kB" if count < 1_000_000 else f"{count / 1e6:,.1f} MB"

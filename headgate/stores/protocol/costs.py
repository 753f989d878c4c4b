"""What a store costs whose every request is paid for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """Requests by kind (read, write, list, delete), and what they cost."""

    requests: Mapping[str, float]
    dollars: float


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """The object that every write replaces, and what it names."""

    format: int
    seq: int
    """How many times it was written."""
    bytes: int
    entries: int
    """That stand in the ledger itself."""
    runs: int
    run_bytes: int
    checkpoint: int | None
    """The entry up to which the checkpoint goes."""
    checkpoint_bytes: int
    copy_bytes: int
    """Of this machine's copy."""


@dataclass(frozen=True, slots=True)
class Costs:
    days: int
    """On how many days the requests were counted."""
    jobs: int
    """That ended on them."""
    requests: Mapping[str, int]
    million: Price | None
    """For a million jobs, at the rate that was measured; None: too few jobs to tell."""
    idle: Price
    """For a machine with one worker and nothing to do, a month."""
    prices: str
    """Whose they are, and of when."""
    ledger: LedgerRecord
    objects: Mapping[str, int]
    """How many there are, by folder."""
    unnamed: int
    """That nobody names: left behind, and deleted after an hour."""

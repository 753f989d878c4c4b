"""Caps and submissions, in short."""

from __future__ import annotations

from typing import Any

from headgate.jobs import CapUse, NewJob, Submitted
from tests.conformance.conftest import Rig


def cap(
    total: int | None = None, *, group: str = "tenant/acme", waiting: int | None = None, **more: Any
) -> CapUse:
    return CapUse(group, max_total=total, max_waiting=waiting, **more)


def put(rig: Rig, *caps: CapUse, count: int = 1, **fields: Any) -> list[Submitted]:
    jobs = [NewJob("task", caps=caps, **fields) for _ in range(count)]
    return rig.store.submit(jobs)


def one(rig: Rig, *caps: CapUse, **fields: Any) -> Submitted:
    (submitted,) = put(rig, *caps, **fields)
    return submitted


def accepted(results: list[Submitted]) -> int:
    return sum(result.refused is None for result in results)

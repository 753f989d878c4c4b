"""Fairness: what each key got of the starts and of the running time, against its weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from headgate.stores.protocol import EndRecord
from headgate.web import asked
from headgate.web.site import Site, site_of

SEEN = 2000
SHOWN = 100


@dataclass(slots=True)
class Share:
    """One fairness key, among the last jobs that ended."""

    key: str
    weight: int = 1
    starts: int = 0
    ran: float = 0.0
    waits: list[float] = field(default_factory=list[float])
    part: float = 0.0
    ran_part: float = 0.0
    expected: float = 0.0

    @property
    def median(self) -> float:
        return sorted(self.waits)[len(self.waits) // 2] if self.waits else 0.0

    @property
    def longest(self) -> float:
        return max(self.waits, default=0.0)


def shares(ends: Iterable[EndRecord], weights: Mapping[str, int]) -> list[Share]:
    """What each key got. Only keys that had something to run are there, so the share that a key
    is due is its weight among theirs: while all of them wait, that is what turns give."""
    found: dict[str, Share] = {}
    for end in ends:
        if end.turn and end.started_at is not None:
            share = found.setdefault(end.turn, Share(end.turn, weights.get(end.turn, 1)))
            share.starts += 1
            share.ran += end.at - end.started_at
            share.waits.append(max(0.0, end.started_at - end.due_at))
    starts = sum(share.starts for share in found.values()) or 1
    ran = sum(share.ran for share in found.values()) or 1.0
    weight = sum(share.weight for share in found.values()) or 1
    for share in found.values():
        share.part, share.ran_part = share.starts / starts, share.ran / ran
        share.expected = share.weight / weight
    return sorted(found.values(), key=lambda share: (-share.part, share.key))


def weights_of(site: Site) -> dict[str, int]:
    """What code and files declare, and what operators said over that."""
    weights = dict(site.app.weights)
    for said in site.store.words():
        if said.weight is not None and said.weight.value:
            weights[said.group] = said.weight.value
            weights[said.group.partition("/")[2] or said.group] = said.weight.value
    return weights


def fairness(request: Request) -> Response:
    site = site_of(request)
    task = asked.text(asked.query(request), "task")
    ends = site.store.ends(limit=SEEN)
    tasks = sorted({end.task for end in ends if end.turn})
    found = shares((end for end in ends if not task or end.task == task), weights_of(site))
    return site.page(
        request,
        "fairness.html",
        now=site.store.now(),
        shares=found[:SHOWN],
        total=len(found),
        seen=len(ends),
        since=ends[-1].at if ends else None,
        task=task,
        tasks=tasks,
    )

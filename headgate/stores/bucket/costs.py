"""What requests cost, from those that were counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from headgate.stores.bucket.commits import Commits
from headgate.stores.bucket.layout import Layout
from headgate.stores.bucket.ledger import FORMAT
from headgate.stores.bucket.patience import patiently
from headgate.stores.bucket.replica import Head
from headgate.stores.bucket.traffic import JOBS, measured
from headgate.stores.protocol import Costs, LedgerRecord, Price

PRICES = "AWS S3 Standard, us-east-1, mid 2025"
PER_THOUSAND = {"write": 0.005, "list": 0.005, "read": 0.0004, "delete": 0.0}
"""Dollars."""
MONTH = 30 * 86400.0
LEASE = 30.0
RENEWALS = 3
"""In the time of a lease, which each are a write."""
ENOUGH = 100
"""Jobs from which an estimate can be made."""


def price(requests: Mapping[str, float]) -> Price:
    cost = sum(count / 1000 * PER_THOUSAND[kind] for kind, count in requests.items())
    return Price(dict(requests), cost)


def of_million(counted: Counter[str]) -> Price | None:
    jobs = counted[JOBS]
    if jobs < ENOUGH:
        return None
    return price({kind: counted[kind] / jobs * 1e6 for kind in PER_THOUSAND})


def of_idle(poll: float) -> Price:
    return price({"write": MONTH / LEASE * RENEWALS, "read": MONTH / poll})


def measure(commits: Commits, poll: float) -> Costs:
    with commits.looking() as tx:
        days, counted = measured(tx)
        head = commits.replica.head(tx.connection)
        entries = len(commits.replica.recent(tx.connection))
    assert head is not None, "the copy was brought up to date before"
    stored = commits.keeper.stored()
    named = commits.keeper.named()
    return Costs(
        days=days,
        jobs=counted[JOBS],
        requests={kind: counted[kind] for kind in PER_THOUSAND},
        million=of_million(counted),
        idle=of_idle(poll),
        prices=PRICES,
        ledger=_ledger(commits, head, entries),
        objects=_by_folder(commits.layout, [one.key for one in stored]),
        unnamed=sum(one.key not in named for one in stored),
    )


def _ledger(commits: Commits, head: Head, entries: int) -> LedgerRecord:
    got = patiently(lambda: commits.objects.get(commits.layout.ledger))
    return LedgerRecord(
        format=FORMAT,
        seq=head.seq,
        bytes=0 if got is None else len(got.body),
        entries=entries,
        runs=len(head.runs),
        run_bytes=sum(run.bytes for run in head.runs),
        checkpoint=None if head.checkpoint is None else head.checkpoint.seq,
        checkpoint_bytes=0 if head.checkpoint is None else head.checkpoint.bytes,
        copy_bytes=sum(file.stat().st_size for file in commits.replica.folder.glob("replica.db*")),
    )


def _by_folder(layout: Layout, keys: list[str]) -> dict[str, int]:
    folders = {
        "runs": layout.runs, "checkpoints": layout.checkpoints,
        "parts": layout.parts, "bodies": layout.bodies, "probes": layout.probes,
    }  # fmt: skip
    return {name: sum(key.startswith(prefix) for key in keys) for name, prefix in folders.items()}

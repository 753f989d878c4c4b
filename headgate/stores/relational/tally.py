"""What caps did, as events with a count: one per cap and minute, not one per refusal."""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headgate.caps import wait_of
from headgate.errors import StoreError
from headgate.jobs import NewJob, Submitted
from headgate.stores.forking import ours
from headgate.stores.relational.events import record
from headgate.stores.relational.transaction import Transaction

log = logging.getLogger("headgate.store")

MINUTE = 60.0
PAUSE = 1.0
"""Seconds in which a process writes down what was refused once at most."""

Key = tuple[str, str, str, int]
"""Kind, group, rule, cap."""


def note(tx: Transaction, kind: str, group: str, count: int, **data: Any) -> None:
    """So many more of these in this minute."""
    since = tx.now - tx.now % MINUTE
    known = tx.row(tx.sql.caps.counted, {"kind": kind, "subject": group, "since": since})
    # Where many write at once, a row that somebody else writes now is left to it.
    if known is None:
        record(tx, kind, group, count=count, **data)
        return
    total = json.loads(known["data"])["count"] + count
    text = json.dumps({**data, "count": total}, ensure_ascii=False)
    tx.run(tx.sql.caps.count, {"seq": known["seq"], "data": text})


class Tally:
    """The refusals of this process. The first is written down at once, then what comes in a
    pause together, at the latest when the process ends; one that is killed in a pause takes its
    last count with it."""

    def __init__(self, do: Callable[[Callable[[Transaction], None]], object]) -> None:
        self._do = do
        self._lock = threading.Lock()
        self._counts: dict[Key, int] = {}
        self._timer: threading.Timer | None = None
        self._process = os.getpid()

    def add(self, jobs: Sequence[NewJob], results: Iterable[Submitted]) -> None:
        """Count what was not stored. Those who submit without caps never come here."""
        keys: list[Key] = []
        for job, result in zip(jobs, results, strict=True):
            if result.refused is not None:
                if wait_of(job, result) > 0:
                    continue  # it is tried again, and counts when it is given up
                refused = result.refused
                keys.append(("cap_refused", refused.group, refused.rule, refused.cap))
            elif job.caps and result.existing and result.id != job.id and not job.idempotency_key:
                # Which of them was full is not told; one that skips was.
                skips = (cap.group for cap in job.caps if cap.when_full == "skip")
                keys.append(("cap_skipped", next(skips, job.caps[0].group), "", 0))
        if not keys:
            return
        self._mind_forks()
        with self._lock:
            for key in keys:
                self._counts[key] = self._counts.get(key, 0) + 1
            if self._timer is not None:
                return
            self._timer = threading.Timer(PAUSE, ours(self.flush))
            self._timer.daemon = True
            self._timer.start()
            atexit.register(self._at_exit)
        self._put_down()

    def _mind_forks(self) -> None:
        """What was counted before is the parent's, and so is the timer, which may have held the
        lock when we were forked: here nobody would ever give it back."""
        if self._process != os.getpid():
            self._process, self._timer, self._counts = os.getpid(), None, {}
            self._lock = threading.Lock()

    def _at_exit(self) -> None:
        if self._process == os.getpid():
            self.flush()

    def flush(self) -> None:
        self._mind_forks()
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            atexit.unregister(self._at_exit)
        self._put_down()

    def _put_down(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, {}
        if not counts:
            return
        try:
            self._do(lambda tx: _note_all(tx, counts))
        except StoreError as error:
            # What was refused is refused, and its caller was told; only the record lacks it.
            log.warning("refusals by caps could not be recorded: %s (%s)", counts, error)


def _note_all(tx: Transaction, counts: Mapping[Key, int]) -> None:
    for (kind, group, rule, cap), count in sorted(counts.items()):
        data = {"rule": rule, "cap": cap} if rule else {}
        note(tx, kind, group, count, **data)

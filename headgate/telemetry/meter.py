"""What an app and the loops of its workers have to tell, and to whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headgate.limits import split_group
from headgate.telemetry import names
from headgate.telemetry.counts import MOST

if TYPE_CHECKING:
    from headgate.jobs import Claimed, Finish, NewJob, Refusal, Submitted
    from headgate.telemetry.counts import Sink

_FINAL = ("succeeded", "failed", "cancelled")


class Meter:
    """Told by an app and by a worker process; any thread may call."""

    def __init__(self) -> None:
        self.sinks: list[Sink] = []
        self.keyed: frozenset[str] = frozenset()
        """Limits whose keys are told apart."""
        self._offset = 0.0
        """From the clock of the event loop to that of the store."""
        self._known: set[str] = set()

    def label(self, group: str) -> str:
        """The limit's name; the whole group where its keys are told apart."""
        if not self.keyed:
            return group.partition("/")[0]
        name, key = split_group(group)
        return group if key is not None and name in self.keyed else name

    def know(self, tasks: Iterable[str]) -> None:
        """From here on they are counted, at first as none: of a counter that begins with its first
        failure nobody would see that it grew."""
        for task in tasks:
            if task not in self._known and len(self._known) < MOST:
                self._known.add(task)
                for outcome in _FINAL:
                    self._add(names.ENDED, (task, outcome), 0)

    # --- submit, slots by hand ------------------------------------------------------------------

    def submitted(self, jobs: Sequence[NewJob], done: Sequence[Submitted]) -> None:
        for job, one in zip(jobs, done, strict=True):
            if one.refused is not None:
                self.refused(one.refused)
                self._add(names.SUBMITTED, (job.task, "refused"))
            else:
                self._add(names.SUBMITTED, (job.task, "existing" if one.existing else "stored"))

    def refused(self, refusal: Refusal) -> None:
        self._add(names.ACQUISITION, (self.label(refusal.group), "rejected"))

    def slot(self, group: str, taken: bool) -> None:
        result = "acquired" if taken else "rejected"
        self._add(names.ACQUISITION, (self.label(group), result))

    # --- attempts -------------------------------------------------------------------------------

    def round_trip(self, seconds: float, claimed: int | None) -> None:
        result = "failed" if claimed is None else "claimed" if claimed else "empty"
        self._observe(names.CLAIM, (result,), seconds)

    def started(self, claimed: Claimed, now: float) -> None:
        """`now` on the monotonic clock. Of what was reserved ahead the store does not know
        yet when it started, so its clock is taken from the last one that came to start at once."""
        if not claimed.reserved:
            self._offset = claimed.started_at - now
        waited = max(0.0, now + self._offset - claimed.ready_at)
        self._observe(names.QUEUE_WAIT, (claimed.queue,), waited)
        for group, _ in claimed.groups:
            label = self.label(group)
            self._add(names.ACQUISITION, (label, "acquired"))
            self._observe(names.WAIT, (label,), waited)

    def ended(self, claimed: Claimed, seconds: float | None, told: Finish | None) -> None:
        """`seconds` None: its code never ran. `told` None: it was lost to others."""
        outcome = "lost" if told is None else told.outcome
        self._add(names.ATTEMPTS, (claimed.task, outcome))
        if outcome in _FINAL:
            self._add(names.ENDED, (claimed.task, outcome))
        if seconds is not None and outcome != "returned":
            self._observe(names.DURATION, (claimed.task,), seconds)

    def _add(self, family: names.Family, labels: tuple[str, ...], by: float = 1) -> None:
        for sink in self.sinks:
            sink.add(family, labels, by)

    def _observe(self, family: names.Family, labels: tuple[str, ...], value: float) -> None:
        for sink in self.sinks:
            sink.observe(family, labels, value)

"""Events: who changed what, what was lost, what was refused."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headgate.web import asked
from headgate.web.site import site_of

PAGE = 100
KINDS = (
    "limit_changed", "queue_paused", "queue_resumed", "slot_released", "cap_refused",
    "cap_skipped", "worker_started", "worker_stopped", "worker_lost", "worker_stalled",
    "attempt_lost", "attempt_overdue", "attempt_overran", "job_cancelled", "cancel_requested",
    "job_retried", "job_moved", "job_expired", "schedule_declared", "schedule_changed",
    "schedule_paused", "schedule_resumed", "schedule_run_now", "run_merged", "runs_removed",
)  # fmt: skip


def events(request: Request) -> Response:
    site = site_of(request)
    cells = asked.query(request)
    kind, subject = asked.text(cells, "kind"), asked.text(cells, "subject")
    before = asked.whole(cells, "before") if cells.get("before") else None
    found = site.store.past_events(kind, subject, before, PAGE)
    return site.page(
        request,
        "events.html",
        now=site.store.now(),
        events=found,
        kind=kind,
        kinds=KINDS,
        subject=subject,
        paged=before is not None,
        before=found[-1].seq if len(found) == PAGE else None,
    )

"""What `--json` prints: plain data with stable names."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from headgate.jobs import AttemptRecord, Failure, JobRecord
from headgate.limits import Need
from headgate.stores.protocol import (
    EventRecord,
    LimitRecord,
    QueueRecord,
    ScheduleRecord,
    SlotRecord,
    TickRecord,
    Word,
    WorkerRecord,
)
from headgate.why import Explained


def moment(t: float | None) -> str | None:
    """A time as ISO 8601 in UTC."""
    return None if t is None else datetime.fromtimestamp(t, UTC).isoformat()


def _need(need: Need) -> dict[str, object]:
    return {"group": need.group, "units": need.units}


def _failure(error: Failure | None) -> dict[str, str] | None:
    return None if error is None else asdict(error)


def _decoded(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def job(record: JobRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "task": record.task,
        "state": record.state,
        "reason": record.reason,
        "queue": record.queue,
        "priority": record.priority,
        "turn": record.turn,
        "args": _decoded(record.args),
        "options": _decoded(record.options),
        "needs": {
            "all": [_need(need) for need in record.needs.all],
            "one_of": [[_need(need) for need in members] for members in record.needs.one_of],
        },
        "created_at": moment(record.created_at),
        "run_at": moment(record.run_at),
        "ready_at": moment(record.ready_at),
        "started_at": moment(record.started_at),
        "finished_at": moment(record.finished_at),
        "expires_at": moment(record.expires_at),
        "attempt": record.attempt,
        "token": record.token,
        "worker": record.worker,
        "groups": list(record.groups),
        "progress": record.progress,
        "progress_text": record.progress_text,
        "cancel_requested": record.cancel_requested,
        "result": _decoded(record.result),
        "error": _failure(record.error),
        "idempotency_key": record.idempotency_key,
        "parent": record.parent,
    }


def attempt(record: AttemptRecord) -> dict[str, Any]:
    return {
        "attempt": record.attempt,
        "token": record.token,
        "worker": record.worker,
        "started_at": moment(record.started_at),
        "ended_at": moment(record.ended_at),
        "outcome": record.outcome,
        "reason": record.reason,
        "groups": list(record.groups),
        "error": _failure(record.error),
    }


def limit(record: LimitRecord) -> dict[str, Any]:
    return {
        "group": record.group,
        "limit": record.value,
        "source": record.source,
        "paused": record.paused,
        "paused_by": record.paused_by,
        "active": record.held,
        "holders": record.holders,
        "declared": record.declared,
        "keyed": record.keyed,
        "per": None if record.pace is None else record.pace.per,
        "burst": None if record.pace is None else record.pace.burst,
        "opens_at": moment(record.opens_at),
        "reserved_by": record.reserved_by,
        "disagree": [{"declarer": who, "limit": value} for who, value in record.disagree],
        "override": word(record.override),
        "pause": word(record.pause),
        "weight": word(record.weight),
        "orphaned": record.orphaned,
    }


def word(said: Word | None) -> dict[str, Any] | None:
    """What an operator said: a limit (null: unlimited), a pause or a weight."""
    if said is None:
        return None
    return {
        "value": said.value,
        "by": said.by,
        "reason": said.reason,
        "at": moment(said.at),
        "until": moment(said.until),
    }


def why(explained: Explained) -> dict[str, Any]:
    """Why a job is where it is; the fields are documented in operate.md."""
    facts = explained.why
    return {
        "id": facts.job.id,
        "state": facts.job.state,
        "code": facts.code,
        "text": explained.text,
        "groups": [limit(group) for group in facts.groups],
        "holders": [
            {"group": held.group, **slot(held), "lease_ends": moment(held.lease_ends)}
            for held in facts.holders
        ],
        "ahead": facts.ahead,
        "ahead_bounded": facts.ahead_bounded,
        "before": facts.before,
        "before_bounded": facts.before_bounded,
        "turns": facts.turns,
        "until": moment(facts.until),
        "typical_secs": facts.typical,
        "measured": facts.measured,
        "estimated_start": moment(facts.estimated_start),
        "detail": facts.detail,
    }


def slot(record: SlotRecord) -> dict[str, Any]:
    return {
        "slot_id": record.slot,
        "task_id": record.holder,
        "worker_id": record.worker,
        "token": record.token,
        "units": record.units,
        "since": moment(record.since),
        "expires_at": moment(record.expires_at),
        "job": record.job,
        "overdue": record.overdue,
    }


def queue(record: QueueRecord) -> dict[str, Any]:
    return {
        "queue": record.name,
        "paused": record.paused,
        "paused_by": record.paused_by,
        "waiting": record.waiting,
        "waiting_bounded": record.bounded,
        "running": record.running,
        "scheduled": record.scheduled,
        "oldest_ready_at": moment(record.oldest_ready_at),
    }


def schedule(record: ScheduleRecord, *, task: str, state: str) -> dict[str, Any]:
    spec = record.spec
    return {
        "schedule": spec.name,
        "when": spec.when,
        "timezone": spec.timezone,
        "task": task,
        "state": state,
        "next_at": None if record.paused else moment(record.next_at),
        "last_at": moment(record.last_at),
        "last_run_at": moment(record.last_run_at),
        "last_job": record.last_job,
        "paused": record.paused,
        "paused_by": record.paused_by,
        "reason": record.reason,
        "start": moment(spec.start),
        "end": moment(spec.end),
        "jitter": spec.jitter,
        "missed": spec.missed,
        "missed_window": spec.missed_window,
        "late": spec.late,
        "pile_up": spec.pile_up,
        "skip_if_running": spec.skip_if_running,
        "source": spec.source,
        "declarers": list(record.declarers),
    }


def tick(record: TickRecord) -> dict[str, Any]:
    return {
        "schedule": record.schedule,
        "at": moment(record.at),
        "outcome": record.outcome,
        "job": record.job,
        "recorded_at": moment(record.recorded_at),
        "through": moment(record.through),
        "count": record.count,
        "by": record.by,
    }


def worker(record: WorkerRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state,
        "host": record.host,
        "pid": record.pid,
        "queues": list(record.queues),
        "groups": None if record.serves is None else list(record.serves),
        "tasks": list(record.tasks),
        "concurrency": record.concurrency,
        "running": record.running,
        "started_at": moment(record.started_at),
        "lease_ends": moment(record.lease_ends),
    }


def event(record: EventRecord) -> dict[str, Any]:
    return {
        "seq": record.seq,
        "at": moment(record.at),
        "kind": record.kind,
        "subject": record.subject,
        "by": record.who,
        **record.data,
    }

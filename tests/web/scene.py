"""A store in which something of everything is going on, for pages to show."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from headgate import App, Limit
from headgate.jobs import Claimed, Failure, Finish, JobFilter, NewJob, Progress
from headgate.limits import Need, Needs
from headgate.schedules.rounds import Rounds
from headgate.stores.protocol import (
    Claim,
    Exchange,
    Exchanged,
    NewWorker,
    Output,
    OutputPiece,
    Registration,
    SlotRequest,
    Store,
)
from headgate.turns import ClaimState
from tests.waiting import wait_until

HOSTILE = "<script>alert('x')</script>\"'&\u202e</title></textarea>{{977*983}}"
"""Whatever anybody may put into an argument, a name or a reason."""


@dataclass
class Scene:
    app: App
    store: Store
    worker: str
    registration: Registration
    jobs: dict[str, str] = field(default_factory=dict)
    """One of each kind: ready, running, failed, …"""
    running: list[Claimed] = field(default_factory=list)

    def close(self) -> None:
        self.store.declare_dead(self.worker, "the scene is over")
        for fd in self.registration.fds:
            os.close(fd)
        self.app.close()


def make_app(url: str) -> App:
    app = App(url)
    app.limit("payments-api", 3)
    app.limit("gpu-memory", 24)
    tenant = Limit("tenant", 2, key="tenant_id")

    @app.task(limits=["payments-api", tenant], fair_by="tenant_id", retries=3)
    def charge(tenant_id: str, amount: int, api_key: str = "") -> None: ...

    @app.task(limits=[Limit("gpu-memory", 24).units(8)])
    def render(scene: str) -> None: ...

    @app.task(queue="mail")
    def letter(to: str, text: str = "") -> None: ...

    app.schedule("nightly", letter.call("everyone"), "0 2 * * *")
    app.schedule("hourly-report", letter.call("ops"), "H * * * *", timezone="Europe/Berlin")
    return app


def needs(*groups: str, units: int = 1) -> Needs:
    cells = (group.partition("/") for group in groups)
    return Needs(tuple(Need(name, key if slash else None, units) for name, slash, key in cells))


class Hand:
    """A worker by hand."""

    def __init__(self, app: App, name: str = "web-1") -> None:
        self.store = app.store
        self.id = uuid.uuid4().hex
        self.tasks = frozenset(app.tasks)
        self.state = ClaimState()
        self.registration = self.store.register(
            NewWorker(
                self.id,
                name,
                host="build-7",
                pid=os.getpid(),
                tasks=tuple(app.tasks),
                concurrency=12,
                lease=600.0,
            )
        )

    def claim(self, room: int) -> list[Claimed]:
        """As a worker does: where others are in the way, or a limit has just changed, it is asked
        to come again soon."""
        claim = Claim(room=room, tasks=self.tasks, state=self.state)

        def answered() -> Exchanged | None:
            answer = self.store.exchange(Exchange(self.id, claim=claim))
            soon = 0.0 if answer.more else answer.wake_in
            return answer if answer.claimed or soon is None or soon > 0.2 else None

        return list(wait_until(answered).claimed)

    def tell(self, *finishes: Finish, progress: Sequence[Progress] = ()) -> None:
        assert not self.store.exchange(Exchange(self.id, finishes, progress)).stale


def charge(tenant: str, **more: object) -> NewJob:
    return NewJob(
        "charge",
        args=f'{{"tenant_id": "{tenant}", "amount": 1250, "api_key": "sk_live_42"}}',
        needs=needs("payments-api", f"tenant/{tenant}"),
        turn=tenant,
        fair_limit="tenant",
        **more,  # type: ignore[arg-type]
    )


def make(url: str) -> Scene:
    app = make_app(url)
    store = app.store
    hand = Hand(app)
    store.publish(app.publication("web-1"))
    store.declare_schedules(app.declared_schedules("web-1"))
    Rounds(store).round()
    scene = Scene(app, store, hand.id, hand.registration)
    done = [charge(tenant) for tenant in ("acme", "globex", "initech") for _ in range(4)]
    done += [
        NewJob("letter", queue="mail", args='{"to": "customer@example.com"}') for _ in range(6)
    ]
    store.submit(done)
    ended = 0
    while claimed := hand.claim(5):
        for one in claimed:
            ended += 1
            if ended % 7 == 3:
                error = Failure("PaymentError", "card declined", "Traceback …\nPaymentError")
                hand.tell(Finish(one.token, "failed", error=error))
                scene.jobs["failed"] = one.job
            else:
                hand.tell(Finish(one.token, "succeeded", result='{"ok": true}'))
                scene.jobs["succeeded"] = one.job
    render = NewJob("render", args='{"scene": "harbour"}', needs=needs("gpu-memory", units=8))
    more = [charge(tenant) for tenant in ("acme", "acme", "acme", "globex", "umbrella")]
    store.submit([*more, *more, render])
    scene.running = hand.claim(4)
    scene.jobs["running"] = scene.running[0].job
    hand.tell(progress=[Progress(scene.running[0].token, 0.4, "4 of 10")])
    pieces = [OutputPiece(n, "out", 1.0, n * 20, b"step %d of ten, fine\n" % n) for n in range(8)]
    store.put_output([Output(scene.running[0].token, pieces)])
    hostile = store.submit(
        [
            NewJob("letter", queue="mail", args=_json({"to": HOSTILE, HOSTILE: [HOSTILE]})),
            charge("later", delay=4000.0),
            NewJob("unknown-task", routed=False),
        ]
    )
    scene.jobs["hostile"], scene.jobs["scheduled"], scene.jobs["unrouted"] = (
        told.id for told in hostile
    )
    for job in store.browse(_READY).jobs:
        if job.task == "charge":
            scene.jobs["ready"] = job.id
    store.take_slot(SlotRequest("gpu-memory", "notebook of the analyst", "laptop", 3600.0))
    app.concurrency.set("tenant/acme", 4, reason=f"their migration {HOSTILE}", by="operator")
    app.concurrency.pause("tenant/umbrella", reason="not paid", by="on-call")
    store.pause_queue("mail", True, by="operator", reason="the provider is down")
    return scene


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


_READY = JobFilter(states=frozenset(("ready",)))

"""Right uses: the type checker must find nothing here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from headgate import Aborted, App, Cap, Context, Job, JobHandle, Limit, OneOf, Refusal
from headgate.calls import Call
from headgate.stores.protocol import LimitRecord

app = App("sqlite:///:memory:")
api = app.limit("payments-api", 10)
tenant = app.limit("tenant", 2, key="tenant_id")
gpu = app.limit("gpu-memory", 24)
app.limit("host-a", 2)


@app.task
def hello(name: str, times: int = 1) -> str:
    return name * times


@app.task(max_concurrent=5)
def resize(path: str) -> None: ...


@app.task("charge", limits=[api, tenant], retries=5, timeout=60)
async def charge(ctx: Context, tenant_id: str, amount: int) -> str:
    return f"{ctx.job_id} {tenant_id} {amount}"


@app.task(limits=[gpu.units(6), OneOf("host-a", Limit("host-b", 1))], timeout=timedelta(hours=1))
def train(ctx: Context, run: int) -> float:
    follow = ctx.submit(resize.call("a.png"))
    assert_type(follow, JobHandle[None])
    direct = ctx.submit(hello, "you", times=2)
    assert_type(direct, JobHandle[str])
    with ctx.released():
        ctx.progress(0.5, "half")
    return run / 2


@app.task
async def fetch(url: str, ctx: Context) -> bytes:
    return url.encode()


@app.task("send_email", payload=True, max_concurrent=50)
async def send_email(data: Any, ctx: Any) -> int:
    return 1


def plain(n: int) -> int:
    return n


named = app.task("plain", max_concurrent=1)(plain)

assert_type(hello("you", times=2), str)
assert_type(hello.submit("you"), JobHandle[str])
assert_type(hello.submit(name="you", times=3).result(timeout=1), str)
assert_type(resize.submit("a.png").result(), None)
assert_type(charge.submit(tenant_id="acme", amount=3), JobHandle[str])
assert_type(charge.submit("acme", 3).result(), str)
assert_type(charge.using(priority=-5, delay=60, queue="slow").submit("acme", 1), JobHandle[str])
assert_type(train.submit(run=3).result(), float)
assert_type(train(3), float)
assert_type(named.submit(3).result(), int)
assert_type(send_email.submit({"to": "x"}).result(), int)
assert_type(hello.call("x"), Call[str])
hello.using(run_at=datetime.now(UTC), idempotency_key="k", expires=None, timeout=timedelta(1))
app.submit("heavy", {"n": 1}, concurrency_group="heavy", concurrency_limit=5, strict=True)
handles = app.submit_many([charge.call("acme", 1), resize.call("a.png")])
assert_type(handles, list[JobHandle[str | None]])


async def later() -> None:
    assert_type(await charge("acme", 3), str)
    handle = await charge.asubmit("acme", amount=3)
    assert_type(handle, JobHandle[str])
    assert_type(await handle.aresult(timeout=3), str)
    many = await app.asubmit_many([charge.call("acme", 1), hello.call("a")])
    assert_type(many, list[JobHandle[str]])
    async with app.slot("gpu", limit=2) as held:
        assert_type(held.lost, bool)


@app.job
class ProcessUserData(Job):
    limits = (api, "host-a")
    retries = 3
    one_per = "user_id"

    def __init__(self, user_id: int, note: str = "") -> None:
        self.user_id = user_id

    def run(self) -> int:
        self.context.progress(0.5)
        return self.user_id

    def on_aborted(self, aborted: Aborted) -> None:
        assert_type(aborted.reason, str)


@app.job("sync", caps=[Cap("tenant", max_total=5, key="tenant_id")], cap_at_submit="skip")
class Sync(Job):
    async def run(self) -> str:
        return "done"

    def get_concurrency_key(self) -> str:
        return "x"

    def get_concurrency_limit(self) -> int | None:
        return 2


assert_type(ProcessUserData(42), ProcessUserData)
assert_type(ProcessUserData(42).run(), int)
assert_type(ProcessUserData(42, note="x").run_in_worker(), JobHandle[int])
assert_type(Sync().run_in_worker(delay=60, concurrency_key="y").result(), str)
assert_type(hello.submit("you").refused, Refusal | None)
hello.using(caps=[Cap("hello", max_waiting=3, when_full="block", timeout=5)], unique_for=60)


async def classes(ctx: Context) -> None:
    assert_type(await Sync().arun_in_worker(), JobHandle[str])
    assert_type(await ProcessUserData(1).arun_in_worker(queue="slow"), JobHandle[int])
    ctx.submit(Sync(), priority=3)
    app.submit_many([Sync().call()])


async def twins() -> None:
    changed = await app.concurrency.aset("payments-api", 3, reason="slow", lasts=60)
    assert_type(changed, LimitRecord)
    assert_type(await app.concurrency.als(), list[LimitRecord])
    assert_type(await app.slots.agroups(), list[str])

"""Wrong uses: the type checker must complain about every marked line, and no other."""

from __future__ import annotations

from headgate import App, Cap, Context, Job

app = App("sqlite:///:memory:")


@app.task
def hello(name: str, times: int = 1) -> str:
    return name * times


@app.task("charge", retries=5)
async def charge(ctx: Context, tenant_id: str, amount: int) -> str:
    return f"{tenant_id} {amount}"


@app.task(payload=True)
def handler(data: object) -> int:
    return 1


hello.submit(3)  # wrong: reportArgumentType
hello.submit()  # wrong: reportCallIssue
hello.submit("you", 2, 3)  # wrong: reportCallIssue
hello.submit("you", loud=True)  # wrong: reportCallIssue
hello.call(None)  # wrong: reportArgumentType
hello(3)  # wrong: reportArgumentType
charge.submit(tenant_id="acme", amount="3")  # wrong: reportArgumentType
charge.submit("acme")  # wrong: reportCallIssue
charge.using(priority="high")  # wrong: reportArgumentType
charge.using(colour="red")  # wrong: reportCallIssue
charge.using(priority=1).submit("acme", "x")  # wrong: reportArgumentType
handler.submit()  # wrong: reportCallIssue
number: int = hello.submit("you").result()  # wrong: reportAssignmentType
text: int = charge.submit("acme", 1).result()  # wrong: reportAssignmentType
gone: str = charge("acme", 3)  # wrong: reportAssignmentType
app.task(retries="many")  # wrong: reportArgumentType
app.task(colour="red")  # wrong: reportCallIssue
app.submit("heavy", {}, colour="red")  # wrong: reportCallIssue
app.submit_many([hello])  # wrong: reportArgumentType


@app.task(max_concurrent=2)
def looks_in(ctx: Context, n: int) -> None:
    ctx.submit(hello, 3)  # wrong: reportArgumentType
    ctx.submit(hello.call(3))  # wrong: reportArgumentType
    ctx.missing()  # wrong: reportAttributeAccessIssue reportUnknownMemberType


@app.job
class Report(Job):
    def __init__(self, month: str) -> None:
        self.month = month

    def run(self) -> int:
        return self.context.attempt


Report()  # wrong: reportCallIssue
Report(3)  # wrong: reportArgumentType
Report("may").run_in_worker(colour="red")  # wrong: reportCallIssue
Report("may").run_in_worker(priority="high")  # wrong: reportArgumentType
shown: str = Report("may").run_in_worker().result()  # wrong: reportAssignmentType
Cap("a", max_total="3")  # wrong: reportArgumentType
Cap("a", max_total=3, when_full="wait")  # wrong: reportArgumentType
app.job(hello)  # wrong: reportCallIssue reportArgumentType


async def twins() -> None:
    await app.concurrency.aset("api", "3", reason="slow")  # wrong: reportArgumentType
    await app.concurrency.aset("api", 3)  # wrong: reportCallIssue

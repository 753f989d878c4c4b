"""Tasks for the worker's tests. What they do is written to a trail, by themselves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from headgate import App, Cancel, Context, Retry, Snooze, Worker
from headgate.kernel import look
from tests.waiting import PATIENCE

app = App()
gate = app.limit("gate", 1)


def trail(event: str, **fields: object) -> None:
    """One line, one write: many processes share the file."""
    line = json.dumps({"event": event, "t": time.monotonic(), "pid": os.getpid(), **fields})
    fd = os.open(os.environ["TRAIL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, line.encode() + b"\n")
    finally:
        os.close(fd)


def events() -> list[dict]:
    """Whole lines: of one that is just being written, a reader may see a part."""
    path = Path(os.environ["TRAIL"])
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def started(pid: int) -> int:
    process = look(pid)
    return process.started if process is not None else 0


def note_process(role: str, pid: int) -> None:
    trail("process", role=role, who=pid, started=started(pid))


def alive() -> list[str]:
    """Of all processes on the trail, those that live at this moment."""
    found = []
    for event in events():
        if event["event"] == "process":
            process = look(event["who"])
            if process and process.started == event["started"] and process.state != "Z":
                found.append(f"{event['role']}:{event['who']}")
    return found


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def start_stubborn(role: str, *, session: bool) -> None:
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=session
    )
    assert child.stdout is not None
    child.stdout.readline()
    note_process(role, child.pid)


def start_unmarked(role: str) -> None:
    """A grandchild, soon an orphan, in a session of its own and with nothing in its environment."""
    stay = 'trap "" TERM HUP INT; echo $$; exec sleep 600 >&-'
    child = subprocess.Popen(
        ["sh", "-c", 'env -i /usr/bin/setsid /bin/sh -c "$0" &', stay], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    note_process(role, int(child.stdout.readline()))
    child.wait()


@app.task(limits=[gate], isolate="process")
def nest(ctx: Context, unmarked: bool = False) -> list[str]:
    """The first time: leave a nest of processes that do not want to die, and stay."""
    if ctx.attempt > 1:
        found = alive()
        trail("again", alive=found)
        return found
    note_process("ward", os.getpid())
    note_process("warden", os.getppid())
    start_stubborn("ignores-term", session=False)
    start_stubborn("own-session", session=True)
    if unmarked:
        start_unmarked("no-environment")
    trail("nested", job=ctx.job_id)
    time.sleep(600)
    return ["never"]


@app.task(limits=[gate])
def nest_thread(ctx: Context) -> list[str]:
    """The same from a thread of the worker process, which cannot be killed alone."""
    if ctx.attempt > 1:
        found = alive()
        trail("again", alive=found)
        return found
    note_process("worker", os.getpid())
    start_stubborn("ignores-term", session=False)
    start_stubborn("own-session", session=True)
    trail("nested", job=ctx.job_id)
    time.sleep(600)
    return ["never"]


@app.task(limits=[gate])
def probe() -> list[str]:
    """Needs the same limit: sees at its start what is alive of the one before it."""
    found = alive()
    trail("probe", alive=found)
    return found


@app.task(isolate="process")
def leaves_children() -> int:
    """Ends well, but leaves processes behind."""
    note_process("ward", os.getpid())
    start_stubborn("ignores-term", session=False)
    start_stubborn("own-session", session=True)
    trail("left")
    return os.getpid()


@app.task
async def add(a: int, b: int = 1) -> int:
    return a + b


@app.task
def add_sync(a: int, b: int = 1) -> int:
    return a + b


@app.task(isolate="process")
def add_isolated(ctx: Context, a: int, b: int = 1) -> int:
    ctx.progress(0.5, "half")
    return a + b


@app.task(isolate="process")
async def add_isolated_async(a: int, b: int = 1) -> int:
    await asyncio.sleep(0)
    return a + b


@app.task(isolate="process")
def whoami() -> int:
    return os.getpid()


@app.task
async def loop_module(*, exits: bool = False) -> str:
    """Where the loop it runs in comes from; `exits`: a task of its own throws through it."""

    async def exit_() -> None:
        raise SystemExit(3)

    if exits:
        asyncio.get_running_loop().create_task(exit_())
        await asyncio.sleep(0.05)
    return type(asyncio.get_running_loop()).__module__


@app.task
def worker_pid() -> int:
    return os.getpid()


# --- long ones: they say that they run, then wait for a file, a cancel, or nothing ------------


def released_by(name: str) -> bool:
    return (Path(os.environ["TRAIL"]).parent / name).exists()


@app.task(limits=[gate])
async def wait_async(ctx: Context, name: str = "go") -> str:
    trail("running", kind="async", job=ctx.job_id)
    try:
        while not released_by(name):
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        trail("stopped", kind="async", job=ctx.job_id)
        raise
    return "went on"


@app.task(limits=[gate])
def wait_thread(ctx: Context, name: str = "go") -> str:
    trail("running", kind="thread", job=ctx.job_id)
    while not released_by(name):
        if ctx.cancelled:
            trail("stopped", kind="thread", job=ctx.job_id)
            ctx.raise_if_cancelled()
        time.sleep(0.01)
    return "went on"


@app.task(limits=[gate], isolate="process")
def wait_isolated(ctx: Context, name: str = "go") -> str:
    try:
        # Who reads it may cancel at once.
        trail("running", kind="isolated", job=ctx.job_id)
        while not released_by(name):
            time.sleep(0.01)
    except SystemExit:
        trail("stopped", kind="isolated", job=ctx.job_id)
        raise
    return "went on"


@app.task(limits=[gate])
def deaf_thread(ctx: Context, name: str = "go") -> str:
    """Hears nothing until the file is there."""
    trail("running", kind="deaf", job=ctx.job_id)
    while not released_by(name):
        time.sleep(0.01)
    return "went on"


@app.task
def deaf_free(ctx: Context) -> str:
    return deaf_thread.fn(ctx)


@app.task(limits=[gate])
async def deaf_async(ctx: Context, name: str = "go") -> str:
    """Swallows its cancellation."""
    trail("running", kind="deaf", job=ctx.job_id)
    while not released_by(name):
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            trail("swallowed")
    return "went on"


@app.task
async def blocks_loop(seconds: float) -> None:
    trail("running", kind="blocks")
    time.sleep(seconds)  # on purpose: the event loop stands still


@app.task
def blocks_thread() -> None:
    trail("running", kind="blocks")
    time.sleep(600)


@app.task
async def sleepy(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@app.task(limits=[gate])
def touch_gate(n: int) -> int:
    trail("gate-in", n=n)
    time.sleep(0.002)
    trail("gate-out", n=n)
    return n


# --- ends of every kind -----------------------------------------------------------------------


@app.task(retries=2, retry_delay=0.01)
def fails_twice(ctx: Context) -> int:
    trail("try", attempt=ctx.attempt)
    if ctx.attempt < 3:
        raise ValueError(f"attempt {ctx.attempt}")
    return ctx.attempt


@app.task
def raises(kind: str) -> None:
    errors: dict[str, BaseException] = {
        "value": ValueError("über \udcff \0 end"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "stop": StopIteration("stop"),
        "cancel": Cancel("the invoice is paid"),
    }
    raise errors[kind]


@app.task
async def raises_async(kind: str) -> None:
    if kind == "exit":
        raise SystemExit(3)
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "background":

        async def later() -> None:
            sys.exit(9)

        task = asyncio.ensure_future(later())
        await asyncio.wait([task])
        return
    raise asyncio.CancelledError


@app.task(retries=1)
def asks_for_retry(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise Retry(delay=0.01)
    return ctx.attempt


@app.task
def snoozes(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise Snooze(0.01)
    return ctx.attempt


@app.task
def unstorable() -> object:
    return threading.Lock()


@app.task(isolate="process")
def dies(how: str) -> None:
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "exit":
        os._exit(7)
    sys.exit(5)


@app.task(isolate="process")
def leaves_thread() -> int:
    threading.Thread(target=time.sleep, args=(600,)).start()
    return os.getpid()


@app.task
def parent(ctx: Context) -> str:
    ctx.submit(add, 20, 22)
    return "submitted"


@app.task(isolate="process")
def parent_isolated(ctx: Context) -> str:
    return ctx.submit(add, 20, 22).id


@app.task(limits=[gate])
def waits_for_other(ctx: Context) -> int:
    with ctx.released():
        return len(probe.submit().result(timeout=PATIENCE))


@app.task(limits=[gate], isolate="process")
def waits_isolated(ctx: Context) -> int:
    with ctx.released():
        return len(probe.submit().result(timeout=PATIENCE))


@app.task(isolate="process")
def echo_size(data: str) -> int:
    return len(data)


# --- hooks ------------------------------------------------------------------------------------


@app.on_worker_start
def on_start() -> None:
    trail("worker-start")


@app.on_worker_stop
async def on_stop() -> None:
    trail("worker-stop")


@app.around_job
@contextmanager
def around(ctx: Context):
    if os.environ.get("TRAIL_HOOKS"):
        trail("enter", task=ctx.task)
    yield
    if os.environ.get("TRAIL_HOOKS"):
        trail("leave", task=ctx.task)


@app.on_error
def on_error(ctx: Context, error: BaseException) -> None:
    if os.environ.get("TRAIL_HOOKS"):
        trail("error", task=ctx.task, error=type(error).__name__)


worker = Worker(app, "sample-worker", concurrency=3)


@worker.task("kills_worker", max_lost=1)
def kills_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

"""Commands for the tests: most run whatever shell line they are given."""

from __future__ import annotations

import os
from pathlib import Path

from headgate import App, Limit, OneOf
from headgate.commands.command import CommandRun, Setting

app = App()
HERE = Path(__file__).parent
SH = ["/bin/sh", "-c"]

sh = app.command("sh", SH, concurrent_runs=True, max_execution_grace=10)
patient = app.command("patient", SH, concurrent_runs=True, max_execution_grace=600)
split = app.command("split", SH, concurrent_runs=True, separate_streams=True)
small = app.command("small", SH, concurrent_runs=True, max_output=100_000)
bare = app.command("bare", SH, concurrent_runs=True, inherit_environment=False)
line = app.command("line", 'echo "$0: $# $1 $2"', concurrent_runs=True)
missing = app.command("missing", ["no-such-program"])
forbidden = app.command("forbidden", [str(HERE / "nest.sh")])
nowhere = app.command("nowhere", ["true"], cwd="/no/such/folder")
somewhere = app.command("somewhere", ["pwd"], cwd="/usr")
one = app.command("one", SH)
many = app.command("many", SH, concurrent_runs=True, limits=[Limit("pool", 3)])
placed = app.command(
    "placed", SH, concurrent_runs=True, limits=[OneOf(Limit("host-a", 2), Limit("host-b", 1))]
)
told = app.command(
    "told", SH, environment={"COLOUR": "red", "SHAPE": "round"}, concurrent_runs=True
)
retried = app.command(
    "retried", SH, concurrent_runs=True, retries=5, retry_delay=0.01, retry_exit_codes=[75, 143]
)
always = app.command("always", SH, concurrent_runs=True, retries=2, retry_delay=0.01)
nest = app.command("nest", ["/bin/sh", str(HERE / "nest.sh")], max_execution_grace=0.5)


def before(run: CommandRun) -> Setting:
    if run.arguments[-1:] == ("refuse",):
        raise RuntimeError("not today")
    return Setting({"FROM_BEFORE": f"{run.name} {run.attempt}"}, ("last",), "/usr")


def after(run: CommandRun, code: int) -> None:
    with Path(os.environ["TRAIL"] + ".after").open("a") as trail:
        trail.write(f"{run.job} {code}\n")


around = app.command("around", SH, concurrent_runs=True, before=before, after=after)


@app.on_worker_start
def on_start() -> None:
    with Path(os.environ["TRAIL"] + ".ready").open("a") as trail:
        trail.write("ready\n")


@app.on_error
def on_error(ctx, error: BaseException) -> None:
    with Path(os.environ["TRAIL"] + ".errors").open("a") as trail:
        trail.write(f"{ctx.job_id} {type(error).__name__}\n")

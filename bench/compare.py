"""`make compare BASE=<commit>`: the speed of this tree beside that commit's, as users see it.

Both sides run one workload (compared.py) in environments made alike, in alternating pairs. A ratio
above 1: this tree is faster. Exit code 1: an interval lies wholly below 0.97; 2: one stays wider
than 0.1, so nothing was measured.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import comb
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from bench.fleet import ROOT, cpu_seconds, family
from bench.place import Place, opened
from bench.table import show

STORES = ("sqlite", "postgres")
JOBS = {
    "submit": 20_000,
    "drain": 100_000,
    "short-jobs": 12_000,
    "pickup": 300,
    "claim-cost": 60_000,
}
WINDOW, PATIENCE = 4.0, 60.0
"""Seconds for which jobs are counted; seconds until the first of them must have run."""
PAIRS, MOST_PAIRS, WIDEST, SLOWER = 9, 27, 0.1, 0.97


@dataclass(frozen=True, slots=True)
class Verdict:
    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def code(self) -> int:
        return 1 if self.high < SLOWER else 2 if self.high - self.low > WIDEST else 0


def judge(ratios: Sequence[float]) -> Verdict:
    """The median and its 95 % interval from the sign test: no distribution is assumed."""
    ranked, n, cut = sorted(ratios), len(ratios), 0
    while 2 * sum(comb(n, i) for i in range(cut + 1)) <= 0.05 * 2**n:
        cut += 1
    low, high = (ranked[cut - 1], ranked[-cut]) if cut else (0.0, float("inf"))
    return Verdict(statistics.median(ranked), low, high, n)


@dataclass(frozen=True, slots=True)
class Side:
    python: Path
    package: str

    @classmethod
    def installed(cls, source: Path, venv: Path) -> "Side":
        if not (venv / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
            install = [venv / "bin/pip", "install", "-q", "--disable-pip-version-check", "-e"]
            subprocess.run([*install, f"{source}[postgres,uvloop]"], check=True)
            (venv / "ready").touch()
        project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
        return cls(venv / "bin/python", project["name"])

    def measure(self, place: Place, scenario: str) -> dict[str, float]:
        """What the scenario reaches on an empty store; more is faster."""
        with ExitStack() as stack:
            url = stack.enter_context(place.store("compare"))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place.folder)))
            shutil.copy(Path(__file__).with_name("compared.py"), folder)
            os.mkfifo(folder / "ran") if scenario == "pickup" else (folder / "ran").touch()
            mine = {"PACKAGE": self.package, "URL": url, "RAN": str(folder / "ran")}
            env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
            env |= {f"COMPARE_{key}": value for key, value in mine.items()}
            workload = [self.python, "compared.py", scenario, str(JOBS[scenario])]
            if scenario != "pickup":
                done = subprocess.run(workload, cwd=folder, env=env, check=True, stdout=-1)
                if scenario == "submit":
                    return json.loads(done.stdout)
            command = [self.python, "-m", self.package, "worker", "compared:app", "--processes=2"]
            command += ["--concurrency=150", "--shutdown-timeout=0", "--log-level=error"]
            worker = subprocess.Popen(command, cwd=folder, env=env)
            stack.callback(worker.wait)
            stack.callback(worker.terminate)
            if scenario == "pickup":
                return json.loads(subprocess.check_output(workload, cwd=folder, env=env))
            return counted(scenario, folder / "ran", worker)


def counted(scenario: str, ran: Path, worker: subprocess.Popen[bytes]) -> dict[str, float]:
    """Jobs a second while the worker is busy; of short jobs also jobs a second of CPU time."""

    def until(jobs: int, deadline: float) -> tuple[int, float, float]:
        while ran.stat().st_size < jobs and time.perf_counter() < deadline:
            if worker.poll() is not None:
                raise click.ClickException(f"{scenario}: the worker ended: {worker.returncode}")
            time.sleep(0.002)
        return ran.stat().st_size, time.perf_counter(), cpu_seconds(family(worker.pid))

    jobs, began, cpu = until(JOBS[scenario] // 20, time.perf_counter() + PATIENCE)
    jobs_then, ended, cpu_then = until(JOBS[scenario] * 19 // 20, began + WINDOW)
    if jobs_then == jobs:
        raise click.ClickException(f"{scenario}: no job ran within {PATIENCE:.0f} s")
    figures = {scenario: (jobs_then - jobs) / (ended - began)}
    if scenario == "short-jobs":
        figures["short-jobs, by CPU"] = (jobs_then - jobs) / (cpu_then - cpu)
    return figures


def compare(
    sides: tuple[Side, Side], place: Place, scenario: str, bar: Progress
) -> list[dict[str, object]]:
    """A row for each measure: its verdict and the median figures of both sides."""
    figures: dict[str, tuple[list[float], list[float]]] = {}
    verdicts: dict[str, Verdict] = {}
    task = bar.add_task(f"{scenario} ({place.kind})", total=PAIRS)
    for pair in range(1, MOST_PAIRS + 1):
        for i in (0, 1) if pair % 2 else (1, 0):
            for name, figure in sides[i].measure(place, scenario).items():
                figures.setdefault(name, ([], []))[i].append(figure)
        bar.update(task, completed=pair, total=max(PAIRS, pair))
        for name, both in figures.items():
            verdicts[name] = judge([new / base for base, new in zip(*both, strict=True)])
        if pair >= PAIRS and all(verdict.code != 2 for verdict in verdicts.values()):
            break
    return [
        {"store": place.kind, "measure": name, **asdict(verdict), "code": verdict.code}
        | dict(zip(("base", "new"), map(statistics.median, figures[name]), strict=True))
        for name, verdict in verdicts.items()
    ]


@click.command()
@click.argument("base")
@click.option("--scenario", type=click.Choice(tuple(JOBS)), help="All of them, if not said.")
@click.option("--store", type=click.Choice(STORES), help="Both, if not said.")
def main(base: str, scenario: str | None, store: str | None) -> None:
    """Compare this tree with the commit BASE."""
    parse = ["git", "rev-parse", "--verify", "--short=12", f"{base}^{{commit}}"]
    commit = subprocess.check_output(parse, cwd=ROOT, text=True).strip()
    source = ROOT / "build/compare" / commit
    source.mkdir(parents=True, exist_ok=True)
    archive = subprocess.check_output(["git", "archive", commit], cwd=ROOT)
    subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
    project = sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()[:12]
    sides = (
        Side.installed(source, source / "build/venv"),
        Side.installed(ROOT, ROOT / "build/compare" / f"venv-{project}"),
    )
    rows: list[dict[str, object]] = []
    with Progress(console=Console(stderr=True)) as bar:
        for kind in [store] if store else STORES:
            with opened(kind) as place:
                for name in [scenario] if scenario else JOBS:
                    rows += compare(sides, place, name, bar)
    show(
        ("measure", "store", "ratio", "95 %", "pairs", f"a second: {commit}", "this tree", ""),
        [
            (
                *(f"{row['measure']}", f"{row['store']}", f"{row['ratio']:.3f}"),
                *(f"{row['low']:.3f} to {row['high']:.3f}", f"{row['pairs']}"),
                *(f"{row['base']:,.0f}", f"{row['new']:,.0f}"),
                ("", "SLOWER", "not measured")[int(str(row["code"]))],
            )
            for row in rows
        ],
    )
    print(json.dumps(rows))
    sys.exit(next((code for code in (1, 2) if code in [row["code"] for row in rows]), 0))


if __name__ == "__main__":
    main()

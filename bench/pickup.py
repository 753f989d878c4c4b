"""From submit to start with idle workers, from a release to the next start, and what idling
costs.

On PostgreSQL beside a peer, and beside a row that is merely inserted and deleted: all are there at
the same time and take turns, so what else the machine does falls on all of them alike.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench import bare
from bench.fleet import ROOT, Fleet, cpu_seconds, family, workers
from bench.peers import PGQUEUER, python_with
from bench.place import Place, direct, plain
from bench.table import ms, ratio, show
from bench.tasks import app
from bench.trace import FOLDER, Traces, now
from headgate.stores.protocol import SlotRequest

WARM = 20
ROUNDS = 10
POINTS = (50, 95, 99)
SUBMIT = "submit to start, idle workers"
BARE = "a row inserted and deleted"


@dataclass(frozen=True, slots=True)
class Way:
    """One way from here to code that starts in another process."""

    submit: Callable[[], object]
    """Returns when it is stored."""
    traces: Traces

    def send(self, samples: int) -> None:
        """One after the other, and all have started."""
        wanted = self.traces.count(0) + samples
        for i in range(samples):
            self.submit()
            time.sleep(0.005 + 0.001 * (i % 5))
        deadline = time.monotonic() + 30.0
        while self.traces.count(0) < wanted:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{wanted - self.traces.count(0)} have not started")
            time.sleep(0.001)


def run(place: Place) -> dict[str, float]:
    samples, idle = place.sized(1000, 20), 30.0 * min(1.0, place.scale)
    measured = submitted(place, samples)
    with place.store("pickup") as url:
        with workers(place.folder, url, count=2) as fleet:
            measured["release to the next start"] = released(fleet, max(20, samples // 4))
            cpu = idling(fleet, idle)
        with workers(place.folder, url, count=2) as fleet:
            measured["end of a 1 ms job to the next, limit 1"] = handed_over(fleet, samples)
    cuts = {name: statistics.quantiles(times, n=100) for name, times in measured.items()}
    show(
        ["", "p50", "p95", "p99", "samples"],
        [
            [name, *(ms(cut[p - 1]) for p in POINTS), str(len(measured[name]))]
            for name, cut in cuts.items()
        ],
    )
    mine = cuts[SUBMIT][49]
    for name in (f"{SUBMIT}, pgqueuer", BARE):
        if name in cuts:
            print(f"p50, headgate to {name}: {ratio(mine / cuts[name][49])}")
    print(f"idle: two workers with keepers and guards use {cpu:.2%} of a core over {idle:.0f} s")
    found = {f"{name}, p{p}": cut[p - 1] * 1e3 for name, cut in cuts.items() for p in POINTS}
    return {**found, "idle": cpu}


def submitted(place: Place, samples: int) -> dict[str, Sequence[float]]:
    rounds = ROUNDS if place.full else 1
    with ExitStack() as stack:
        ways = {SUBMIT: stack.enter_context(own(place, "auto"))}
        if place.full:
            ways[f"{SUBMIT}, asyncio"] = stack.enter_context(own(place, "asyncio"))
        if place.server is not None:
            ways[BARE] = stack.enter_context(row(place))
            if place.peers:
                ways[f"{SUBMIT}, pgqueuer"] = stack.enter_context(pgqueuer(place))
        for way in ways.values():
            way.send(WARM)
        for _ in range(rounds):
            for way in ways.values():
                way.send(samples // rounds)
        return {
            name: [span.ended - span.began for span in way.traces.spans()[WARM:]]
            for name, way in ways.items()
        }


@contextmanager
def own(place: Place, loop: str) -> Generator[Way]:
    with (
        place.store("pickup") as url,
        workers(place.folder / loop, url, "--loop", loop, count=2) as fleet,
    ):
        task = app.tasks["stamp"]
        yield Way(lambda: fleet.store.submit([task.call(now()).new_job()]), fleet.traces)


@contextmanager
def row(place: Place) -> Generator[Way]:
    folder = place.folder / "bare"
    with place.store("bare") as url, direct(url) as connection:
        connection.execute(bare.TABLE)
        with bare.started(folder, "take", url):
            yield Way(lambda: bare.put(connection), Traces(folder))


@contextmanager
def pgqueuer(place: Place) -> Generator[Way]:
    folder = place.folder / "pgqueuer"
    script = [str(python_with(PGQUEUER)), "bench/peer_pgqueuer.py"]
    env = {**os.environ, FOLDER: str(folder)}
    with place.store("pgqueuer") as url, ExitStack() as stack:
        subprocess.run([*script, "fill", plain(url), "0"], cwd=ROOT, env=env, check=True)
        for _ in range(2):
            worker = subprocess.Popen([*script, "work", plain(url), "10"], cwd=ROOT, env=env)
            stack.callback(worker.wait)
            stack.callback(worker.kill)
        sender = stack.enter_context(
            subprocess.Popen(
                [*script, "send", plain(url), "0"],
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        stack.callback(sender.kill)

        def submit() -> None:
            assert sender.stdin is not None
            assert sender.stdout is not None
            sender.stdin.write(b"\n")
            sender.stdin.flush()
            if not sender.stdout.readline():
                raise RuntimeError("pgqueuer's sender has ended")

        yield Way(submit, Traces(folder))


def released(fleet: Fleet, samples: int) -> Sequence[float]:
    """A slot held by hand keeps a job waiting; when it is dropped, the job starts."""
    store, times = fleet.store, list[float]()
    store.submit([app.tasks["one_by_one"].call(0.0).new_job()])
    fleet.wait(lambda: fleet.traces.count(0) > 0, "the limit is known, and somebody works")
    for i in range(samples):
        seen = fleet.traces.count(0)
        slot = None
        while slot is None:
            slot = store.take_slot(SlotRequest("one_by_one", f"bench-{i}", "bench", 60.0))
        store.submit([app.tasks["one_by_one"].call(0.0).new_job()])
        time.sleep(0.02 + 0.001 * (i % 7))  # the workers find it full and go to sleep
        dropped = now()
        store.drop_slot(slot.group, slot.slot, slot.token)
        fleet.wait(lambda n=seen: fleet.traces.count(0) > n, "the next has started", 0.001)
        times.append(fleet.traces.spans()[-1].began - dropped)
    return times


def handed_over(fleet: Fleet, samples: int) -> Sequence[float]:
    """Many jobs under a limit of 1: the time between them."""
    fleet.store.submit([app.tasks["one_by_one"].call(0.001).new_job() for _ in range(samples)])
    fleet.wait(lambda: fleet.traces.count(0) >= samples, "all have run")
    spans = fleet.traces.spans()
    return [after.began - before.ended for before, after in itertools.pairwise(spans)]


def idling(fleet: Fleet, seconds: float) -> float:
    time.sleep(min(2.0, seconds))
    mine = [pid for process in fleet.processes for pid in family(process.pid)]
    assert os.getpid() not in mine
    before = cpu_seconds(mine)
    time.sleep(seconds)
    return (cpu_seconds(mine) - before) / seconds

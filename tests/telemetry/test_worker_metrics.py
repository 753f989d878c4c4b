"""`headgate worker --metrics`: one port for all processes, and what it tells is true."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest

from headgate.telemetry import gauges, server
from tests.telemetry import sample
from tests.telemetry.conftest import Metered
from tests.waiting import wait_until

ENDED = "headgate_jobs_ended_total"
ACQUIRED = "headgate_concurrency_acquisition_total"
ONE_PORT = ("--metrics", "127.0.0.1:0")


def test_counts_of_all_processes_add_up_and_outlive_them(site: Metered) -> None:
    tree = site.work("--processes", "2", "--concurrency", "4", *ONE_PORT)
    handles = site.app.submit_many(
        [
            *(sample.charge.call(n) for n in range(30)),
            *(sample.greet.call(f"k{n % 5}") for n in range(20)),
            sample.greet.call("nobody"),
        ]
    )
    for handle in handles:
        site.until_done(handle.id)
    found = site.until(tree, ENDED, ("failed", "greet"), 1)
    found = site.until(tree, ENDED, ("succeeded", "charge"), 30)
    found = site.until(tree, ENDED, ("succeeded", "greet"), 20)
    assert found[ENDED][("succeeded", "greet")] == 20
    assert found[ENDED][("cancelled", "charge")] == 0
    assert found[ACQUIRED][("api", "acquired")] == 30
    assert found[ACQUIRED][("tenant", "acquired")] == 21
    assert not any("/" in labels[0] for labels in found[ACQUIRED])
    assert found["headgate_concurrency_wait_seconds_count"][("api",)] == 30
    assert found["headgate_queue_wait_seconds_count"][("default",)] == 51
    assert found["headgate_job_duration_seconds_count"][("charge",)] == 30
    assert found["headgate_claim_duration_seconds_count"][("claimed",)] > 0
    assert found["headgate_worker_processes"][("running",)] == 2

    # What a killed process had told stays told; what held its slots is counted as lost.
    job = sample.hold.submit("x", str(site.folder / "go"))
    wait_until(lambda: site.job(job.id).state == "running")
    for pid in tree.processes(2):
        os.kill(pid, signal.SIGKILL)
    site.go()
    site.until_done(job.id)
    found = site.until(tree, ENDED, ("succeeded", "hold"), 1)
    assert found[ENDED][("succeeded", "charge")] == 30
    assert found["headgate_worker_processes_lost_total"][()] == 2
    found = site.until(tree, "headgate_events_total", ("worker_lost",), 2)
    assert found["headgate_events_total"][("attempt_lost",)] == 1
    assert found["headgate_store_up"][()] == 1
    assert tree.stop() == 0


@pytest.mark.parametrize("site", ["sqlite", "postgres", "bucket-server"], indirect=True)
def test_gauges_tell_how_the_store_is(site: Metered) -> None:
    settings = site.folder / "headgate.toml"
    settings.write_text("[concurrency]\ndefault_lease_duration_secs = 12\n")
    tree = site.work("--key-metrics", "tenant", *ONE_PORT, HEADGATE_CONFIG=str(settings))
    file = str(site.folder / "go")
    first, second = (sample.hold.submit("acme", file) for _ in range(2))
    wait_until(lambda: site.job(first.id).state == "running")
    name = "headgate_concurrency_slots_active"
    found = site.until(tree, name, ("tenant",), 1)
    assert found[name] == {("tenant",): 1, ("tenant/acme",): 1, ("api",): 0}
    assert found["headgate_concurrency_slots_limit"] == {("tenant",): 1, ("api",): 2}
    assert found["headgate_concurrency_waiting"][("tenant",)] == 1
    assert found["headgate_queue_jobs"][("default", "running")] == 1
    assert found["headgate_queue_jobs"][("default", "ready")] == 1
    assert found["headgate_queue_oldest_seconds"][("default",)] > 0
    assert found["headgate_workers"][("alive",)] == 1
    assert found["headgate_worker_room"][()] == 10
    site.go()
    site.until_done(second.id)
    found = site.until(tree, ACQUIRED, ("tenant/acme", "acquired"), 2)
    assert found["headgate_concurrency_wait_seconds_sum"][("tenant/acme",)] > 0
    if site.url.startswith("postgres"):
        found = site.until(tree, "headgate_lease_renewals_total", ("renewed",), 1)
    assert found["headgate_lease_renewals_total"][("ended",)] == 0


def test_a_port_that_is_taken_is_told_at_once(quick: Metered) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        tree = quick.work("--metrics", f"127.0.0.1:{taken.getsockname()[1]}")
        assert tree.wait() == 2
    assert "Address already in use" in tree.output()
    tree = quick.work("--metrics", "9123")
    assert tree.wait() == 2
    assert "write HOST:PORT" in tree.output()


def test_those_who_only_connect_do_not_take_the_port_from_others() -> None:
    from prometheus_client import CollectorRegistry

    serving = server.serve(CollectorRegistry(), "127.0.0.1", 0)
    port = serving.server_port
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(server.AT_ONCE)]
    # One more is let go at once: no thread and no file is kept for it.
    with socket.create_connection(("127.0.0.1", port), timeout=server.LONGEST / 2) as more:
        assert more.recv(1) == b""
    for one in held:
        one.close()

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                return answer.status == 200
        except OSError:
            return False

    wait_until(answers)
    serving.shutdown()
    serving.server_close()
    wait_until(lambda: "headgate-metrics" not in {t.name for t in threading.enumerate()})


def test_nothing_of_it_is_imported_where_nobody_asks() -> None:
    code = (
        "import headgate, headgate.worker.keeper, headgate.worker.process, headgate.worker.ward,"
        " headgate.worker.embedded, sys;"
        "headgate.App('sqlite:///:memory:').limit('a', 1);"
        "print([m for m in sys.modules if m.split('.')[0] in ('prometheus_client',"
        " 'opentelemetry', 'wsgiref') or m.startswith('headgate.telemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_store_that_cannot_be_looked_at_is_told(quick: Metered) -> None:
    from headgate.errors import StoreUnavailable
    from headgate.telemetry.counts import Counts

    def gone():
        raise StoreUnavailable("away")

    looker = gauges.Looker(gone, Counts())
    assert [(family.name, value) for family, _, value in looker.values()] == [
        ("headgate_store_up", 0.0)
    ]


@pytest.mark.parametrize(
    ("module", "call", "extra"),
    [
        ("prometheus_client", "headgate.telemetry.collector(app)", "metrics"),
        ("prometheus_client", "WorkerOptions('a:b', metrics='127.0.0.1:1').checked()", "metrics"),
        ("opentelemetry", "headgate.telemetry.instrument(app)", "otel"),
        ("opentelemetry.exporter", "WorkerOptions('a:b', otel=True).checked()", "otlp"),
    ],
)
def test_an_extra_that_is_missing_is_named(module: str, call: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules['{module}'] = None\n"
        "import headgate, headgate.telemetry\n"
        "from headgate.worker.options import WorkerOptions\n"
        "app = headgate.App('sqlite:///:memory:')\n"
        f"try: {call}\n"
        "except headgate.errors.ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"needs {module}: run pip install '.[{extra}]'" in done.stdout, done.stderr

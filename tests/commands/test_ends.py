"""Nothing of a command outlives its slot, whoever stops or dies."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import pytest

from headgate import kernel
from tests.commands import sample
from tests.commands.conftest import Place
from tests.waiting import PATIENCE, wait_until
from tests.worker.site import Tree


def nested(place: Place, **options: float) -> str:
    """A run with grandchildren that ignore SIGTERM, some in sessions of their own."""
    job = sample.nest.using(**options).submit(arguments=["stay"])
    place.wait_for_output(job.id, b"nested\n")
    return job.id


def look(place: Place) -> bytes:
    """The next run in the same slot says what it finds alive."""
    job = sample.nest.submit(arguments=["look"])
    assert job.result(timeout=PATIENCE) == 0
    return place.output(job.id)


def wardens(tree: Tree) -> list[int]:
    """The process round the warden, and the warden."""
    found = tree._below(tree.guard.pid, "headgate.commands.warden")
    return sorted(found, key=lambda pid: len(kernel.below(pid)), reverse=True)


def tree_of(pid: int) -> list[kernel.Process]:
    found = kernel.look(pid)
    return [*([found] if found is not None else []), *kernel.below(pid)]


def lives(process: kernel.Process) -> bool:
    found = kernel.look(process.pid)
    return found is not None and found.started == process.started and found.state != "Z"


def test_max_execution_of_a_command_that_ignores_sigterm(place: Place) -> None:
    place.start()
    began = time.monotonic()
    id = nested(place, timeout=1.5)
    waiting = sample.nest.submit(arguments=["look"])
    job = place.until_done(id)
    assert (job.state, job.reason, job.result) == ("failed", "timeout", "137")
    assert time.monotonic() - began >= 2.0, "the grace was given"
    assert waiting.result(timeout=PATIENCE) == 0
    assert place.output(waiting.id) == b"looked\n"
    assert place.trees[0].stop() == 0


def test_a_command_that_obeys_may_tidy_up(place: Place) -> None:
    """Told to stop, a shell ends at once; its program has the whole grace."""
    place.start()
    program = "trap 'sleep 0.5; echo tidied; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    outer = f'sh -c "{program}"; echo never'
    job = sample.sh.using(timeout=1).submit(arguments=[outer])
    ended = place.until_done(job.id)
    assert (ended.state, ended.reason, ended.result) == ("failed", "timeout", "143")
    said = place.output(job.id)
    assert said.startswith(b"up\n"), said
    assert said.endswith(b"tidied\n"), said
    assert place.trees[0].stop() == 0


def test_a_stopped_command_is_ended(place: Place) -> None:
    place.start()
    job = sample.sh.using(timeout=0.5).submit(arguments=["kill -STOP $$; echo never"])
    ended = place.until_done(job.id)
    assert (ended.reason, ended.result) == ("timeout", "143")
    assert place.trees[0].stop() == 0


def test_cancelling(place: Place) -> None:
    place.start()
    id = nested(place)
    place.app.store.cancel(id, reason="not needed")
    assert place.until_done(id).reason == "not needed"
    assert look(place) == b"looked\n"
    assert place.trees[0].stop() == 0


def test_a_time_out_is_tried_again_only_where_its_exit_code_is(place: Place) -> None:
    place.start()
    wait = sample.retried.using(timeout=0.4).submit(
        arguments=["[ $RUN_ATTEMPT = 2 ] && exit 0; sleep 600"]
    )
    assert wait.result(timeout=PATIENCE) == 0
    deaf = sample.retried.using(timeout=0.4).submit(
        arguments=[
            "[ $RUN_ATTEMPT = 2 ] && exit 0; trap 'exit 9' TERM; while :; do sleep 0.1; done"
        ]
    )
    job = place.until_done(deaf.id)
    assert (job.state, job.reason, job.result, job.attempt) == ("failed", "timeout", "9", 1)
    assert place.trees[0].stop() == 0


def test_stopping_the_worker(place: Place) -> None:
    tree = place.start()
    id = nested(place)
    tree.signal(signal.SIGTERM)
    wait_until(lambda: "once more to stop at once" in tree.output())
    tree.signal(signal.SIGTERM)  # once more: at once
    assert tree.wait() == 0
    job = place.job(id)
    assert (job.state, job.attempt) == ("ready", 1)
    assert place.app.store.attempts(id)[0].outcome == "interrupted"
    place.start()
    assert place.until_done(id).state == "succeeded"
    assert place.output(id) == b"nested\nlooked\n"
    assert place.trees[-1].stop() == 0


def test_stopping_the_worker_waits_for_what_ends_in_time(place: Place) -> None:
    tree = place.start()
    job = sample.sh.submit(arguments=["echo up; sleep 0.7; echo done"])
    place.wait_for_output(job.id, b"up")
    assert tree.stop() == 0
    assert place.output(job.id) == b"up\ndone\n"
    assert job.status() == "succeeded"


def test_stopping_a_worker_shortens_a_long_grace(place: Place) -> None:
    """The command was told to stop and has ten minutes; its worker has to go before that."""
    tree = place.start("--shutdown-timeout", "0.2")
    deaf = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    job = sample.patient.using(timeout=0.5).submit(arguments=[deaf])
    place.wait_for_output(job.id, b"up")
    wait_until(lambda: "was told to stop (timeout)" in tree.output())
    assert tree.stop() == 0
    assert (place.job(job.id).state, place.job(job.id).reason) == ("failed", "timeout")


@pytest.mark.parametrize(
    ("place", "who"),
    [
        *(
            ("sqlite", who)
            for who in ("worker", "keeper", "guard", "outer warden", "warden", "all")
        ),
        *(("postgres", who) for who in ("worker", "keeper")),
    ],
    indirect=["place"],
)
def test_nothing_of_a_command_is_alive_when_its_slot_is_granted_again(
    place: Place, who: str
) -> None:
    """Killed without a word, one of them or all at once."""
    tree = place.start(HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS="3")
    id = nested(place)
    place.start(
        HEADGATE_CONCURRENCY_DEFAULT_LEASE_DURATION_SECS="3"
    )  # it gets the slot as soon as that is free
    place.ready(2)
    of = {
        "worker": tree.processes,
        "keeper": lambda: [tree.keeper()],
        "guard": lambda: [tree.guard.pid],
        "outer warden": lambda: wardens(tree)[:1],
        "warden": lambda: wardens(tree)[1:],
        "all": lambda: [tree.guard.pid, tree.keeper(), *tree.processes(), *wardens(tree)],
    }
    victims = of[who]()
    if who == "all":
        # What the command left in sessions of its own lives on: the slot stays taken by it.
        place.freeze(victims)
        left = [process for pid in place.lines("pids") for process in tree_of(int(pid))]
    for pid in victims:
        # The death of one before it may have ended it already.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if who == "all":
        # Those that can be known by a mark, then those that only the lock file tells of.
        marked = [p for p in left if kernel.WORKER_MARK in kernel.environment(p.pid)]
        unmarked = [p for p in left if p not in marked]
        for processes in (marked, unmarked):
            assert any(lives(process) for process in processes)
            place.app.store.sweep()
            assert place.job(id).state == "running", "its slot is not free while it lives"
            for process in processes:
                kernel.kill(process)
            wait_until(lambda found=processes: not any(map(lives, found)), why="they are gone")
    job = place.until_done(id)
    if "warden" in who:
        assert (job.state, job.result) == ("failed", "137")
        assert look(place) == b"looked\n"
    else:
        assert (job.state, job.attempt) == ("succeeded", 2)
        assert place.output(id) == b"nested\nlooked\n"
    for tree in place.trees:
        if tree.guard.poll() is None:
            assert tree.stop() == 0

"""What commands write: in order, as bytes, within the bound, seen by others as it comes."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest
from click.testing import CliRunner

from headgate.cli import root
from headgate.commands.output import pieces
from headgate.jobs import Retention
from tests.commands import sample
from tests.commands.conftest import Place
from tests.waiting import PATIENCE, wait_until
from tests.worker.site import REPO


def command(place: Place, *arguments: str) -> tuple[int, bytes, str]:
    done = CliRunner().invoke(root, ["--url", place.url, "jobs", "output", *arguments])
    return done.exit_code, done.stdout_bytes, done.stderr


def test_both_streams_stand_in_the_order_in_which_they_were_written(shop: Place) -> None:
    line = "i=0; while [ $i -lt 300 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
    job = shop.run(sample.sh, line)
    expected = "".join(f"out {n}\nerr {n}\n" for n in range(300)).encode()
    assert shop.output(job.id) == expected
    assert command(shop, job.id) == (0, expected, "")


def test_streams_apart(shop: Place) -> None:
    line = "i=0; while [ $i -lt 300 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
    job = shop.run(sample.split, line)
    for stream in ("out", "err"):
        expected = "".join(f"{stream} {n}\n" for n in range(300)).encode()
        found = b"".join(p.data for p in pieces(shop.app.store, job.id) if p.stream == stream)
        assert found == expected
        assert command(shop, job.id, "--stream", stream)[1] == expected


def test_bytes_that_are_no_text(shop: Place) -> None:
    job = shop.run(sample.sh, r"printf 'a\377\000\376\r\n\033[2Jz'; printf '\303'; printf '\274'")
    expected = b"a\xff\x00\xfe\r\n\x1b[2Jz\xc3\xbc"
    assert shop.output(job.id) == expected
    assert command(shop, job.id) == (0, expected, "")
    told = json.loads(command(shop, job.id, "--json")[1])
    assert told["state"] == "succeeded"
    assert {"base64", "attempt", "stream", "at", "start"} == set(told["output"][0])


def test_a_program_that_writes_half_a_line_and_waits_is_heard(shop: Place) -> None:
    go = shop.folder / "half"
    job = sample.sh.submit(arguments=[f"printf half; while [ ! -e '{go}' ]; do sleep 0.02; done"])
    shop.wait_for_output(job.id, b"half")
    assert job.status() == "running"
    go.touch()
    assert job.result(timeout=PATIENCE) == 0


def stored(place: Place) -> int:
    """Bytes of the store's files."""
    return sum(path.stat().st_size for path in place.folder.glob("jobs.db*") if path.is_file())


def test_a_huge_output_is_cut_in_the_middle_and_says_how_much(shop: Place) -> None:
    size = 30_000_000
    before = stored(shop)
    line = f"echo BEGIN; head -c {size} /dev/zero | tr '\\0' x; echo END"
    job = shop.run(sample.small, line)
    assert job.state == "succeeded"
    assert stored(shop) - before < size // 4, "what is left out was never written"
    kept = list(pieces(shop.app.store, job.id))
    total = sum(len(piece.data) for piece in kept)
    assert 50_000 < total <= 100_000
    assert kept[0].data.startswith(b"BEGIN\n")
    # The last words may be a piece of their own.
    assert b"".join(piece.data for piece in kept[-2:]).endswith(b"xEND\n")
    written = kept[-1].start + len(kept[-1].data)
    assert written == size + len("BEGIN\nEND\n")
    said = command(shop, job.id)[1]
    assert b"\n[... %d bytes left out ...]\n" % (written - total) in said


def test_output_that_never_ends_is_stopped_with_its_command(shop: Place) -> None:
    job = shop.until_done(sample.small.using(timeout=0.7).submit(arguments=["yes"]).id)
    assert (job.state, job.reason, job.result) == ("failed", "timeout", "143")
    assert sum(len(p.data) for p in pieces(shop.app.store, job.id)) <= 100_000


@contextmanager
def following(place: Place, id: str, *flags: str):
    """`headgate jobs output --follow` in a process of its own."""
    out = place.folder / f"follow-{id}"
    with out.open("wb") as file:
        follower = subprocess.Popen(
            [sys.executable, "-m", "headgate", "jobs", "output", id, "--follow", *flags],
            cwd=REPO,
            env={**os.environ, **place.env},
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        yield follower, out.read_bytes
    finally:
        follower.kill()
        follower.communicate()


def test_output_is_followed_from_another_process(place: Place) -> None:
    place.start()
    place.ready()
    go = place.folder / "go"
    line = f"echo one; while [ ! -e '{go}' ]; do sleep 0.02; done; echo two; exit 3"
    job = sample.retried.submit(
        arguments=[f"echo $RUN_ATTEMPT; [ $RUN_ATTEMPT = 2 ] || exit 75; {line}"]
    )
    with following(place, job.id) as (follower, read):
        wait_until(lambda: read() == b"1\n2\none\n", why="the first lines, as they come")
        assert follower.poll() is None
        assert job.status() == "running"
        go.touch()
        wait_until(lambda: read() == b"1\n2\none\ntwo\n", why="the last line")
        assert follower.wait(PATIENCE) == 0
        assert follower.stderr is not None
        assert follower.stderr.read() == "--- attempt 2 ---\nfailed (exit 3)\n"
    assert place.trees[0].stop() == 0


def test_follow_as_json_and_before_the_start(shop: Place) -> None:
    job = sample.sh.using(delay=0.7).submit(arguments=["echo hello"])
    with following(shop, job.id, "--json") as (follower, read):
        assert follower.wait(PATIENCE) == 0
        first, last = map(json.loads, read().splitlines())
    assert (first["text"], first["attempt"]) == ("hello\n", 1)
    assert last == {"id": job.id, "state": "succeeded", "reason": ""}


def test_words_about_what_is_not_there(shop: Place) -> None:
    code, out, err = command(shop, "0190c2a4-0000-7000-8000-000000000000")
    assert (code, out) == (3, b"")
    assert "no job" in err
    job = shop.run(sample.sh, "true")
    assert command(shop, job.id) == (
        0, b"", "no output is kept of this job, which is succeeded\n"
    )  # fmt: skip
    assert command(shop, job.id, "--follow") == (0, b"", "succeeded\n")


def test_output_is_pruned_with_its_job(place: Place) -> None:
    place.start("--burst")
    job = sample.sh.submit(arguments=["echo hello"])
    assert place.trees[0].wait() == 0
    assert job.output() == b"hello\n"
    assert place.app.store.prune(Retention(succeeded=0)) == 1
    with sqlite3.connect(place.folder / "jobs.db") as db:
        assert db.execute("SELECT count(*) FROM outputs").fetchone() == (0,)


@pytest.mark.parametrize("flag", ["--attempt", "--stream"])
def test_flags_that_cannot_be_used(shop: Place, flag: str) -> None:
    assert command(shop, "x", flag, "0")[0] == 2


def test_a_store_that_is_locked_for_a_while_loses_nothing(place: Place) -> None:
    place.start()
    place.ready()
    go = place.folder / "go"
    wait = f"while [ ! -e '{go}' ]; do sleep 0.02; done"
    count = "i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); done"
    job = sample.sh.submit(arguments=[f"echo up; {wait}; {count}; touch '{go}.done'; {count}"])
    place.wait_for_output(job.id, b"up")
    with closing(sqlite3.connect(place.folder / "jobs.db", timeout=10)) as db:
        db.execute("BEGIN IMMEDIATE")
        go.touch()
        wait_until((place.folder / "go.done").exists, why="the command does not wait for us")
        assert place.output(job.id) == b"up\n"
        db.rollback()
    assert job.result(timeout=PATIENCE) == 0
    expected = "up\n" + 2 * "".join(f"{n}\n" for n in range(200))
    assert job.output() == expected.encode()
    assert place.trees[0].stop() == 0

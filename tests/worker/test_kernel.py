"""What the kernel is asked for, seen on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

from headgate import kernel
from headgate.worker.frames import DATA, ENDED, Unpacker, pack
from tests.waiting import PATIENCE, wait_until


def start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )


def test_a_child_dies_with_its_parent() -> None:
    parent = start(
        """
        import os, signal, subprocess, sys
        code = (
            "import os, signal, sys; from headgate import kernel;"
            "kernel.die_with_parent(int(sys.argv[1])); print(os.getpid(), flush=True);"
            "signal.pause()"
        )
        subprocess.Popen([sys.executable, "-c", code, str(os.getpid())])
        signal.pause()
        """
    )
    assert parent.stdout is not None
    child = kernel.look(int(parent.stdout.readline()))
    assert child is not None
    parent.kill()
    parent.wait()
    wait_until(lambda: (now := kernel.look(child.pid)) is None or now.state == "Z")


def test_a_child_whose_parent_died_before_it_could_ask_ends_at_once() -> None:
    code = "from headgate import kernel; kernel.die_with_parent(1); print('still here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")


def test_orphans_are_adopted_and_killed_wherever_they_hide() -> None:
    done = start(
        """
        import os, subprocess, sys
        from headgate import kernel
        kernel.adopt_orphans()
        # A grandchild in a session of its own, whose parent is gone; and one that forks on.
        script = "setsid sh -c 'trap \\"\\" TERM; sleep 600 & sleep 600' & exit 0"
        subprocess.run(["sh", "-c", script])
        before = len(kernel.below(os.getpid()))
        kernel.kill_until_none(lambda: kernel.below(os.getpid()), lambda pid, code: None)
        print(before > 0, kernel.below(os.getpid()))
        """
    )
    out, _ = done.communicate(timeout=PATIENCE)
    assert out.split() == ["True", "[]"]


def test_only_the_process_that_was_meant_is_signalled() -> None:
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        process = kernel.look(sleeper.pid)
        assert process is not None
        other = kernel.Process(process.pid, process.parent, "S", process.session, 1)
        assert not kernel.kill(other)
        assert sleeper.poll() is None
        assert kernel.kill(process)
        assert sleeper.wait(PATIENCE) == -signal.SIGKILL
        assert not kernel.kill(process)
    finally:
        sleeper.kill()
        sleeper.wait()


def test_spared_processes_keep_their_children() -> None:
    shell = subprocess.Popen(["sh", "-c", "sleep 600 & wait"])
    try:
        wait_until(lambda: len(kernel.below(shell.pid)) == 1)
        assert shell.pid in {p.pid for p in kernel.below(os.getpid())}
        assert not {p.pid for p in kernel.below(os.getpid(), [shell.pid])} & {
            shell.pid,
            *(p.pid for p in kernel.below(shell.pid)),
        }
    finally:
        kernel.kill_once([*kernel.below(shell.pid)])
        shell.wait()


def test_names_of_processes_may_hold_anything() -> None:
    code = (
        "from pathlib import Path; Path('/proc/self/comm').write_text('a) S (1 2');"
        "import os; from headgate import kernel; print(kernel.look(os.getpid()).parent)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == str(os.getpid())


def test_frames_survive_any_cut() -> None:
    stream = pack(DATA, b"one") + pack(ENDED, b"") + pack(DATA, b"x" * 70_000)
    for step in (1, 3, 4096):
        unpacker = Unpacker()
        found = [
            frame
            for at in range(0, len(stream), step)
            for frame in unpacker.feed(stream[at : at + step])
        ]
        assert found == [(DATA, b"one"), (ENDED, b""), (DATA, b"x" * 70_000)]

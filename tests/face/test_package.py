"""What a program can import, and that it loads no more than it uses."""

from __future__ import annotations

import subprocess
import sys

import headgate


def test_every_public_name_is_there() -> None:
    for name in headgate.__all__:
        assert getattr(headgate, name) is not None
    assert set(dir(headgate)) == set(headgate.__all__)
    assert set(headgate.__all__) == {*headgate._HOME, "__version__"}


def test_submitting_does_not_load_the_worker() -> None:
    code = (
        "import sys, headgate; headgate.App; "
        "print([m for m in sys.modules if m.startswith('headgate.worker')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

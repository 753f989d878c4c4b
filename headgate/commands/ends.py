"""How programs end, or fail to begin, told as shells tell it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

NOT_FOUND = 127
NOT_RUNNABLE = 126

_SCARCE = frozenset((errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE))


class NotStarted(Exception):
    """The program could not be started: the exit code for that, and why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


def exit_code(code: int) -> int:
    """Of a process ended by a signal, 128 more than its number.

    >>> exit_code(3), exit_code(-9)
    (3, 137)
    """
    return code if code >= 0 else 128 - code


def is_scarce(error: Exception) -> bool:
    """Did the machine lack something that others will give back? Then it is not the fault of
    the command, which may be started a little later."""
    return isinstance(error, OSError) and error.errno in _SCARCE


def why_not(error: Exception, argv: Sequence[str], cwd: str | None) -> NotStarted:
    """An error of starting a program, in words and as an exit code."""
    if cwd is not None and not os.path.isdir(cwd):  # noqa: PTH112 - as the kernel takes it
        return NotStarted(NOT_RUNNABLE, f"its working directory {cwd!r} is not there")
    program = argv[0]
    if isinstance(error, FileNotFoundError):
        where = "" if "/" in program else " in any folder of its PATH"
        return NotStarted(NOT_FOUND, f"no program {program!r} is there{where}")
    if isinstance(error, PermissionError):
        return NotStarted(NOT_RUNNABLE, f"{program!r} may not be executed: {error.strerror}")
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        return NotStarted(
            NOT_RUNNABLE, f"{program!r} is no program: a script begins with #!/bin/sh"
        )
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return NotStarted(NOT_RUNNABLE, f"{program!r}: {text}")

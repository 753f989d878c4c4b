"""Telling somebody how a run went: a command that is run, or a web address that is called.

Both are given the facts of the run as one JSON document; the command finds them in its
environment too. What cannot be delivered is an error, so that it is tried again.
"""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress

from headgate import kernel
from headgate.errors import HeadgateError
from headgate.threads import in_thread

Facts = Mapping[str, str | int | float | None]

_AGENT = "headgate"
_MOST_SHOWN = 300


class NotDelivered(HeadgateError):
    """A notification did not reach whom it was for."""


async def tell_command(command: str | Sequence[str], facts: Facts, timeout: float) -> None:
    """Run a command with the facts on its standard input and in its environment."""
    argv = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **variables(facts)},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise NotDelivered(f"{argv[0]!r} cannot be run: {error}") from None
    try:
        async with asyncio.timeout(timeout):
            said, _ = await child.communicate(document(facts))
    except TimeoutError:
        raise NotDelivered(f"{argv[0]!r} did not end within {timeout:g} s") from None
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, 9)
            await child.wait()
    if child.returncode:
        text = said.decode("utf-8", "replace").strip()[-_MOST_SHOWN:]
        raise NotDelivered(f"{argv[0]!r} {kernel.exit_text(child.returncode)}: {text}")


async def tell_webhook(url: str, facts: Facts, timeout: float) -> None:
    """POST the facts as JSON; any answer below 300 means that it arrived."""
    await in_thread(_post, url, document(facts), timeout)


def _post(url: str, body: bytes, timeout: float) -> None:
    request = urllib.request.Request(  # noqa: S310 - http and https only, by the check
        url,
        data=body,
        headers={"Content-Type": "application/json", "User-Agent": _AGENT},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - as above
            status = answer.status
    except urllib.error.HTTPError as error:
        raise NotDelivered(f"{url} answered {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        raise NotDelivered(f"{url} cannot be reached: {error}") from None
    if status >= 300:
        raise NotDelivered(f"{url} answered {status}")


def document(facts: Facts) -> bytes:
    return json.dumps(facts, ensure_ascii=False).encode()


def variables(facts: Facts) -> dict[str, str]:
    """The facts as a command finds them.

    >>> variables({"occasion": "failure", "exit_code": 3, "group": None})
    {'OCCASION': 'failure', 'EXIT_CODE': '3'}
    """
    return {name.upper(): str(value) for name, value in facts.items() if value is not None}

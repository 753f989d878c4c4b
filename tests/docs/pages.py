"""Pages of Markdown, taken apart into blocks and run from top to bottom.

- `python` blocks run in order, as one module of the page; one whose first line is `# name.py`
  is written to that file instead, for workers to import.
- `toml` blocks whose first line is `# headgate.toml` are written to that file.
- `console` blocks: lines with `$` run in one shell of the page; what follows is the output.
  `…` stands for anything, a line of it for any lines; ids, times and names of people are not
  compared. What only looks is looked at again until it fits: workers take their time.
- `sh` blocks are not run, but their commands and flags must exist.

`postgresql://app@db.example/app` in what is run is a database of the test's own, and
`s3://acme-jobs/shop` a bucket.

A comment before a block says what the reader is told in words: `<!-- docs: another terminal -->`
starts its commands and leaves them running, `<!-- docs: exit 3 -->` expects that code.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
import types
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from headgate.config import Config
from headgate.stores import open_store
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
SOON = 2.0
DATABASE = "//app@db.example/app"
BUCKET = "s3://acme-jobs/shop"
RUN = ("python", "console", "toml")

_BLOCK = re.compile(
    r"^(?:<!-- docs: (?P<note>[^\n]*) -->\n)?```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.M | re.S
)
_LOOKS = re.compile(
    r"headgate (jobs (ls|show|why)|concurrency (status|ls|history)|queues ls|workers ls"
    r"|schedules (ls|show|next))\b"
)
_CHANGING = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\b[0-9a-f]{8}-…"), "ID"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\d+(\.\d+)? (s|min|h|days)\b( \d+ min)?"), "SPAN"),
    (re.compile(r"[\w.-]+@[\w.-]+"), "WHO"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class Block:
    kind: str
    body: str
    note: str
    line: int

    @property
    def file(self) -> str | None:
        """The file that this block is, if its first line names one."""
        found = re.match(r"# ([\w/-]+\.(?:py|toml))\n", self.body)
        return found[1] if found else None

    def steps(self) -> list[tuple[str, list[str]]]:
        """(command, expected lines) of a console block."""
        steps: list[tuple[str, list[str]]] = []
        for line in self.body.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            elif steps and steps[-1][0].endswith("\\"):
                steps[-1] = (f"{steps[-1][0]}\n{line}", [])
            else:
                steps[-1][1].append(line)
        return steps


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["kind"], m["body"], m["note"] or "", text.count("\n", 0, m.start("body")))
        for m in _BLOCK.finditer(text)
    ]


def same(told: list[str], seen: list[str]) -> bool:
    """Does the output fit what the page says?"""

    def plain(line: str) -> str:
        for pattern, name in _CHANGING:
            line = pattern.sub(name, line)
        return line.strip()

    parts: list[str] = []
    for line in map(plain, told):
        if line == "…":
            parts.append(r"(?:.*\n)*")
        else:
            parts.append(".*".join(map(re.escape, line.split("…"))) + "\n")
    text = "".join(f"{plain(line)}\n" for line in seen)
    return re.fullmatch("".join(parts), text) is not None


class Page:
    """One page at work in a folder of its own."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.things = ExitStack()
        self.blocks = blocks(page)
        if any(block.kind in RUN and DATABASE in block.body for block in self.blocks):
            self.blocks = self._with_database(self.blocks)
        if any(block.kind in RUN and BUCKET in block.body for block in self.blocks):
            self.blocks = self._with_bucket(self.blocks)
        clean = {n: v for n, v in os.environ.items() if not n.startswith("HEADGATE_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**clean, "PATH": path, "TERM": "dumb"}
        self.module = types.ModuleType(f"docs_{page.stem}")
        sys.modules[self.module.__name__] = self.module
        self.shell = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=self.env,
            bufsize=0,
        )
        self.others: list[subprocess.Popen[bytes]] = []

    def _with_database(self, found: list[Block]) -> list[Block]:
        from tests.postgres.server import shared

        _, _, place = self.things.enter_context(shared().database()).partition(":")
        return [replace(block, body=block.body.replace(DATABASE, place)) for block in found]

    def _with_bucket(self, found: list[Block]) -> list[Block]:
        from tests.bucket.server import credentials, shared

        credentials()
        url = shared().fresh(self.folder / "copy")
        return [replace(block, body=block.body.replace(BUCKET, url)) for block in found]

    def run(self) -> int:
        """Run every block; how many there were."""
        for block in self.blocks:
            where = f"{self.page.name}:{block.line + 1}"
            if block.file is not None:
                (self.folder / block.file).write_text(block.body, encoding="utf-8")
            elif block.kind == "python":
                # As many lines before it as on the page: tracebacks then name its line.
                code = compile("\n" * block.line + block.body, str(self.page), "exec")
                exec(code, self.module.__dict__)
            elif block.kind == "console" and block.note == "another terminal":
                for command, _ in block.steps():
                    self._start(command)
            elif block.kind == "console":
                exits = re.fullmatch(r"exit (\d+)", block.note)
                for command, told in block.steps():
                    self._try(command, told, int(exits[1]) if exits else 0, where)
        return len(self.blocks)

    def _try(self, command: str, told: list[str], exits: int, where: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            code, seen = self._type(command)
            if code == exits and (not told or same(told, seen)):
                return
            if not _LOOKS.match(command) or time.monotonic() > deadline:
                break
        raise AssertionError(
            "\n".join([f"{where}: $ {command}", *seen, f"(exit {code}); the page says:", *told])
        )

    def _type(self, command: str) -> tuple[int, list[str]]:
        """Type a command into the shell of the page."""
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        mark = "end-of-command"
        # Not from our pipe: a command that reads would eat the ones after it.
        self.shell.stdin.write(f"{{ {command}\n}} </dev/null\necho {mark} $?\n".encode())
        out = b""
        deadline = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(self.shell.stdout, selectors.EVENT_READ)
            while not (end := re.search(rb"^%b (\d+)\n" % mark.encode(), out, re.M)):
                assert selector.select(deadline - time.monotonic()), f"{command}: no end, {out!r}"
                data = self.shell.stdout.read(65536)
                assert data, f"{command}: the shell ended, {out!r}"
                out += data
        return int(end[1]), out[: end.start()].decode().splitlines()

    def _start(self, command: str) -> None:
        """Start a worker, and wait until it is there."""
        log = self.folder / f"terminal-{len(self.others)}.log"
        with log.open("wb") as out:
            self.others.append(
                subprocess.Popen(
                    ["bash", "-c", f"exec {command}"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    cwd=self.folder,
                    env=self.env,
                )
            )
        with closing(open_store(Config.load(environ={}, directory=self.folder).url)) as store:
            wait_until(
                lambda: len(store.workers()) >= len(self.others),
                why=lambda: f"$ {command}\n{log.read_text()}",
            )

    def close(self) -> None:
        for other in self.others:
            other.send_signal(signal.SIGTERM)
        for other in self.others:
            try:
                other.wait(SOON)
            except subprocess.TimeoutExpired:
                other.send_signal(signal.SIGTERM)  # what it runs need not come to its end
                other.wait(PATIENCE)
        assert self.shell.stdin is not None
        self.shell.stdin.close()
        self.shell.wait(PATIENCE)
        assert self.shell.stdout is not None
        self.shell.stdout.close()
        for thing in list(self.module.__dict__.values()):
            if type(thing).__name__ == "App":
                thing.close()
        del sys.modules[self.module.__name__]
        self.things.close()

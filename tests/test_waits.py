"""Tests wait for events, in `tests/waiting.py`; every other sleep is the work of a task, or is
listed here with its reason."""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
HELPER = "waiting.py"

Place = tuple[str, str]
"""A file, and the function or the name of the module in it."""

WORK: tuple[Place, ...] = (
    ("exactness/hundred.py", "work"),
    ("postgres/test_lossy_workers.py", "work"),
    ("scheduler/recorder.py", "main"),
    ("worker/sample.py", "STUBBORN"),
    ("worker/test_ahead.py", "takes"),
)
"""What tasks call, and the programs that they run: the work of a task that is not decorated."""

MOST = 15
OTHERS: dict[Place, str] = {
    ("bucket/proxy.py", "Proxy._one"): "the latency of a fault",
    ("counts/virtual_time.py", "VirtualTime.passes"): "nobody waits in virtual time",
    ("crash/leased.py", "LeasedStore.renew"): "a renewal that hangs",
    ("crash/test_locked_store.py", "HOLD"): "how long the store is locked",
    ("exactness/test_bucket_under_fire.py", "Place.cut_off"): "how long the server is away",
    ("exactness/test_chaos.py", "Chaos.harm"): "how long a process is frozen",
    ("exactness/test_chaos.py", "test_chaos"): "at random moments",
    ("exactness/test_limit_changes.py", "test_many_changes_under_load"): "at random moments",
    ("exactness/test_under_fire.py", "test_many_keys_under_fire"): "at random moments",
    ("exactness/test_under_fire.py", "test_many_keys_under_fire.submit"): "the pace of the load",
    ("postgres/test_bells.py", "test_no_ring_is_lost_between_looking_and_sleeping.write"):
        "commits at moments from before a look to after it",
    ("schedules/scene.py", "main"): "the rest of a process that ticks, between two rounds",
    ("schedules/test_exactly_once.py", "Stage.play"): "at random moments",
    ("web/test_reads.py", "Meter.rows"): "PostgreSQL tells what was read once a second at most",
    ("web/test_reads.py", "_change"): "the pace of the load",
}  # fmt: skip


class Finder(ast.NodeVisitor):
    """Finds what sleeps, and whether it is the work of a task."""

    def __init__(self, name: str = "") -> None:
        self.places: list[tuple[str, bool]] = []
        self._names = [name] if name else []
        self._tasks = [False]
        self._sleeps: set[str] = set()
        """Names of functions that sleep, as they are imported here."""

    def _found(self) -> None:
        self.places.append((".".join(self._names), self._tasks[-1]))

    # --- where ---------------------------------------------------------------------------------

    def _inside(self, node: ast.AST, name: str, task: bool) -> None:
        self._names.append(name)
        self._tasks.append(task)
        self.generic_visit(node)
        self._names.pop()
        self._tasks.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        task = self._tasks[-1] or _declares(node.decorator_list, "task", "on_error")
        self._inside(node, node.name, task)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside(node, node.name, _declares(node.decorator_list, "job"))

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if not self._names and isinstance(target, ast.Name):
            self._inside(node, target.id, False)
        else:
            self.generic_visit(node)

    # --- what ----------------------------------------------------------------------------------

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._sleeps |= {one.asname or one.name for one in node.names if one.name == "sleep"}

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self._sleeps:
            self._found()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Not only where it is called: it may be given away, or to another name."""
        if node.attr in ("sleep", "wait_for_timeout"):
            self._found()
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _lets_others_go_on(node):
            return
        if _waits_for_nothing(node):
            self._found()
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Code in a text: for another process, or a module that a test writes."""
        text = node.value
        if not isinstance(text, str) or not _IN_TEXT.search(text):
            return
        try:
            code = ast.parse(textwrap.dedent(text))
        except SyntaxError:  # a part of some
            self._found()
            return
        inner = Finder()
        inner.visit(code)
        for _, task in inner.places:
            self.places.append((".".join(self._names), task or self._tasks[-1]))


_IN_TEXT = re.compile(r"(?<!pg_)\bsleep\(")


def _declares(decorators: list[ast.expr], *kinds: str) -> bool:
    """`@app.task`, `@app.task(…)`, `@self.app.job`, …"""
    calls = (one.func if isinstance(one, ast.Call) else one for one in decorators)
    return any(isinstance(one, ast.Attribute) and one.attr in kinds for one in calls)


def _lets_others_go_on(node: ast.Call) -> bool:
    """`asyncio.sleep(0)`."""
    named = isinstance(node.func, ast.Attribute) and node.func.attr == "sleep"
    return named and [ast.unparse(one) for one in node.args] == ["0"]


def _waits_for_nothing(node: ast.Call) -> bool:
    """`Event().wait(1)`, `select([], [], [], 1)`: what nobody can set, nothing that can happen."""
    if not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "select":
        return [ast.unparse(one) for one in node.args[:3]] == ["[]"] * 3
    made = ast.unparse(node.func.value)
    return node.func.attr == "wait" and re.search(r"\bEvent\(\)$", made) is not None


def sleeps(code: str) -> list[tuple[str, bool]]:
    finder = Finder()
    finder.visit(ast.parse(code))
    return finder.places


def found() -> Iterator[tuple[Place, bool]]:
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        if name not in (HELPER, Path(__file__).name):
            for place, task in sleeps(path.read_text(encoding="utf-8")):
                yield (name, place), task


def test_tests_wait_for_events_and_not_for_time() -> None:
    others = Counter(place for place, task in found() if not task)
    work = {place for place in others if place in WORK}
    assert work == set(WORK), "what is listed as work sleeps"
    counted = {place: count for place, count in others.items() if place not in WORK}
    assert counted == dict.fromkeys(OTHERS, 1), "wait for the event: tests/waiting.py"
    assert len(OTHERS) <= MOST
    assert all(OTHERS.values())


@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.sleep(1)",
        "import time as t\nt.sleep(0.1)",
        "from time import sleep\nsleep(1)",
        "from asyncio import sleep as nap\nasync def f():\n    await nap(1)",
        "__import__('asyncio').sleep(30)",
        "wait = time.sleep",
        "Thread(target=time.sleep, args=(600,))",
        "page.wait_for_timeout(1000)",
        "threading.Event().wait(1)",
        "select.select([], [], [], 1)",
        "run('import time; time.sleep(1)')",
        "run(f'while {x}: time.sleep(1)')",
        "@pytest.fixture\ndef f():\n    time.sleep(1)",
        "class Job:\n    def run(self):\n        time.sleep(1)",
    ],
)
def test_every_way_to_sleep_is_found(code: str) -> None:
    assert [task for _, task in sleeps(code)] == [False]


@pytest.mark.parametrize(
    "code",
    [
        "@app.task\ndef f():\n    time.sleep(1)",
        "@self.app.task(name='f')\nasync def f():\n    await asyncio.sleep(1)",
        "@worker.task('f')\nasync def f():\n    def g():\n        time.sleep(1)",
        "@app.job\nclass F(Job):\n    def run(self):\n        time.sleep(1)",
        "text = '@app.task\\ndef f():\\n    time.sleep(1)'",
    ],
)
def test_the_work_of_a_task_may_take_time(code: str) -> None:
    assert [task for _, task in sleeps(code)] == [True]


@pytest.mark.parametrize(
    "code",
    ["asyncio.sleep(0)", "gate.wait(1)", "select.select([fd], [], [], 1)", "run('sleep 600')",
     "tx.run('SELECT pg_sleep(1)')"],
)  # fmt: skip
def test_what_is_no_sleep_is_not_counted(code: str) -> None:
    assert sleeps(code) == []

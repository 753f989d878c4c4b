"""What README and docs show is true: examples run, commands exist, links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bench.scenarios import SCENARIOS
from headgate.cli import root
from tests.docs.pages import ROOT, Page, blocks, same

README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [README, *DOCS]
LINKED = [*PAGES, *DECISIONS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a reader: the examples find their files there, and leave nothing else."""
    for name in [n for n in os.environ if n.startswith("HEADGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if name not in before and str(tmp_path) in (getattr(module, "__file__", None) or ""):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_can_be_followed_from_top_to_bottom(page: Path, here: Path) -> None:
    at_work = Page(page, here)
    try:
        at_work.run()
    finally:
        at_work.close()


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_runs_as_its_first_lines_say(script: Path, here: Path) -> None:
    told = script.read_text(encoding="utf-8")
    assert f"    python examples/{script.name}\n" in told
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=30, cwd=here
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not list(here.iterdir())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_exists(page: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for block in blocks(page):
        if block.kind not in ("sh", "console", "ini"):
            continue
        for line in block.body.splitlines():
            command = line.removeprefix("$ ").split(" | ")[0]
            words = shlex.split(command, comments=True) if _is_ours(command) else []
            if words[:1] == ["make"]:
                assert words[1] in targets, line
            elif words[:1] == ["headgate"]:
                parse(words[1:], line)


def _is_ours(line: str) -> bool:
    # Commands only: output may hold quotes that are none.
    return bool(re.match(r"(headgate|make) ", line)) and not re.search(r"[;&<>]", line)


def parse(words: list[str], line: str) -> None:
    """Let click read the words as it would, without doing anything."""
    command: click.Command = root
    context: click.Context | None = None
    try:
        while True:
            context = command.make_context(command.name, words, parent=context)
            if not isinstance(command, click.Group):
                return
            words = [*context._protected_args, *context.args]
            _, found, words = command.resolve_command(context, words)
            assert found is not None
            command = found
    except click.exceptions.Exit:
        return  # --help and --version end here
    except click.ClickException as error:
        raise AssertionError(f"{line}: {error.format_message()}") from None


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", text):
        if re.match(r"\w+:", target):
            continue
        found = page.parent / target if target else page
        assert found.exists(), f"{page.name} links to {target}, which is not there"
        if anchor:
            assert anchor[1:] in anchors(found), f"{page.name} links to {target}{anchor}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_linked_from_the_index_and_the_readme() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    for page in DOCS:
        assert page.name == "index.md" or f"({page.name})" in index
        assert f"(docs/{page.name})" in readme


def test_what_the_promises_are_checked_by_is_there() -> None:
    text = README.read_text(encoding="utf-8")
    table = text[text.index("| promise |") : text.index("The checker (")]
    rows = [line for line in table.splitlines() if line.startswith("| **")]
    assert rows
    for row in rows:
        checked_by = row.split("|")[2]
        for name in re.findall(r"`([^`]+)`", checked_by):
            if name.startswith("make "):
                words = name.split()
                assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), name
                for scenario in re.findall(r"SCENARIO=([\w-]+)", name):
                    assert scenario in SCENARIOS, name
            elif "/" in name:
                assert (ROOT / name).exists(), name
            else:
                assert list((ROOT / "tests").rglob(name)), name


def test_output_is_compared() -> None:
    """The judge itself: it must see what differs, and only that."""
    assert same(["job 01a1e2c9-5220-7d12-b1a2-6a3523ffa688  2.1 s ago"],
                ["job 01a1e2ff-ffff-7d12-b1a2-6a3523ffa688 0.3 s ago"])  # fmt: skip
    assert same(["a …", "…", "z"], ["a b c", "x", "y", "z"])
    assert not same(["2 of 2"], ["3 of 2"])
    assert not same(["one"], ["one", "two"])
    assert not same(["one", "two"], ["one"])

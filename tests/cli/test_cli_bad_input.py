"""What nobody should type: refused with a word, never with a traceback; shown harmlessly."""

from __future__ import annotations

import click
import pytest
from conftest import Command
from hands import Hands, job, publish

from headgate.cli import root
from headgate.jobs import Failure, Finish
from headgate.stores.protocol import Store

NO_TEXT = "\udcff"
"""How a byte that is no UTF-8 reaches a program."""


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", NO_TEXT),
        ("submit", "mail", "--queue", NO_TEXT),
        ("jobs", "ls", "--after", NO_TEXT),
        ("jobs", "ls", "--task", NO_TEXT),
        ("jobs", "show", NO_TEXT),
        ("jobs", "why", NO_TEXT),
        ("jobs", "cancel", NO_TEXT),
        ("jobs", "cancel", "--yes", "--state", "ready", "--reason", NO_TEXT),
        ("jobs", "ls", "--limit", "9" * 30),
        ("jobs", "ls", "--since", "yesterday"),
        ("concurrency", "status", NO_TEXT),
        ("concurrency", "set", "gpu", "--limit", "2", "--reason", NO_TEXT),
        ("concurrency", "set", "gpu", "--limit", "2", "--reason", " "),
        ("concurrency", "release", "gpu", "9" * 30, "--force"),
        ("concurrency", "history", "--limit", "9" * 30),
        ("queues", "pause", NO_TEXT),
    ],
    ids=lambda arguments: ascii(" ".join(arguments))[:60],
)
def test_bad_input_is_refused_in_words(
    headgate: Command, store: Store, arguments: tuple[str, ...]
) -> None:
    store.submit([job()])
    answer = headgate(*arguments)
    assert answer.code == 2, answer
    assert answer.err.strip()
    assert answer.out == ""


def test_a_page_after_an_unknown_job_is_no_empty_page(headgate: Command) -> None:
    answer = headgate("jobs", "ls", "--after", "nope")
    assert answer.code == 3
    assert "names no job" in answer.err


def test_a_mistyped_group_or_queue_is_noticed(headgate: Command, store: Store) -> None:
    publish(store, gpu=4)
    store.submit([job()])
    known = headgate("concurrency", "set", "gpu", "--limit", "2", "--reason", "slow")
    typed = headgate("concurrency", "set", "gpo", "--limit", "2", "--reason", "slow")
    assert (known.code, known.err) == (0, "")
    assert typed.code == 0
    assert "is the name right?" in typed.err
    assert headgate("queues", "pause", "default").err == ""
    assert "is the name right?" in headgate("queues", "pause", "defualt").err


def test_what_a_job_said_does_not_move_the_cursor(headgate: Command, store: Store) -> None:
    publish(store)
    hands = Hands(store, "mail")
    (made,) = store.submit([job()])
    (claimed,) = hands.claim()
    evil = Failure("ValueError", "\x1b[2Jgone", "Traceback …\nValueError: \x1b[2Jgone")
    hands.finish(Finish(claimed.token, "failed", "\x1b[2J", error=evil))
    for verb in ("show", "why"):
        answer = headgate("jobs", verb, made.id)
        assert answer.code == 0
        assert "\x1b" not in answer.out + answer.err
        assert "gone" in answer.out
    store.unregister(hands.id)


def test_every_flag_has_the_environment_variable_that_help_promises() -> None:
    checked: list[str] = []

    def walk(command: click.Command, ctx: click.Context, words: list[str]) -> None:
        for option in command.params:
            if not isinstance(option, click.Option) or option.is_eager:
                continue
            flag = max(option.opts, key=len).lstrip("-").replace("-", "_")
            name = "_".join(["HEADGATE", *words, flag]).upper().replace("-", "_")
            # These two are read where the configuration is merged (tests/face/test_config.py).
            if name not in ("HEADGATE_URL", "HEADGATE_CONFIG"):
                read = option.envvar or f"{ctx.auto_envvar_prefix}_{(option.name or '').upper()}"
                assert read == name
                checked.append(name)
        if isinstance(command, click.Group):
            for word in command.list_commands(ctx):
                below = command.get_command(ctx, word)
                assert below is not None
                walk(below, click.Context(below, parent=ctx, info_name=word), [*words, word])

    walk(root, click.Context(root, info_name="headgate", auto_envvar_prefix="HEADGATE"), [])
    assert {"HEADGATE_JSON", "HEADGATE_SUBMIT_APP", "HEADGATE_WORKER_CONCURRENCY"} <= {*checked}


def test_json_by_the_environment(headgate: Command) -> None:
    assert headgate("jobs", "ls", env={"HEADGATE_JSON": "1"}).json == {"jobs": [], "after": None}

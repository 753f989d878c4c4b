"""The options by which what runs for long tells how it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def telling(command: F) -> F:
    """Adds --metrics, --key-metrics, --otel, --log-format and --log-level."""
    for option in (
        click.option(
            "--log-level",
            type=click.Choice(("debug", "info", "warning", "error"), case_sensitive=False),
            default="info",
            show_default=True,
            help="What is worth a line on stderr.",
        ),
        click.option(
            "--log-format",
            type=click.Choice(("text", "json")),
            default="text",
            show_default=True,
            help="json: a document a line, with job, attempt and group.",
        ),
        click.option(
            "--otel",
            is_flag=True,
            help="Send OpenTelemetry spans and metrics where OTEL_EXPORTER_OTLP_ENDPOINT says.",
        ),
        click.option(
            "--key-metrics",
            metavar="LIMIT",
            multiple=True,
            help="Tell the keys of this limit apart in --metrics.",
        ),
        click.option("--metrics", metavar="HOST:PORT", help="Serve /metrics for Prometheus there."),
    ):
        command = option(command)
    return command

"""The command line: one file a noun. Each is imported only when its command is used."""

from __future__ import annotations

import importlib
import sys
from typing import Any, ClassVar

import click

from headgate.errors import HeadgateError

EPILOG = """\b
Exit codes:
  0  done
  1  trouble was found, or a job failed
  2  the command or its input cannot be used
  3  no such job, group, slot, queue, task or schedule
  4  the store is not available
  5  a cap refused the job: one too many
\b
Every flag has an environment variable: HEADGATE_ and the words of the command,
as in HEADGATE_URL, HEADGATE_WORKER_CONCURRENCY or HEADGATE_JOBS_LS_LIMIT.
A flag wins over the environment, that over headgate.toml."""


class Root(click.Group):
    """`headgate`: finds its commands by name, and turns errors into one line and a code."""

    nouns: ClassVar[dict[str, tuple[str, str]]] = {
        "worker": ("headgate.cli.worker:worker", "Run the jobs of an app."),
        "submit": ("headgate.cli.submit:submit", "Submit a job by the name of its task."),
        "jobs": ("headgate.cli.jobs:jobs", "List, show, cancel and retry jobs; why they wait."),
        "concurrency": ("headgate.cli.concurrency:concurrency", "Limits, and who holds them."),
        "queues": ("headgate.cli.queues:queues", "List, pause and resume queues."),
        "workers": ("headgate.cli.workers:workers", "The workers that are alive."),
        "schedules": ("headgate.cli.schedules:schedules", "What runs by the clock, and when."),
        "scheduler": ("headgate.cli.scheduler:scheduler", "Run the jobs of a configuration."),
        "config": ("headgate.cli.configcheck:config", "Check a configuration of jobs."),
        "import": ("headgate.cli.imports:imports", "Make a headgate.toml of a crontab or dsari."),
        "dashboard": ("headgate.cli.dashboard:dashboard", "Serve the pages, API and metrics."),
        "top": ("headgate.cli.top:top", "Groups, workers and throughput, live."),
        "watch": ("headgate.cli.watch:watch", "Follow a job until it ends."),
        "demo": ("headgate.cli.demo:demo", "See limits hold while a worker is killed."),
        "migrate": ("headgate.cli.migrate:migrate", "Make or upgrade the tables of PostgreSQL."),
        "doctor": ("headgate.cli.doctor:doctor", "Check the store and the configuration."),
        "completion": ("headgate.cli.completion:completion", "For bash, zsh and fish."),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.nouns)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.nouns:
            return None
        module, _, name = self.nouns[cmd_name][0].partition(":")
        return getattr(importlib.import_module(module), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table above: the help of all commands must not import all of them.
        with formatter.section("Commands"):
            formatter.write_dl([(noun, text) for noun, (_, text) in self.nouns.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HeadgateError as error:
            from headgate.cli.exits import exit_code

            # One line, whatever the message holds: it may quote what somebody submitted.
            from headgate.codec import visible

            message = visible(" ".join(str(error).split())) or type(error).__name__
            click.echo(f"headgate: {message}", err=True)
            raise click.exceptions.Exit(exit_code(error)) from error


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"headgate {version('headgate')}")
        ctx.exit()


@click.command(
    "headgate",
    cls=Root,
    epilog=EPILOG,
    context_settings={"auto_envvar_prefix": "HEADGATE", "help_option_names": ["-h", "--help"]},
)
# HEADGATE_URL and HEADGATE_CONFIG are read where the configuration is merged, not here: only a
# flag may win over the url that an app names itself.
@click.option(
    "--url", metavar="URL", allow_from_autoenv=False, help="The store, as in sqlite:///jobs.db."
)
@click.option(
    "--config", metavar="FILE", allow_from_autoenv=False,
    help="The configuration file, else ./headgate.toml.",
)  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True, envvar="HEADGATE_JSON", help="One JSON document on stdout."
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version,
    help="Show the version.",
)  # fmt: skip
@click.pass_context
def root(ctx: click.Context, url: str | None, config: str | None, as_json: bool) -> None:
    """A job queue in which how many may run at once is exact, fair and free."""
    from headgate.cli.frame import Frame

    ctx.obj = Frame(url, config, as_json)


def main() -> None:
    """The entry of the `headgate` command."""
    sys.exit(root(prog_name="headgate"))

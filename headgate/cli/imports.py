"""`headgate import`: a headgate.toml of what ran the jobs so far."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from headgate.cli.frame import Frame, Verb, pass_frame

_output = click.option(
    "-o", "--output", metavar="FILE", type=click.Path(),
    help="Write it there, if there is no such file yet; else on stdout.",
)  # fmt: skip


@click.group("import")
def imports() -> None:
    """Make a headgate.toml of a crontab, or of a configuration of dsari."""


@imports.command(cls=Verb)
@click.argument("file", metavar="FILE", default="-")
@click.option("--system", is_flag=True, help="A user stands before each command, as in /etc.")
@_output
@pass_frame
def crontab(frame: Frame, file: str, system: bool, output: str | None) -> None:
    """The jobs of a crontab; - reads standard input. What cannot be carried over is said.

    \b
    crontab -l | headgate import crontab > headgate.toml
    headgate import crontab --system /etc/crontab -o headgate.toml
    """
    from headgate.configuration.crontab import read, to_toml

    name = "the crontab" if file == "-" else file
    found = read(_content(file), name, system=system)
    made = to_toml(found, name)
    _deliver(frame, made, output, [str(p) for p in found.problems], len(found.entries))


@imports.command(cls=Verb)
@click.argument("file", metavar="FILE", type=click.Path())
@_output
@pass_frame
def dsari(frame: Frame, file: str, output: str | None) -> None:
    """The jobs of dsari: a dsari.json or dsari.yaml, or the directory that it lies in.

    It need not be imported: `headgate scheduler` runs it as it is.

    \b
    headgate import dsari /etc/dsari -o headgate.toml
    """
    from headgate.configuration.checking import check
    from headgate.configuration.reading import read
    from headgate.configuration.writing import from_dsari

    source = read(file)
    checked, problems = check(source)
    made = from_dsari(source, checked)
    _deliver(frame, made, output, [str(p) for p in problems], len(checked.jobs))


def _content(file: str) -> str:
    from headgate.configuration.crontab import decoded
    from headgate.errors import ConfigError

    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    return decoded(raw)


def _deliver(frame: Frame, made: str, output: str | None, notes: list[str], jobs: int) -> None:
    from headgate.cli.show import note
    from headgate.errors import ConfigError

    if output is not None:
        try:
            with Path(output).open("x", encoding="utf-8") as file:
                file.write(made)
        except FileExistsError:
            raise ConfigError(f"{output} is there already: name another file") from None
        except OSError as error:
            raise ConfigError(f"{output}: cannot be written: {error.strerror}") from None
    if frame.as_json:
        frame.print_json({"jobs": jobs, "notes": notes, "output": output, "toml": made})
        return
    if output is None:
        click.echo(made, nl=False)
    for told in notes:
        note(told)
    if output is not None:
        note(
            f"headgate: {jobs} jobs are in {output}; look at it, then: headgate scheduler {output}"
        )

"""Writes a headgate.toml that somebody will read and go on with."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, cast

from headgate.codec import visible
from headgate.config import CONFIG_KEYS, SCHEDULER_KEYS
from headgate.configuration.jobchecks import JOB_KEYS, spread_seconds
from headgate.configuration.model import Scheduled
from headgate.configuration.reading import Data, Source

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_KNOWN_OF_JOBS = frozenset((*JOB_KEYS, "job_names")) - {"render_reports"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_IGNORED_ROOT = (
    *("config_d", "database", "template_dir", "report_html_gz", "report_output_limit"),
    *("report_run_output_start", "report_run_output_end"),
)


def key(name: str) -> str:
    """
    >>> key("host-a"), key("a.b")
    ('host-a', '"a.b"')
    """
    return name if _BARE.fullmatch(name) else text(name)


def text(value: str) -> str:
    """A basic string of TOML; what JSON escapes, TOML escapes the same way."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def value(found: object) -> str:
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, int | float):
        return str(found)
    if isinstance(found, list | tuple):
        return "[" + ", ".join(value(item) for item in cast("list[object]", found)) + "]"
    if isinstance(found, Mapping):
        pairs = cast("Mapping[str, object]", found).items()
        return "{ " + ", ".join(f"{key(k)} = {value(v)}" for k, v in pairs) + " }"
    written = str(found)
    if (
        "\n" in written
        and "'''" not in written
        and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", written)
    ):
        return f"'''\n{written}'''"
    return text(written)


def table(path: Iterable[str], content: Mapping[str, Any]) -> list[str]:
    """A table with its values, then the tables inside it; what is null is left out."""
    names = list(path)
    plain = {k: v for k, v in content.items() if v is not None and not isinstance(v, dict)}
    inner = {k: cast("Data", v) for k, v in content.items() if isinstance(v, dict)}
    lines: list[str] = []
    if names and (plain or not inner):
        lines.append(f"[{'.'.join(map(key, names))}]")
    lines += [f"{key(k)} = {value(v)}" for k, v in plain.items()]
    if lines:
        lines.append("")
    for name, more in inner.items():
        lines += table([*names, name], more)
    return lines


def comment(told: str) -> str:
    return "\n".join(f"# {visible(row)}".rstrip() for row in told.splitlines())


# --- from dsari ------------------------------------------------------------------------------


def from_dsari(source: Source, checked: Scheduled) -> str:
    """The same configuration as a headgate.toml. Where the formats differ, it says what dsari
    means: words instead of a line for the shell, a second of the minute of the job's own."""
    # What dsari passes over in silence is an error in our format: it is left out.
    known = (*CONFIG_KEYS, *SCHEDULER_KEYS)
    data = {k: v for k, v in source.data.items() if k in known and k not in _IGNORED_ROOT}
    jobs = cast("Data", data.pop("jobs", None) or {})
    job_groups = cast("Data", data.pop("job_groups", None) or {})
    groups = dict(cast("Data", data.pop("concurrency_groups", None) or {}))
    environment = cast("Data", data.pop("environment", None) or {})
    lines = [comment(f"From {source.main.name}, a configuration of dsari."), ""]
    lines += table([], data)
    if environment:
        lines += table(["environment"], environment)
    for name in sorted(checked.undeclared):
        groups[name] = {"max": 1}
    for name, group in groups.items():
        if name in checked.undeclared:
            lines.append(comment("Named by jobs only: dsari takes it for 1."))
        most = cast("Data", group or {}).get("max")
        lines += table(["concurrency_groups", name], {"max": 1 if most is None else most})
    for kind, found in (("jobs", jobs), ("job_groups", job_groups)):
        for name, job in found.items():
            lines += table([kind, name], _job(cast("Data", job)))
    return "\n".join(lines).rstrip() + "\n"


def _job(job: Data) -> Data:
    made = {k: v for k, v in job.items() if k in _KNOWN_OF_JOBS}
    if isinstance(made.get("command"), str):
        made["command"] = shlex.split(made["command"])
    if isinstance(made.get("schedule"), str):
        made["schedule"] = spread_seconds(made["schedule"])
    return made

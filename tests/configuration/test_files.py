"""Configurations from files: every format, several merged, and where each problem stands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from headgate.config import Config
from headgate.configuration.checking import load
from headgate.configuration.problems import ConfigurationError, shown
from headgate.configuration.reading import read

JOB = {"command": ["true"], "schedule": "* * * * *"}


def problems_of(path: Path) -> list[str]:
    """Each as `line path: message`, the file left out."""
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    return [f"{p.line} {shown(p.path)}: {p.message}" for p in caught.value.problems]


def write(folder: Path, name: str, content: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


def test_the_same_jobs_in_three_formats(tmp_path: Path) -> None:
    toml = write(
        tmp_path,
        "headgate.toml",
        '[jobs.a]\ncommand = ["ls", "-l"]\nschedule = "0 2 * * * 5"\nmax_execution = "5m"\n'
        'concurrency_groups = ["g"]\n[concurrency_groups.g]\nmax = 2\n',
    )
    data = {
        "jobs": {
            "a": {
                "command": ["ls", "-l"],
                "schedule": "0 2 * * * 5",
                "max_execution": 300,
                "concurrency_groups": ["g"],
            }
        },
        "concurrency_groups": {"g": {"max": 2}},
    }
    as_json = write(tmp_path, "a.json", json.dumps(data, indent="\t"))
    as_yaml = write(
        tmp_path,
        "b.yaml",
        "jobs:\n  a:\n    command: ls -l\n    schedule: 0 2 * * * 5\n    max_execution: 300\n"
        "    concurrency_groups: [g]\nconcurrency_groups: {g: {max: 2}}\n",
    )
    found = [load(file)[0] for file in (toml, as_json, as_yaml)]
    assert found[0].jobs == found[1].jobs == found[2].jobs
    assert [one.groups for one in found] == [{"g": 2}] * 3


def test_a_directory_of_dsari_is_merged_deeply_the_later_over_the_earlier(tmp_path: Path) -> None:
    write(tmp_path, "dsari.yaml", "jobs: {a: {command: one, environment: {X: 1, Y: 1}}}")
    write(tmp_path, "dsari.json", '{"jobs": {"a": {"environment": {"Y": 2}}}}')
    write(tmp_path, "config.d/10.json", '{"jobs": {"a": {"environment": {"Z": 4}}}}')
    write(tmp_path, "config.d/20.yaml", "jobs: {a: {environment: {Z: 3}}, b: {command: two}}")
    write(tmp_path, "config.d/README", "not a configuration")
    found, _ = load(tmp_path)
    assert found.jobs["a"].environment == {"X": "1", "Y": "2", "Z": "4"}
    assert found.jobs["b"].command == ("two",)
    assert found.data_dir == tmp_path
    assert found.config.url == f"sqlite:///{tmp_path}/headgate.db"


def test_config_d_may_be_named_and_must_be_there_then(tmp_path: Path) -> None:
    file = write(tmp_path, "x.json", '{"config_d": "more", "jobs": {}}')
    assert "is no directory" in problems_of(file)[0]
    write(tmp_path, "more/a.json", json.dumps({"jobs": {"a": JOB}}))
    assert list(load(file)[0].jobs) == ["a"]


def test_a_directory_without_any_configuration_says_what_it_looked_for(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path)
    assert "headgate.toml, dsari.yaml" in problem


def test_several_files_that_cannot_be_read_are_all_told(tmp_path: Path) -> None:
    write(tmp_path, "dsari.json", '{"jobs": {}')
    write(tmp_path, "config.d/a.yaml", "a: [1\nb: 2")
    write(tmp_path, "config.d/b.json", "\xff")
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path)
    assert [Path(p.file).name for p in caught.value.problems] == ["dsari.json", "a.yaml", "b.json"]
    assert [p.line for p in caught.value.problems] == [1, 2, 1]


@pytest.mark.parametrize(
    ("name", "content", "line", "told"),
    [
        ("a.toml", "x = 1\ny = ", 2, "not valid TOML"),
        ("a.json", '{"jobs": {},\n}', 2, "not valid JSON"),
        ("a.json", '{"a": NaN}', None, "NaN is no number"),
        ("a.json", '{"a": 1, "a": 2}', None, "'a' stands twice"),
        ("a.json", "[1]", None, "must hold a table at its root, not a list"),
        ("a.json", "[" * 100_000, None, "nested too deeply"),
        ("a.json", '{"a":' * 80 + "1" + "}" * 80, None, "nested more than 64 deep"),
        ("a.json", '{"a": "\\ud800"}', None, "half a character"),
        ("a.json", '{"a": "\\u0000"}', None, "NUL"),
        ("a.yaml", "a: 1\na: 2", 2, "'a' stands twice"),
        ("a.yaml", "a: &x [*x]", None, "nested"),
        ("a.yaml", "a: !!python/object:os.system x", 1, "could not determine a constructor"),
        ("a.yaml", "a: 1\nb: !!int x", 2, "does not fit its kind"),
        ("a.yaml", "a: 1\n\x01", 2, "cannot stand here"),
        ("a.yaml", "? [1]\n: 2", 1, "unhashable"),
        ("a.ini", "[jobs]", None, "is none of .toml"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_line(
    tmp_path: Path, name: str, content: str, line: int | None, told: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(write(tmp_path, name, content))
    (problem,) = caught.value.problems
    assert told in str(problem)
    assert problem.file == str(tmp_path / name)
    if line is not None:
        assert problem.line == line


def test_little_text_cannot_become_much(tmp_path: Path) -> None:
    rows = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    rows += [
        f"{n}: &{n} [{', '.join([f'*{p}'] * 10)}]" for p, n in zip("abcdef", "bcdefg", strict=True)
    ]
    file = write(tmp_path, "bomb.yaml", "\n".join(rows))
    with pytest.raises(ConfigurationError, match="more than 1,000,000 values"):
        read(file)


def test_lines_are_found_in_every_format(tmp_path: Path) -> None:
    toml = '# a comment that says jobs.b\n\n[jobs."a b"]\ncommand = [\n  "x",\n]\nschedule = "1"\n'
    assert problems_of(write(tmp_path, "a.toml", toml))[0].startswith('7 jobs."a b".schedule:')
    text = '{\n\t"jobs": {\n\t\t"b": {\n\t\t\t"command": "x",\n\t\t\t"schedule": "1"\n}}}'
    assert problems_of(write(tmp_path, "a.json", text))[0].startswith("5 jobs.b.schedule:")
    text = "jobs:\n  c:\n    command: x\n    concurrency_groups:\n      - a\n      - 7\n"
    assert problems_of(write(tmp_path, "a.yaml", text))[0].startswith(
        "4 jobs.c.concurrency_groups:"
    )


def test_other_commands_find_the_store_of_a_scheduler(tmp_path: Path) -> None:
    """`headgate --config FILE jobs ls` and its kin read the same file."""
    write(tmp_path, "headgate.toml", '[jobs.a]\ncommand = "true"\n')
    assert Config.load(tmp_path / "headgate.toml", environ={}).url.endswith("/headgate.db")
    write(tmp_path, "dsari.json", json.dumps({"data_dir": "var", "jobs": {"a": JOB}}))
    expected = f"sqlite:///{tmp_path}/var/headgate.db"
    assert Config.load(tmp_path / "dsari.json", environ={}).url == expected
    assert load(tmp_path / "dsari.json", environ={})[0].config.url == expected
    named = write(tmp_path, "b.toml", 'url = "sqlite:////x.db"\n[jobs.a]\ncommand = "true"\n')
    assert Config.load(named, environ={}).url == "sqlite:////x.db"


@pytest.mark.parametrize(
    ("content", "told", "line"),
    [
        (
            '{"jobs": {\n "a": {"command": "x"},\n "b": {"command": "\\"a\\":"},\n "a": 1}}',
            "'a'",
            4,
        ),
        ('{"a": [{"a": {}}, {\n"b": 1,\n"\\u0062": 2}]}', "'b'", 3),
        ('{"a": "NaN",\n"b": [1,\nNaN]}', "NaN is no number", 3),
        ('{"a": "-Infinity",\n"b":\n\n-Infinity}', "-Infinity is no number", 4),
    ],
)
def test_what_json_itself_allows_and_we_do_not_has_its_line(
    content: str, told: str, line: int, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(write(tmp_path, "a.json", content))
    (problem,) = caught.value.problems
    assert told in problem.message
    assert problem.line == line


def test_a_line_ends_with_a_line_feed_and_nothing_else(tmp_path: Path) -> None:
    toml = '# a\u2028b\x85c\n[jobs.a]\ncommand = "x\u2028y"\nschedule = "1"\n'
    assert problems_of(write(tmp_path, "a.toml", toml))[0].startswith("4 jobs.a.schedule:")


@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_named_and_never_read(tmp_path: Path) -> None:
    """To read a pipe could take for ever, and whoever waits would obey no further order."""
    os.mkfifo(tmp_path / "dsari.json")
    (told,) = problems_of(tmp_path / "dsari.json")
    assert "is no regular file" in told
    write(tmp_path, "b/dsari.json", json.dumps({"jobs": {"a": JOB}}))
    (tmp_path / "b" / "config.d").mkdir()
    os.mkfifo(tmp_path / "b" / "config.d" / "1.json")
    (tmp_path / "b" / "config.d" / "2.yaml").symlink_to("nowhere")
    (tmp_path / "b" / "config.d" / "3.json").mkdir()
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path / "b")
    named = [(Path(p.file or "").name, p.message) for p in caught.value.problems]
    assert sorted(named) == [
        ("1.json", "cannot be read: is no regular file"),
        ("2.yaml", "cannot be read: no such file"),
    ]

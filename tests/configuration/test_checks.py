"""What a configuration may say, and all that may be wrong with it, told at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.configuration.checking import load
from headgate.configuration.model import Scheduled
from headgate.configuration.problems import ConfigurationError, shown


def checked(folder: Path, data: dict[str, Any], name: str = "dsari.json") -> Scheduled:
    file = folder / name
    file.write_text(json.dumps(data))
    return load(file, environ={})[0]


def told(folder: Path, data: dict[str, Any]) -> dict[str, str]:
    """Message by path, warnings included."""
    file = folder / "dsari.json"
    file.write_text(json.dumps(data))
    try:
        problems = load(file, environ={})[1]
    except ConfigurationError as error:
        problems = list(error.problems)
    return {shown(problem.path): problem.message for problem in problems}


def test_everything_that_dsari_knows(tmp_path: Path) -> None:
    found = checked(
        tmp_path,
        {
            "data_dir": "/srv/var",
            "environment": {"A": "1", "N": 2, "T": True},
            "shutdown_kill_runs": True,
            "shutdown_kill_grace": 5.0,
            "template_dir": "/x",
            "report_html_gz": True,
            "database": {"type": "sqlite3"},
            "jobs": {
                "full": {
                    "command": "ssh host 'a b'",
                    "command_append_run": True,
                    "schedule": "H/5 * * * *",
                    "schedule_timezone": "Europe/Berlin",
                    "environment": {"B": "2"},
                    "max_execution": 300.0,
                    "max_execution_grace": 10,
                    "concurrency_groups": ["g", "h"],
                    "render_reports": False,
                    "jenkins_environment": True,
                    "concurrent_runs": True,
                },
                "by-hand": {"command": ["x"], "schedule": None},
            },
            "job_groups": {"twins": {"job_names": ["t1", "t2"], "command": ["y"]}},
            "concurrency_groups": {"g": {"max": 3}, "h": {}},
        },
    )
    full = found.jobs["full"]
    assert full.command == ("ssh", "host", "a b")
    assert full.schedule is not None
    assert (full.schedule.when, full.schedule.timezone) == ("H/5 * * * * H", "Europe/Berlin")
    assert (full.max_execution, full.max_execution_grace) == (300.0, 10.0)
    assert full.concurrency_groups == ("g", "h")
    assert full.command_append_run
    assert full.jenkins_environment
    assert full.concurrent_runs
    assert found.jobs["by-hand"].schedule is None
    assert [found.jobs[name].job_group for name in ("t1", "t2")] == ["twins", "twins"]
    assert found.environment == {"A": "1", "N": "2", "T": "true"}
    assert found.groups == {"g": 3, "h": 1}
    assert found.config.limits == {"g": 3, "h": 1}
    assert found.data_dir == Path("/srv/var")
    assert (found.shutdown_kill_runs, found.shutdown_kill_grace) == (True, 5.0)


def test_all_problems_are_told_at_once_each_with_its_place(tmp_path: Path) -> None:
    problems = told(
        tmp_path,
        {
            "shutdown_kill_runs": "yes",
            "environment": {"A=": "x", "B": []},
            "schedule_timezone": "Mars/Olympus",
            "jobs": {
                "a/b": {"command": ["x"]},
                "none": {},
                "c": {
                    "command": "'unclosed",
                    "schedule": "* * *",
                    "max_execution": 0,
                    "concurrency_groups": "g",
                },
                "d": {"command": ["x"], "schedule_timezone": "Nowhere", "retries": -1},
                "e": 5,
            },
            "job_groups": {"g": {"command": "x"}, "h": {"job_names": ["d"], "command": "x"}},
            "concurrency_groups": {"g": {"max": -1}, "h": 2},
        },
    )
    assert set(problems) == {
        "shutdown_kill_runs",
        'environment."A="',
        "environment.B",
        "schedule_timezone",
        'jobs."a/b"',
        "jobs.none",
        "jobs.c.command",
        "jobs.c.schedule",
        "jobs.c.max_execution",
        "jobs.c.concurrency_groups",
        "jobs.d.schedule_timezone",
        "jobs.d.retries",
        "jobs.e",
        "job_groups.g",
        "concurrency_groups.g.max",
        "concurrency_groups.h",
    }


def test_an_undeclared_group_is_one_with_a_warning_that_names_it(tmp_path: Path) -> None:
    data = {"jobs": {"a": {"command": "x", "concurrency_groups": ["typo"]}}}
    assert checked(tmp_path, data).groups == {"typo": 1}
    assert "'typo' is not declared" in told(tmp_path, data)["jobs.a.concurrency_groups[0]"]


def test_an_unknown_key_is_an_error_in_our_format_and_a_warning_in_dsaris(tmp_path: Path) -> None:
    data = {"jobs": {"a": {"command": "x", "shedule": "@daily"}}}
    assert told(tmp_path, data)["jobs.a.shedule"] == "unknown key: did you mean 'schedule'?"
    assert checked(tmp_path, data).jobs["a"].schedule is None
    toml = tmp_path / "headgate.toml"
    toml.write_text('[jobs.a]\ncommand = "x"\nshedule = "@daily"\n')
    with pytest.raises(ConfigurationError, match="did you mean 'schedule'"):
        load(toml)


def test_a_text_is_a_shell_line_in_our_format_and_words_in_dsaris(tmp_path: Path) -> None:
    toml = tmp_path / "headgate.toml"
    toml.write_text('[jobs.a]\ncommand = "x | y"\n')
    assert load(toml)[0].jobs["a"].command == "x | y"
    assert checked(tmp_path, {"jobs": {"a": {"command": "x | y"}}}).jobs["a"].command == (
        "x",
        "|",
        "y",
    )


def test_the_rest_of_headgate_toml_is_checked_too(tmp_path: Path) -> None:
    toml = tmp_path / "headgate.toml"
    toml.write_text('[jobs.a]\ncommand = "x"\n[retention]\nfailed = "soon"\n')
    with pytest.raises(ConfigurationError) as caught:
        load(toml, environ={})
    (problem,) = caught.value.problems
    assert (shown(problem.path), problem.line) == ("retention.failed", 4)


def test_limits_that_all_must_be_held_beside_the_groups(tmp_path: Path) -> None:
    toml = tmp_path / "headgate.toml"
    toml.write_text(
        '[jobs.a]\ncommand = "x"\nlimits = ["disk"]\nconcurrency_groups = ["h"]\n'
        "[concurrency.limits]\ndisk = 1\nh = 4\n"
    )
    assert load(toml, environ={})[0].groups == {"disk": 1, "h": 4}
    toml.write_text('[jobs.a]\ncommand = "x"\nlimits = ["disc"]\n')
    with pytest.raises(ConfigurationError, match="no limit 'disc'"):
        load(toml, environ={})


def test_whom_to_tell(tmp_path: Path) -> None:
    data: dict[str, Any] = {
        "notify": {"webhook": "https://x.example/hook", "on": ["failure", "recovery"]},
        "jobs": {"a": {"command": "x"}, "b": {"command": "x", "notify": False}},
    }
    found = checked(tmp_path, data)
    assert found.jobs["a"].notify == {"failure", "recovery"}
    assert found.jobs["b"].notify == frozenset()
    data["notify"] = {"webhook": "ftp://x", "on": ["success"]}
    assert set(told(tmp_path, data)) == {"notify.webhook", "notify.on"}
    assert told(tmp_path, {"jobs": {"a": {"command": "x", "notify": True}}}).keys() == {
        "jobs.a.notify"
    }


def test_where_things_are_kept(tmp_path: Path) -> None:
    data = {"jobs": {"a": {"command": "x"}}}
    assert checked(tmp_path, data).data_dir == tmp_path
    assert checked(tmp_path, {"data_dir": "var", **data}).data_dir == tmp_path / "var"
    home = tmp_path / ".dsari" / "etc"
    home.mkdir(parents=True)
    assert checked(home, data).data_dir == tmp_path / ".dsari" / "var"
    assert "data_dir" in told(tmp_path, {"data_dir": 5, **data})


def test_a_job_and_a_group_of_one_name_are_two_things(tmp_path: Path) -> None:
    from headgate.configuration.building import build
    from headgate.limits import Need

    data = {
        "jobs": {"x": {"command": "x", "concurrency_groups": ["x"]}, "y": {"command": "y"}},
        "concurrency_groups": {"x": {"max": 3}},
    }
    app, _ = build(checked(tmp_path, data))
    needs = app.tasks["x"].call().new_job().needs
    assert needs.all == (Need("x (runs)"),)
    assert needs.one_of == ((Need("x"),),)
    assert app.tasks["y"].call().new_job().needs.all == (Need("y"),)
    assert app.publication("").code == {"x (runs)": 1, "y": 1}
    assert app.publication("").file == {"x": 3}


def test_names_of_ours_cannot_be_taken(tmp_path: Path) -> None:
    assert list(told(tmp_path, {"jobs": {"headgate.notify": {"command": "x"}}})) == [
        'jobs."headgate.notify"'
    ]


def test_what_is_no_job_at_all_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        checked(tmp_path, {"jobs": {"x": 1, "y": {"command": 5}}})
    assert [(shown(p.path), p.message) for p in error.value.problems] == [
        ("jobs.x", "must be a table, got 1"),
        (
            "jobs.y.command",
            "must be a list of a program and its arguments, or a text as one would type it, got 5",
        ),
    ]


def test_a_config_d_that_is_not_there_is_told_where_it_is_named(tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text('# first\nconfig_d = "more"\n')
    with pytest.raises(ConfigurationError) as error:
        load(file, environ={})
    (problem,) = error.value.problems
    assert str(problem) == f"{file}:2: config_d: {str(tmp_path / 'more')!r} is no directory"


def test_a_table_with_nothing_in_it_is_an_empty_one(tmp_path: Path) -> None:
    """As YAML has it where all below a name is commented out, also in a file that is merged."""
    main = tmp_path / "dsari.yaml"
    main.write_text("environment:\njob_groups:\nconcurrency_groups:\njobs:\n  a: {command: x}\n")
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d" / "more.yaml").write_text("jobs:\nenvironment: {A: b}\n")
    scheduled, problems = load(main, environ={})
    assert (list(scheduled.jobs), scheduled.environment) == (["a"], {"A": "b"})
    assert problems == []

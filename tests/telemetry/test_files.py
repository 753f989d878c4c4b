"""The dashboard and the alert rules in ops/, and the page of metrics, name only what exists."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from headgate.telemetry.names import FAMILIES
from tests.docs.pages import ROOT

LABELS = {family.shown: family.labels for family in FAMILIES} | {
    f"{family.name}_{end}": (*family.labels, *(["le"] if end == "bucket" else []))
    for family in FAMILIES
    if family.kind == "histogram"
    for end in ("bucket", "sum", "count")
}
OF_PROMETHEUS = {"job", "instance", "le"}


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((ROOT / "ops/alerts.yml").read_text())["groups"]
    return group["rules"]


def panels() -> list[dict[str, Any]]:
    return json.loads((ROOT / "ops/grafana.json").read_text())["panels"]


def expressions() -> list[str]:
    asked = [rule["expr"] for rule in alerts()]
    asked += [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    found = json.loads((ROOT / "ops/grafana.json").read_text())["templating"]["list"]
    return asked + [one["query"] for one in found if one["type"] == "query"]


@pytest.mark.parametrize("asked", expressions())
def test_an_expression_names_only_metrics_and_labels_that_exist(asked: str) -> None:
    named = re.findall(r"(headgate_\w+)(?:\{([^}]*)\})?", asked)
    assert named
    assert asked.count("(") == asked.count(")")
    known = set(OF_PROMETHEUS)
    for name, matchers in named:
        assert name in LABELS, f"{name} is no metric"
        known |= set(LABELS[name])
        for label in re.findall(r"(\w+)\s*[=!]", matchers):
            assert label in (*LABELS[name], *OF_PROMETHEUS), f"{name} has no label {label}"
    for by in re.findall(r"\bby \(([^)]*)\)", asked):
        assert {label.strip() for label in by.split(",")} <= known, by


def test_every_alert_says_what_to_do() -> None:
    for rule in alerts():
        assert set(rule["annotations"]) == {"summary", "action"}, rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket")
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)


def test_panels_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_kinds_of_events_are_those_that_exist() -> None:
    from headgate.telemetry.gauges import ALARMING
    from headgate.web.pages.events import KINDS

    asked = {kind for text in expressions() for kind in re.findall(r'kind="(\w+)"', text)}
    assert asked <= set(ALARMING) <= set(KINDS)


def test_the_page_of_metrics_lists_every_one_with_its_labels() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(headgate_\w+)(?:\{([\w,]*)\})?` \|", page, re.M)
    told = {name: tuple(label for label in labels.split(",") if label) for name, labels in rows}
    assert told == {family.shown: family.labels for family in FAMILIES}

"""Dashboards are what Grafana reads, and ask for metrics and labels that exist."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from k8s.tools.monitoring.__main__ import COMPONENT
from k8s.tools.monitoring.grafana import SCHEMA_VERSION
from tests.support.metrics_catalogue import CLUSTER, MADE, OPERATORS, PROCESS, catalogue, of_triton
from tests.support.programs import required
from tests.support.promql import ADDED, asked

FILES: Final = sorted((COMPONENT / "dashboards").glob("*.json"))
KINDS: Final = {"row", "timeseries", "stat", "table"}
UNITS: Final = {"short", "percentunit", "s", "ms", "µs", "bytes", "ops", "reqps"}
"""Ids of units that Grafana has."""
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
VARIABLES: Final = {
    "$__rate_interval": "5m",
    "$namespace": ".*",
    "$collection": ".*",
}


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def rules() -> Iterator[dict[str, Any]]:
    for path in sorted((COMPONENT / "rules").glob("*.yaml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield from group["rules"]


def panels(path: Path) -> list[dict[str, Any]]:
    return [panel for panel in read(path)["panels"] if panel["type"] != "row"]


def expression(target: dict[str, Any]) -> str:
    """A query with the variables of its dashboard filled in."""
    reported = str(target["expr"])
    for name, value in VARIABLES.items():
        reported = reported.replace(name, value)
    return reported


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_it_has_what_grafana_reads(dashboard: Path) -> None:
    reported = read(dashboard)
    assert reported["uid"] == dashboard.stem
    assert len(reported["uid"]) <= 40
    assert reported["schemaVersion"] == SCHEMA_VERSION
    assert "id" not in reported, "Grafana gives it, and refuses one that it has not given"
    assert reported["title"].startswith("evenmesh: ")
    assert reported["tags"] == ["evenmesh"]
    source, namespace, *_ = reported["templating"]["list"]
    assert (source["type"], source["name"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert (namespace["name"], namespace["allValue"], namespace["datasource"]) == ("namespace", ".*", SOURCE)
    named = {one["name"] for one in reported["templating"]["list"]}
    assert named - {"datasource"} <= {name.removeprefix("$") for name in VARIABLES}


def test_panels_say_what_they_show(dashboard: Path) -> None:
    reported = read(dashboard)["panels"]
    assert {panel["type"] for panel in reported} <= KINDS
    assert len({panel["id"] for panel in reported}) == len(reported)
    titles = [panel["title"] for panel in panels(dashboard)]
    assert len(titles) == len(
        set(zip(titles, (panel["gridPos"]["y"] for panel in panels(dashboard)), strict=True))
    )
    for panel in panels(dashboard):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == SOURCE
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            assert target["datasource"] == SOURCE
            assert target["range"] is not target["instant"]
            assert 'namespace=~"$namespace"' in target["expr"], "of the mesh that is chosen"


def test_panels_lie_beside_each_other(dashboard: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in read(dashboard)["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def known() -> dict[str, set[str]]:
    """Labels of all that is scraped or recorded; what is recorded has those that it is grouped by."""
    found = {**catalogue(), **of_triton(), **PROCESS, **OPERATORS, **CLUSTER}
    left = [rule for rule in rules() if "record" in rule]
    while left:
        # What is recorded of recordings comes after them.
        ready = [rule for rule in left if asked(rule["expr"]).metrics <= set(found)]
        assert ready, [rule["record"] for rule in left]
        for rule in ready:
            reported = asked(rule["expr"])
            grouped = {name for name in reported.groups if name != "le"}
            found[rule["record"]] = grouped or set().union(*(found[name] for name in reported.metrics))
        left = [rule for rule in left if rule not in ready]
    return found


def assert_asks_for_what_exists(text: str, there: dict[str, set[str]]) -> None:
    reported = asked(text)
    assert reported.metrics <= set(there), (reported.metrics - set(there), text)
    for name in reported.metrics:
        assert reported.labels[name] <= there[name] | ADDED, (reported.labels[name] - there[name], text)
    of_all = set().union(*(there[name] for name in reported.metrics))
    assert reported.groups <= of_all | ADDED | MADE, (reported.groups - of_all, text)


def test_the_catalogue_is_read() -> None:
    found = catalogue()
    assert len(found) > 80
    assert found["evenmesh_rpc_errors_total"] >= {"rpc_method", "rpc_grpc_status_code", "error_type"}
    assert found["evenmesh_evaluator_lag_seconds_bucket"] == {"service_name", "le"}
    assert "alpha" in found["evenmesh_fairness_ee_d_norm"]


def test_panels_ask_for_metrics_and_labels_that_exist(dashboard: Path) -> None:
    there = known()
    for panel in panels(dashboard):
        for target in panel["targets"]:
            assert_asks_for_what_exists(expression(target), there)


def test_rules_ask_for_metrics_and_labels_that_exist() -> None:
    there = known()
    for rule in rules():
        assert_asks_for_what_exists(rule["expr"], there)


def test_promtool_reads_every_query(dashboard: Path, tmp_path: Path) -> None:
    promtool = required("promtool")
    queries = [expression(target) for panel in panels(dashboard) for target in panel["targets"]]
    made = [{"record": f"panel:query:{place}", "expr": query} for place, query in enumerate(queries)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": made}]}))
    done = subprocess.run(
        [promtool, "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr

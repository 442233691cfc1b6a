"""docs/operate/operations.md has a page for each alert, and what it tells a reader to type and to ask for exists."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_generator.settings import GeneratorSettings
from evenmesh_kit.settings import variable
from evenmesh_orchestrator.settings import OrchestratorSettings
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_retriever.settings import RetrieverSettings
from k8s.tools.monitoring.__main__ import COMPONENT
from k8s.tools.monitoring.dashboards import DASHBOARDS
from tests.support.manifests import build
from tests.support.pages import assert_evenmesh_has, assert_kubectl_has, blocks, commands, inline
from tests.support.programs import required
from tests.support.promql import asked

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operate" / "operations.md").read_text(encoding="utf-8")
RULES = [
    rule
    for path in sorted((COMPONENT / "rules").glob("*.yaml"))
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
ALERTS = sorted({rule["alert"] for rule in RULES if "alert" in rule})
COMMANDS = [words for block in blocks(PAGE) for words in commands(block)]
TYPED = [*COMMANDS, *inline(PAGE, "evenmesh", "kubectl")]
KUBECTL = sorted({shlex.join(words[1:]) for words in TYPED if words[0] == "kubectl"})
EVENMESH = sorted({shlex.join(words[1:]) for words in TYPED if words[0] == "evenmesh"})
QUERIES = sorted({line for block in blocks(PAGE, "promql") for line in block.splitlines()})
SERVICES = (OrchestratorSettings, RetrieverSettings, RerankerSettings, GeneratorSettings, EvaluatorSettings)


def sections() -> dict[str, str]:
    parts = re.split(r"^### (Evenmesh\w+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_alert_has_a_section_and_no_other_has_one() -> None:
    assert sorted(sections()) == ALERTS
    for rule in RULES:
        if "alert" in rule:
            page, anchor = rule["annotations"]["runbook_url"].split("#")
            assert (ROOT / page).is_file()
            assert anchor in {name.lower() for name in sections()}


@pytest.mark.parametrize("name", ALERTS)
def test_a_section_says_what_it_means_and_what_to_do(name: str) -> None:
    text = sections()[name]
    reported = re.findall(r"^\*\*(Means|Impact|Look|Do|Over)\b", text, re.MULTILINE)
    assert reported == ["Means", "Impact", "Look", "Do", "Over"]
    assert blocks(text) or blocks(text, "promql"), "how to look is something that can be typed"


def test_every_program_is_known() -> None:
    assert {words[0] for words in COMMANDS} <= {"evenmesh", "kubectl", "helm", "prometheus", "promtool"}
    assert len(KUBECTL) > 20
    assert len(EVENMESH) > 10


@pytest.mark.parametrize("line", KUBECTL)
def test_kubectl_has_the_command_and_its_options(line: str) -> None:
    assert_kubectl_has(shlex.split(line))


@pytest.mark.parametrize("line", EVENMESH)
def test_evenmesh_can_read_the_command(line: str) -> None:
    assert_evenmesh_has(shlex.split(line))


def test_prometheus_has_the_options() -> None:
    required("prometheus")
    (words,) = ([*one[1:]] for one in COMMANDS if one[0] == "prometheus")
    reported = subprocess.run(["prometheus", "--help"], capture_output=True, text=True, timeout=60)
    known = set(re.findall(r"(--[a-z.-]*[a-z])", reported.stdout + reported.stderr))
    assert {word.split("=")[0] for word in words} <= known
    reported = subprocess.run(
        ["promtool", "check", "config", ROOT / "k8s" / "tools" / "prometheus.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert reported.returncode == 0, reported.stderr


def test_pods_and_workloads_that_are_named_are_there() -> None:
    built = build("prod")
    names = {one.name for one in built.workloads("Deployment", "StatefulSet")}
    for words in TYPED:
        if words[0] == "kubectl" and "observability" not in words:
            for kind, name in re.findall(r"\b(deployment|statefulset)/(\w+)", shlex.join(words)):
                assert built.workload(name).kind.lower() == kind
    assert set(re.findall(r"app\.kubernetes\.io/name=(\w+)", PAGE)) <= names


def test_expressions_are_read_by_promtool(tmp_path: Path) -> None:
    required("promtool")
    queries = [*QUERIES, *(words[-1] for words in COMMANDS if words[:3] == ["promtool", "query", "instant"])]
    rules = [{"record": f"page:query:{place}", "expr": query} for place, query in enumerate(queries)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "page", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert len(QUERIES) > 30


def test_expressions_ask_for_what_rules_and_dashboards_ask_for() -> None:
    known = {rule["record"] for rule in RULES if "record" in rule}
    for rule in RULES:
        known |= asked(rule["expr"]).metrics
    for dashboard in DASHBOARDS:
        for row in dashboard.rows:
            for panel in row.panels:
                for query in panel.queries:
                    known |= asked(query.expr).metrics
    for query in QUERIES:
        # Parts of histograms are there together.
        for name in asked(query).metrics:
            assert {name, re.sub("_(count|sum|bucket)$", "_bucket", name)} & known, query


def test_the_table_of_burn_rates_is_what_the_rules_say() -> None:
    rows = re.findall(
        r"^\| (critical|warning) \| (.+?) \| .+? \| ([\d.]+) \| \d+ % \| ([\d.]+) % \| (\d+) % \|$",
        PAGE,
        re.MULTILINE,
    )
    assert len(rows) == 4
    for severity, window, factor, failed, slow in rows:
        long = window.replace("days", "d").replace("day", "d").replace(" ", "")
        for name, budget, share in (
            ("EvenmeshAskErrorBudgetBurn", "0.005", failed),
            ("EvenmeshAskLatencyBudgetBurn", "0.05", slow),
        ):
            (rule,) = (one for one in RULES if one.get("alert") == name and one["labels"]["long"] == long)
            assert rule["labels"]["severity"] == severity
            assert f"> {factor} * {budget}\n" in rule["expr"]
            assert float(share) == pytest.approx(100 * float(factor) * float(budget))


def test_variables_and_files_are_there() -> None:
    known = {variable(settings, field) for settings in SERVICES for field in settings.model_fields}
    for name in re.findall(r"\b(EVENMESH_(?:ORCHESTRATOR|RETRIEVER|RERANKER|GENERATOR|EVALUATOR)_\w+)", PAGE):
        assert name in known, name
    for path in re.findall(r"\b(?:k8s|docs|src|tests)/[\w./-]*[\w/]", PAGE):
        assert (ROOT / path).exists(), path
    titles: dict[str, set[str]] = {}
    for link, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", PAGE):
        text = (ROOT / "docs/operate" / (link or "operations.md")).read_text(encoding="utf-8")
        titles[link] = {
            re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        }
        assert anchor in titles[link], (link, anchor)
    for link in re.findall(r"\]\((?!http)([\w./-]+)", PAGE):
        assert (ROOT / "docs/operate" / link).exists(), link
    assert {one.uid for one in DASHBOARDS} == set(re.findall(r"^\| `(evenmesh-\w+)` \|", PAGE, re.MULTILINE))

"""The targets of docs/guides/fairness-targets.md and of the page for operators are rules that alerts read."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from k8s.tools.monitoring.__main__ import COMPONENT
from tests.support.pages import blocks
from tests.support.programs import required

DOCS: Final = Path(__file__).parents[3] / "docs"
GUIDE: Final = (DOCS / "guides" / "fairness-targets.md").read_text(encoding="utf-8")
(RULES,) = blocks(GUIDE, "yaml")
SERIES: Final = (
    'tenant="default", collection="cooking", retriever="bm25", reranker="none", generator="g", alpha="1"'
)
ALERT: Final = "EvenmeshOutcomeTargetMissed"


def targets(text: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def promtool(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [required("promtool"), *map(str, words)], capture_output=True, text=True, timeout=60
    )


def test_promtool_takes_the_example(tmp_path: Path) -> None:
    (tmp_path / "targets.yaml").write_text(RULES)
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", tmp_path / "targets.yaml")
    assert done.returncode == 0, done.stderr
    assert f"{len(targets(RULES))} rules found" in done.stdout


@pytest.mark.parametrize(
    ("outcome", "missed"),
    [(0.5, {"disparity", "provider_share", "utility"}), (0.1, {"provider_ratio", "utility"})],
)
def test_the_targets_of_the_example_are_watched(tmp_path: Path, outcome: float, missed: set[str]) -> None:
    """Every quantity of the collection has the same value, which is beyond some of the bounds."""
    (tmp_path / "targets.yaml").write_text(RULES)
    series = [
        {"series": f"evenmesh_fairness_observations{{{SERIES}}}", "values": "200x40"},
        *(
            {"series": f"evenmesh_fairness_{name}{{{SERIES}}}", "values": f"{outcome}x40"}
            for name in ("ee_d_norm", "provider_exposure_ratio", "expected_utility")
        ),
        {
            "series": 'evenmesh_fairness_provider_exposure_share{tenant="default", collection="cooking", provider="p"}',
            "values": f"{outcome}x40",
        },
    ]
    firing = f'sum by (quantity) (ALERTS{{alertname="{ALERT}", alertstate="firing"}})'
    invalid = 'ALERTS{alertname="EvenmeshOutcomeTargetInvalid"}'
    test = {
        "rule_files": [str(COMPONENT / "rules" / f"{name}.yaml") for name in ("fairness", "outcomes")]
        + ["targets.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "promql_expr_test": [
                    {
                        "expr": firing,
                        "eval_time": "35m",
                        "exp_samples": [
                            {"labels": f'{{quantity="{one}"}}', "value": 1} for one in sorted(missed)
                        ],
                    },
                    {"expr": invalid, "eval_time": "35m", "exp_samples": []},
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    done = promtool("test", "rules", tmp_path / "test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_has_every_quantity_that_alerts_read_and_no_other() -> None:
    read = {
        (rule["labels"]["quantity"], rule["labels"]["bound"])
        for group in yaml.safe_load((COMPONENT / "rules" / "outcomes.yaml").read_text(encoding="utf-8"))[
            "groups"
        ]
        for rule in group["rules"]
        if rule.get("alert") == ALERT
    }
    shown = [(rule["labels"]["quantity"], rule["labels"]["bound"]) for rule in targets(RULES)]
    assert len(shown) == len(read) == 4
    assert set(shown) == read
    assert set(re.findall(r"^\| `(\w+)` \| `(at_\w+)` \|", GUIDE, re.MULTILINE)) == read


def test_the_object_of_the_operators_page_is_one() -> None:
    page = (DOCS / "operate" / "operations.md").read_text(encoding="utf-8")
    (found,) = (
        one for one in map(yaml.safe_load, blocks(page, "yaml")) if one.get("kind") == "PrometheusRule"
    )
    crd = Path(__file__).parents[1] / "k8s" / "crds" / "prometheusrule.json"
    jsonschema.Draft202012Validator(json.loads(crd.read_text(encoding="utf-8"))).validate(found)
    for rule in (rule for group in found["spec"]["groups"] for rule in group["rules"]):
        assert {**rule, "expr": ""} in [
            {**one, "expr": "", "labels": {**one["labels"], "collection": "demo"}} for one in targets(RULES)
        ]

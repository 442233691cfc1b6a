"""Rules are read by promtool, record and alert as was worked out by hand, and each alert says what to do."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from k8s.tools.monitoring.__main__ import COMPONENT, made
from tests.support.programs import required

FILES: Final = sorted((COMPONENT / "rules").glob("*.yaml"))
TESTS: Final = sorted(Path(__file__).with_name("rules").glob("*.yaml"))
MINUTES: Final = {"m": 1, "h": 60, "d": 24 * 60}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules(kind: str) -> Iterator[dict[str, Any]]:
    """All rules that ``record`` or ``alert``."""
    for path in FILES:
        for group in read(path)["groups"]:
            yield from (rule for rule in group["rules"] if kind in rule)


ALERTS: Final = sorted({rule["alert"] for rule in rules("alert")})


@pytest.fixture(scope="module")
def promtool() -> str:
    return required("promtool")


def test_promtool_takes_all_rules(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", *FILES],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("SUCCESS") == len(FILES)


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_they_record_and_alert_as_was_worked_out(promtool: str, path: Path) -> None:
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_first_apply_raises_no_alarm(promtool: str, tmp_path: Path) -> None:
    scenario = read(Path(__file__).with_name("first_apply.yaml"))
    (tmp_path / "first_apply.yaml").write_text(
        yaml.safe_dump({**scenario, "rule_files": list(map(str, FILES))})
    )
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "first_apply.yaml"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_prometheus_without_any_series_says_that_there_are_none_and_nothing_else(
    promtool: str, tmp_path: Path
) -> None:
    cases = [
        {"alertname": name, "eval_time": time, "exp_alerts": []}
        for name in ALERTS
        if name != "EvenmeshNothingScraped"
        for time in ("0m", "1h", "1d")
    ]
    written = {
        "rule_files": list(map(str, FILES)),
        "evaluation_interval": "15m",
        "tests": [{"interval": "15m", "input_series": [], "alert_rule_test": cases}],
    }
    (tmp_path / "nothing.yaml").write_text(yaml.safe_dump(written))
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "nothing.yaml"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_file_of_rules_has_one_of_tests() -> None:
    assert [path.name for path in TESTS] == [path.name for path in FILES]
    for path in TESTS:
        assert f"../../../../k8s/components/monitoring/rules/{path.name}" in read(path)["rule_files"]


def test_each_alert_is_seen_to_fire_and_not_to_fire() -> None:
    cases = [
        case for path in TESTS for test in read(path)["tests"] for case in test.get("alert_rule_test", ())
    ]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == set(ALERTS)
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == set(ALERTS)


def test_each_recording_is_worked_out_once() -> None:
    # Those of other windows and percentiles are the same expression.
    worked_out = " ".join(
        case["expr"]
        for path in TESTS
        for test in read(path)["tests"]
        for case in test.get("promql_expr_test", ())
    )
    for rule in rules("record"):
        level, metric, operations = rule["record"].split(":")
        kin = re.sub(r"rate\d+[mhd]", r"rate\\w+", operations)
        assert re.search(rf"{level}:{metric}:{kin}", worked_out), rule["record"]


def test_alerts_say_how_bad_it_is_what_it_means_and_what_to_do() -> None:
    for rule in rules("alert"):
        assert rule["alert"].startswith("Evenmesh")
        assert rule["labels"]["severity"] in ("critical", "warning")
        annotations = rule["annotations"]
        assert set(annotations) == {"summary", "description", "runbook_url"}
        assert annotations["description"].endswith(".")
        assert annotations["runbook_url"] == f"docs/operate/operations.md#{rule['alert'].lower()}"


@pytest.mark.parametrize("name", ["EvenmeshAskErrorBudgetBurn", "EvenmeshAskLatencyBudgetBurn"])
def test_burn_rates_are_those_that_use_up_a_share_of_the_budget(name: str) -> None:
    # Share of the budget of 30 days that is gone when the long window is over.
    shares = {"1h": 0.02, "6h": 0.05, "1d": 0.1, "3d": 0.1}
    found = {rule["labels"]["long"]: rule for rule in rules("alert") if rule["alert"] == name}
    assert set(found) == set(shares)
    for long, rule in found.items():
        (factor,) = {float(one) for one in re.findall(r"> ([\d.]+) \* ", rule["expr"])}
        minutes = int(long[:-1]) * MINUTES[long[-1]]
        assert factor == pytest.approx(shares[long] * 30 * 24 * 60 / minutes)
        # The short window ends an alert soon after it is over: a twelfth of the long one.
        short = rule["labels"]["short"]
        assert int(short[:-1]) * MINUTES[short[-1]] * 12 == minutes
        assert set(re.findall(r"ratio_rate(\w+)", rule["expr"])) == {long, short}
        (seconds,) = re.findall(rf"asks:rate{long} \* (\d+)", rule["expr"])
        assert int(seconds) == 60 * minutes


def test_what_is_made_of_the_rules_and_of_the_dashboards_is_up_to_date() -> None:
    for path, text in made().items():
        assert path.read_text(encoding="utf-8") == text, (
            f"python -m k8s.tools.monitoring makes another {path}"
        )
    assert set(COMPONENT.glob("dashboards/*")) == {
        path for path in made() if path.parent.name == "dashboards"
    }
    groups = [group for path in FILES for group in read(path)["groups"]]
    assert read(COMPONENT / "prometheus-rule.yaml")["spec"]["groups"] == groups

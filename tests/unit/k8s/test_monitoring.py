"""Who is scraped is who shows metrics, jobs are named as the rules expect, and dashboards are found."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.manifests import EVERYTHING, FOLLOWED, K8S, NAME, SERVICES, Manifests, build
from tests.support.programs import required


@pytest.fixture(params=["prod", EVERYTHING])
def built(request: pytest.FixtureRequest) -> Manifests:
    return build(request.param)


def test_every_pod_with_metrics_is_scraped(built: Manifests) -> None:
    (monitor,) = built.of("PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    scraped = {
        one.name for one in built.selected(monitor["spec"]["selector"]) if endpoint["port"] in one.ports()
    }
    assert scraped == {one.name for one in built.workloads() if "metrics" in one.ports()}
    assert scraped >= {*SERVICES, "triton"}
    assert (
        monitor["metadata"]["namespace"] == built.workload("orchestrator").document["metadata"]["namespace"]
    )


@pytest.mark.parametrize("name", SERVICES)
def test_metrics_are_on_where_they_are_scraped(built: Manifests, name: str) -> None:
    workload = built.workload(name)
    port = workload.environment()[f"EVENMESH_{name.upper()}_METRICS_PORT"]
    assert int(port) == workload.ports()["metrics"]


def test_jobs_are_named_as_the_rules_expect(built: Manifests) -> None:
    (monitor,) = built.of("PodMonitor")
    label = monitor["spec"]["jobLabel"]
    assert label == NAME
    (rules,) = built.of("PrometheusRule")
    every = (*build(EVERYTHING).workloads(), *build(FOLLOWED).workloads())
    scraped = {one.labels[label] for one in every if "metrics" in one.ports()}
    jobs: dict[str, set[str]] = {}
    for rule in (rule for group in rules["spec"]["groups"] for rule in group["rules"]):
        for named in re.findall(r'\bjob=~?"([a-z|-]+)"', rule["expr"]):
            jobs.setdefault(rule.get("alert", ""), set()).update(named.split("|"))
    assert set().union(*jobs.values()) == scraped
    assert jobs["EvenmeshTargetDown"] == scraped
    assert {one.labels[label] for one in built.workloads()} >= {*SERVICES, "triton", "probe"}


def test_prometheus_without_the_operator_finds_the_same_pods() -> None:
    (job,) = (one for one in scrape("scrape.yaml") if one["job_name"] == "evenmesh")
    kept = {
        one["source_labels"][0].removeprefix("__meta_kubernetes_pod_"): one["regex"]
        for one in job["relabel_configs"]
        if one.get("action") == "keep"
    }
    (monitor,) = build("prod").of("PodMonitor")
    ((label, value),) = monitor["spec"]["selector"]["matchLabels"].items()
    name = "label_" + re.sub(r"\W", "_", label)
    assert kept == {name: value, "container_port_name": monitor["spec"]["podMetricsEndpoints"][0]["port"]}
    (named,) = (one for one in job["relabel_configs"] if one.get("target_label") == "job")
    assert named["source_labels"] == ["__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", NAME)]


def test_a_mesh_of_one_machine_is_scraped_by_service() -> None:
    (job,) = scrape("prometheus.yaml")
    jobs = {one["labels"]["job"]: one["targets"] for one in job["static_configs"]}
    assert set(jobs) == set(SERVICES)
    page = (K8S.parent / "docs" / "operate" / "operations.md").read_text(encoding="utf-8")
    for name, targets in jobs.items():
        (port,) = re.findall(rf"EVENMESH_{name.upper()}_METRICS_PORT=(\d+)", page)
        assert targets == [f"127.0.0.1:{port}"]


@pytest.mark.parametrize("name", ["scrape.yaml", "prometheus.yaml"])
def test_promtool_takes_the_configuration(name: str, tmp_path: Path) -> None:
    promtool = required("promtool")
    reported = yaml.safe_load((K8S / "tools" / name).read_text(encoding="utf-8"))
    for job in reported["scrape_configs"]:
        # Debian builds Prometheus without discovery in Kubernetes.
        if "kubernetes_sd_configs" in job:
            assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    reported["rule_files"] = [str(K8S / "tools" / one) for one in reported.get("rule_files", ())]
    (tmp_path / name).write_text(yaml.safe_dump(reported))
    done = subprocess.run(
        [promtool, "check", "config", tmp_path / name], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_grafana_finds_the_dashboards(built: Manifests) -> None:
    (found,) = (one for one in built.of("ConfigMap") if one["metadata"]["name"] == "evenmesh-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    for name, text in found["data"].items():
        assert name == f"{json.loads(text)['uid']}.json"
    # What kubectl apply keeps of an object in an annotation must fit there too.
    assert len(json.dumps(found)) < 256 * 1024


def scrape(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((K8S / "tools" / name).read_text(encoding="utf-8"))[
        "scrape_configs"
    ]
    return found

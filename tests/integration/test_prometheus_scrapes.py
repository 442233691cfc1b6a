"""A real Prometheus scrapes the real mesh: rules record, alerts keep quiet, and each panel has something to show."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from evenmesh import Agent, Client, Feedback, MeshError
from evenmesh_studies import demo
from k8s.tools.monitoring.__main__ import COMPONENT
from k8s.tools.monitoring.dashboards import DASHBOARDS
from k8s.tools.monitoring.grafana import Dashboard
from tests.integration.conftest import DEMO, RunningMesh
from tests.support.prometheus import Prometheus, running
from tests.support.promql import ADDED, asked
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]

SETTLES_S: Final = 60.0
AN_HOUR: Final = "the past is two hours that ended an hour ago"
TRITON: Final = "there is no Triton server"
CLUSTER: Final = "there is no cluster"
WITHOUT: Final = {
    "series:evenmesh_fairness_ee_d_norm:avg1d": AN_HOUR,
    "series:evenmesh_fairness_provider_exposure_ratio:avg1d": AN_HOUR,
    "series:evenmesh_fairness_expected_utility:avg1d": AN_HOUR,
    "evenmesh_fairness_target": "nobody has set a target",
    "evenmesh_limits_refused_total": "no tenant has limits",
    "evenmesh_limits_unshared_total": "there is no store of limits",
    "evenmesh_admission_wait_duration_seconds_bucket": "nobody had to wait for admission",
    "evenmesh_ask_degradations_total": "every stage answered",
    "stage:evenmesh_ask_degradations:ratio_rate15m": "every stage answered",
    "evenmesh_certificate_expires_timestamp_seconds": "nothing speaks TLS",
    "instance:evenmesh_reranker_model_behind_feedback:seconds": "the store is looked at every 30 s",
    "evenmesh_evaluator_log_entries": "there is no log before the evaluator",
    "evenmesh_retriever_replica_lag": "there is no read replica",
    "probe_success": CLUSTER,
    "namespace:evenmesh_targets:count": CLUSTER,
    "gpu:dcgm_memory_used:ratio": CLUSTER,
    "volume:kubelet_volume_left:ratio": CLUSTER,
    "pod:kube_pod_gpus:sum": CLUSTER,
    "scaler:keda_errors:increase5m": CLUSTER,
    "evenmesh_generator_waiting": TRITON,
    "evenmesh_generator_written_tokens_total": TRITON,
    "nv_inference_queue_duration_us": TRITON,
    "nv_inference_request_success": TRITON,
}
"""What has no data after a small load, and why."""


def load(client: Client, first: int) -> None:
    """Ask for a little of everything, beginning with the question at ``first``.

    What dense retrieval is asked stands nowhere else: other tests share this mesh, and a vector that it keeps
    from them would not be encoded again.
    """
    for place, question in enumerate(demo.questions()[first : first + 2]):
        client.answer(
            question.question,
            collection=DEMO,
            alpha=1,
            samples=4,
            num_answers=1,
            seed=place,
            reranker="cross-encoder" if place else "rankrag",
            references=question.answers,
            useful=question.useful_passage_ids,
        )
        client.retrieve(
            f"{question.question} (watched, {first})", collection=DEMO, retriever="dense", samples=2
        )
    client.answer(demo.questions()[first + 2].question, ensemble=["Lexical@2", "Dense@2"])
    with pytest.raises(MeshError):
        client.answer("Is there such a collection?", collection="nowhere")


@pytest.fixture(scope="module")
def prometheus(mesh: RunningMesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has seen the mesh before, during and after a little load."""
    rules = sorted((COMPONENT / "rules").glob("*.yaml"))
    with running(tmp_path_factory.mktemp("prometheus"), mesh.metrics, rules) as found:
        with Client(mesh.addresses, timeout=240) as client:
            agent = Agent("qa", "watched")
            client.record_feedback([Feedback("How often?", "a", 1, agent, ranking=("a", "b"))])
            load(client, 0)
            _wait(found, "min(count_over_time(up[1m])) >= 2 and min(up) == 1")
            load(client, 3)
        # Everything was scraped after it, at least twice, and rules were evaluated after that.
        ended = time.time()
        _wait(found, f"min(timestamp(up) - {ended:.3f}) > 2.5")
        yield found


def _wait(prometheus: Prometheus, expression: str) -> None:
    wait_until(lambda: prometheus.query(expression), SETTLES_S, why=expression)


def test_every_service_is_scraped(prometheus: Prometheus, mesh: RunningMesh) -> None:
    up = {one["metric"]["job"]: float(one["value"][1]) for one in prometheus.query("up")}
    assert up == dict.fromkeys(mesh.metrics, 1.0)
    names = {one["service_name"] for one in prometheus.series('{service_name!=""}')}
    assert names == set(mesh.metrics)


def test_every_rule_is_evaluated_and_records_something(prometheus: Prometheus) -> None:
    rules = prometheus.rules()
    assert {rule["health"] for rule in rules} == {"ok"}, [one for one in rules if one["health"] != "ok"]
    recorded = {one["name"] for one in rules if one["type"] == "recording"}
    silent = {name for name in recorded if not prometheus.query(name)}
    assert silent == {name for name in WITHOUT if ":" in name} & silent
    firing = {one["name"] for one in rules if one["type"] == "alerting" and one["state"] == "firing"}
    assert not firing


def _now(expression: str) -> str:
    """A panel's expression as Grafana sends it, over all of this test however slow the machine is."""
    return (
        expression.replace("$here", 'namespace=~".*"')
        .replace("$collection", ".*")
        .replace("$__rate_interval", "10m")
    )


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_every_panel_has_something_to_show(prometheus: Prometheus, dashboard: Dashboard) -> None:
    silent: list[tuple[str, str]] = []
    for row in dashboard.rows:
        for panel in row.panels:
            for query in panel.queries:
                found = [
                    one for one in prometheus.query(_now(query.expr)) if math.isfinite(float(one["value"][1]))
                ]
                if not found and not asked(query.expr).metrics & set(WITHOUT):
                    silent.append((panel.title, query.expr))
    assert not silent


def test_labels_that_are_asked_for_are_there(prometheus: Prometheus) -> None:
    there: dict[str, set[str]] = {}
    for series in prometheus.series('{__name__!=""}'):
        there.setdefault(series["__name__"], set()).update(series)
    for dashboard in DASHBOARDS:
        for row in dashboard.rows:
            for panel in row.panels:
                for query in panel.queries:
                    reported = asked(query.expr)
                    for name in reported.metrics - set(WITHOUT):
                        assert reported.labels[name] <= there[name] | ADDED, (panel.title, name)
                    of_all = set().union(*(there.get(name, set()) for name in reported.metrics))
                    if not reported.metrics & set(WITHOUT):
                        assert reported.groups <= of_all | ADDED, (panel.title, query.expr)


def test_a_metric_that_is_missed_for_a_reason_is_asked_for() -> None:
    everything: set[str] = set()
    for dashboard in DASHBOARDS:
        for row in dashboard.rows:
            for panel in row.panels:
                for query in panel.queries:
                    everything |= asked(query.expr).metrics
    recorded = {
        line.split()[-1] for path in _rules() for line in path.read_text().splitlines() if "record:" in line
    }
    assert set(WITHOUT) <= everything | recorded


def _rules() -> list[Path]:
    return sorted((COMPONENT / "rules").glob("*.yaml"))

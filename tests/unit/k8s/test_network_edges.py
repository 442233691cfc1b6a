"""Who may speak to whom is who does, by what the pods are reported, and nobody else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_generator.settings import GeneratorSettings
from evenmesh_kit.settings import variable
from evenmesh_orchestrator.settings import OrchestratorSettings
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_retriever.settings import RetrieverSettings
from tests.support.manifests import (
    EVERYTHING,
    FOLLOWED,
    OVERLAYS,
    SERVICES,
    Manifests,
    Workload,
    addresses,
    build,
    matches,
)
from tests.support.pages import section

BUILT = (*OVERLAYS, EVERYTHING, FOLLOWED)
PAGE = Path(__file__).parents[3] / "docs" / "operate" / "components.md"
SETTINGS = (
    OrchestratorSettings,
    RetrieverSettings,
    RerankerSettings,
    GeneratorSettings,
    EvaluatorSettings,
    GatewaySettings,
)
Edge = tuple[str, str, int]

PICTURE = {
    ("orchestrator", "retriever", 7071),
    ("orchestrator", "reranker", 7072),
    ("orchestrator", "generator", 7073),
    ("orchestrator", "evaluator", 7074),
    ("reranker", "generator", 7073),
}
"""The architecture picture without Triton; `rankrag` asks the generator."""
OVER_HTTP = {("gateway", name, 7070 + place) for place, name in enumerate(SERVICES)}
"""What the gateway adds to it."""


@pytest.fixture(params=BUILT)
def built(request: pytest.FixtureRequest) -> Manifests:
    return build(request.param)


def used(built: Manifests) -> set[Edge]:
    """Edges to pods that the pods' variables name, and what probes ask."""
    services = {one["metadata"]["name"]: one for one in built.of("Service")}
    named = [
        (source.name, value)
        for source in built.workloads()
        for variables in source.variables.values()
        for value in variables.values()
    ]
    for one in built.of("Probe"):
        prober = one["spec"]["prober"]["url"].split(".")[0]
        named += [(prober, value) for value in one["spec"]["targets"]["staticConfig"]["static"]]
    edges: set[Edge] = set()
    for source, value in named:
        for host, port in addresses(value):
            if host in services:
                spec = services[host]["spec"]
                assert port in {one["port"] for one in spec["ports"]}, (source, host)
                (target,) = built.selected({"matchLabels": spec["selector"]})
                edges.add((source, target.name, port))
    return edges


def rules(built: Manifests, workload: Workload, direction: str) -> list[dict[str, Any]] | None:
    """What the policies of a workload's pods allow; None where none says anything."""
    policies = [one["spec"] for one in built.of("NetworkPolicy")]
    applying = [
        policy
        for policy in policies
        if direction.capitalize() in policy["policyTypes"] and matches(policy["podSelector"], workload.labels)
    ]
    if not applying:
        return None
    return [rule for policy in applying for rule in policy.get(direction, ())]


def allows(rule: dict[str, Any], peer: Workload, name: str, port: int, way: str) -> bool:
    """Whether a rule has a peer ``to`` or ``from`` which a connection to a port of this name may go."""
    peers = [
        one["podSelector"] for one in rule[way] if "podSelector" in one and "namespaceSelector" not in one
    ]
    ports = {one["port"] for one in rule["ports"] if one["protocol"] == "TCP"}
    return any(matches(one, peer.labels) for one in peers) and bool(ports & {name, port})


def allowed(built: Manifests, way: str) -> set[Edge]:
    """Edges between pods that the policies allow where they begin (``egress``) or end (``ingress``)."""
    edges: set[Edge] = set()
    for source in built.workloads():
        for target in built.workloads():
            here, peer, word = (source, target, "to") if way == "egress" else (target, source, "from")
            reported = rules(built, here, way)
            assert reported is not None, f"{here.name} speaks to everybody, or listens to"
            for name, port in target.ports().items():
                if any(allows(rule, peer, name, port, word) for rule in reported):
                    edges.add((source.name, target.name, port))
    return edges


@pytest.mark.parametrize("way", ["egress", "ingress"])
def test_every_edge_that_is_used_is_allowed_and_no_other(built: Manifests, way: str) -> None:
    # The one that writes may still be asked: by setting the target back, while replicas are away.
    spare = {("orchestrator", "retriever", 7071)} if built is build(FOLLOWED) else set()
    assert allowed(built, way) == used(built) | spare


def test_the_edges_are_those_of_the_picture() -> None:
    assert used(build("dev")) == PICTURE
    stores = {(name, "postgres", 5432) for name in ("orchestrator", "evaluator", "reranker")}
    traces = {(name, "otel-collector", 4317) for name in (*SERVICES, "gateway")}
    probes = {("probe", "orchestrator", 7070), ("probe", "gateway", 7080)}
    triton = {("generator", "triton", 8001)}
    assert used(build("prod")) == PICTURE | OVER_HTTP | stores | traces | probes | triton
    more = used(build(EVERYTHING)) - used(build("prod"))
    jobs = {
        ("audit", name, port)
        for name, port in (("orchestrator", 7070), ("retriever", 7071), ("generator", 7073))
    }
    jobs |= {("bench", name, 7070 + place) for place, name in enumerate(SERVICES[:4])}
    jobs |= {("ium-training", name, port) for name, port in (("retriever", 7071), ("generator", 7073))}
    jobs |= {("sources", "retriever", 7071)}
    trainer = {("trainer", "retriever", 7071), ("trainer", "reranker", 7072), ("trainer", "postgres", 5432)}
    trainer |= {("trainer", "otel-collector", 4317)}
    servers = {
        ("generator", "vllm", 8000),
        ("retriever", "tei-embed", 8080),
        ("reranker", "tei-rerank", 8080),
    }
    assert more == jobs | trainer | servers | {("retriever", "milvus", 19530)}


def test_orchestrators_read_from_replicas_and_all_others_call_the_one_that_writes() -> None:
    changed = used(build(FOLLOWED)) ^ used(build(EVERYTHING))
    assert changed == {
        ("orchestrator", "retriever", 7071),
        ("orchestrator", "retriever-replicas", 7071),
        ("retriever-replicas", "tei-embed", 8080),
        ("retriever-replicas", "otel-collector", 4317),
        ("retriever", "milvus", 19530),
    }


def test_the_picture_has_every_target_of_the_settings() -> None:
    targets = {
        (name, field.removesuffix("_target"))
        for name, settings in (
            ("orchestrator", OrchestratorSettings),
            ("reranker", RerankerSettings),
            ("generator", GeneratorSettings),
            ("gateway", GatewaySettings),
        )
        for field in settings.model_fields
        if field.endswith("_target")
    }
    assert targets == {
        (source, target)
        for source, target, _ in used(build("prod"))
        if target in {*SERVICES, "triton"} and source != "probe"
    }


def test_the_page_names_every_setting_that_leads_out_of_the_mesh() -> None:
    """Its policies let nothing there that an operator does not allow."""
    table = section(PAGE.read_text(), "network-policy").split("**Calls that leave the mesh.**")[1]
    leading = re.compile(
        r"(urls?|uri|endpoint|jwks|prometheus|web_sources|triton_target)$|^(limits_store|model_store|observation_log)$"
    )
    named = {
        variable(settings, field)
        for settings in SETTINGS
        for field in settings.model_fields
        if leading.search(field)
    }
    assert len(named) > 15
    listed = set(re.findall(r"`(EVENMESH_[A-Z_<>]+)", table))
    every = {one.replace("<SERVICE>", name.upper()) for one in listed for name in (*SERVICES, "gateway")}
    assert named <= every


def test_names_are_resolved_by_what_clusters_have_for_it(built: Manifests) -> None:
    for workload in built.workloads():
        ways = [
            (peer, {one["port"] for one in rule["ports"]})
            for rule in rules(built, workload, "egress") or ()
            for peer in rule.get("to", ())
            if "ipBlock" in peer and peer["ipBlock"]["cidr"].startswith("169.254.")
        ]
        blocks = {peer["ipBlock"]["cidr"] for peer, _ in ways}
        assert blocks == {"169.254.20.10/32", "169.254.169.254/32"}, workload.name
        assert all(ports == {53} for _, ports in ways), "metadata of the cloud is on other ports"


def test_others_come_in_by_two_ways(built: Manifests) -> None:
    from_elsewhere: set[tuple[str, str, int]] = set()
    for workload in built.workloads():
        for rule in rules(built, workload, "ingress") or ():
            for peer in rule["from"]:
                if "namespaceSelector" in peer:
                    ((label, value),) = peer["namespaceSelector"]["matchLabels"].items()
                    assert value == "true"
                    for port in rule["ports"]:
                        number = workload.ports().get(port["port"], port["port"])
                        if isinstance(number, int):
                            from_elsewhere.add((label, workload.name, number))
                else:
                    assert "ipBlock" not in peer
    asked = {edge for edge in from_elsewhere if edge[0] == "evenmesh.io/may-ask"}
    doors = {("orchestrator", 7070), ("gateway", 7080)}
    here = {one.name for one in built.workloads()}
    assert asked == {("evenmesh.io/may-ask", name, port) for name, port in doors if name in here}
    scraped = {edge for edge in from_elsewhere if edge not in asked}
    assert scraped == {
        ("evenmesh.io/may-scrape", one.name, one.ports()["metrics"])
        for one in built.workloads()
        if "metrics" in one.ports()
    }


def test_nobody_else_may_ask_for_health(built: Manifests) -> None:
    """The kubelet of a pod's node always may, whatever the policies say."""
    asked = [one for one in built.workloads() if "health" in one.ports()]
    assert {*SERVICES} <= {one.name for one in asked}
    for workload in asked:
        for rule in rules(built, workload, "ingress") or ():
            assert not {"health", workload.ports()["health"]} & {one["port"] for one in rule["ports"]}


def test_what_fetches_models_may_and_nothing_else() -> None:
    fetching = {
        one.name
        for one in build(EVERYTHING).workloads()
        if any(c["name"] in ("model-files", "model-fetch") for c in one.pod.get("initContainers", ()))
    }
    labelled = {
        one.name for one in build(EVERYTHING).workloads() if one.labels.get("evenmesh.io/fetches") == "models"
    }
    assert (
        fetching
        == labelled
        == {
            "reranker",
            "retriever",
            "triton",
            "vllm",
            "tei-embed",
            "tei-rerank",
        }
    )


def test_they_leave_by_names_and_three_more_ways(built: Manifests) -> None:
    ways: set[tuple[str, str, int]] = set()
    for workload in built.workloads():
        for rule in rules(built, workload, "egress") or ():
            for peer in rule["to"]:
                for port in rule["ports"]:
                    if "namespaceSelector" in peer:
                        namespace = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
                        ways.add((workload.name, namespace, port["port"]))
                    if "ipBlock" in peer and peer["ipBlock"]["cidr"].startswith("169.254."):
                        ways.add((workload.name, "node", port["port"]))
                    elif "ipBlock" in peer:
                        assert {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"} < set(
                            peer["ipBlock"]["except"]
                        )
                        ways.add((workload.name, "outside", port["port"]))
    names = {one.name for one in built.workloads()}
    expected = {(name, where, 53) for name in names for where in ("kube-system", "node")}
    if "otel-collector" in names:
        (backend,) = addresses(built.workload("otel-collector").environment()["OTLP_BACKEND"])
        host, port = backend
        expected.add(("otel-collector", host.split(".")[1], port))
    for one in built.workloads():
        if one.labels.get("evenmesh.io/fetches") == "models":
            expected.add((one.name, "outside", 443))
    assert ways == expected

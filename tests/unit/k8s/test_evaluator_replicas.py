"""Several evaluators on one database: none has anything of its own, and callers take turns."""

from __future__ import annotations

from typing import Any

import pytest

from evenmesh_evaluator.settings import EvaluatorSettings
from tests.support.manifests import Manifests, build, matches, with_components


@pytest.fixture(params=["prod", "postgres", "alone"])
def built(request: pytest.FixtureRequest) -> Manifests:
    if request.param == "prod":
        return build("prod")
    return with_components(*({"postgres"} & {request.param}), "evaluator-replicas")


def test_there_are_two_and_one_may_be_away(built: Manifests) -> None:
    evaluator = built.workload("evaluator")
    spec: dict[str, Any] = evaluator.document["spec"]
    assert (evaluator.kind, spec["replicas"]) == ("Deployment", 2)
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    # Fields of a StatefulSet, which Kubernetes would refuse.
    assert set(spec) == {"progressDeadlineSeconds", "replicas", "selector", "strategy", "template"}
    assert built.one("PodDisruptionBudget", "evaluator")["spec"]["maxUnavailable"] == 1
    spread = {one["topologyKey"] for one in evaluator.pod["topologySpreadConstraints"]}
    assert spread == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}


def test_callers_find_each_by_one_name(built: Manifests) -> None:
    service = built.one("Service", "evaluator")["spec"]
    assert service["clusterIP"] == "None", (
        "an address of its own would hold all calls of a connection at one pod"
    )
    assert matches({"matchLabels": service["selector"]}, built.workload("evaluator").labels)
    # Connections end now and then, so that callers find those that are new.
    assert 0 < int(built.workload("evaluator").environment()["EVENMESH_EVALUATOR_MAX_CONNECTION_AGE_S"]) <= 60


def test_without_a_database_none_starts(built: Manifests, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would else keep in a file what the others do not see, and lose it with its pod."""
    evaluator = built.workload("evaluator")
    environment = evaluator.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("EVENMESH_ALLOW_INSECURE", "true")  # where no overlay guards them
    settings = EvaluatorSettings()
    (container,) = evaluator.containers
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    written = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
    assert written == {"/tmp"}  # noqa: S108
    file = EvaluatorSettings(database_url="").database().database
    assert file is not None
    assert not any(file.startswith(folder) for folder in written)
    if "EVENMESH_EVALUATOR_DATABASE_URL" in environment:
        assert settings.database().get_backend_name() == "postgresql"
    else:
        assert settings.database().database == file


def test_without_the_component_it_is_one_with_a_volume() -> None:
    evaluator = with_components("postgres").workload("evaluator")
    assert (evaluator.kind, evaluator.document["spec"]["replicas"]) == ("StatefulSet", 1)
    assert evaluator.document["spec"]["volumeClaimTemplates"]

"""Several rerankers share their database and the versions of their model, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from evenmesh_kit.settings import load
from evenmesh_reranker.models import opening
from evenmesh_reranker.models.bucket import BucketStore
from evenmesh_reranker.models.store import ModelStore
from evenmesh_reranker.settings import RerankerSettings
from tests.support.manifests import overlay, with_components

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "components.md"


def _settings(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> RerankerSettings:
    for name, value in {**variables, "EVENMESH_ALLOW_INSECURE": "true"}.items():
        monkeypatch.setenv(name, value)
    return load(RerankerSettings)


def test_rerankers_share_a_volume_and_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    built = with_components("postgres", "reranker-replicas")
    reranker = built.workload("reranker")
    assert reranker.kind == "StatefulSet"
    assert reranker.document["spec"]["replicas"] >= 2
    claim = built.one("PersistentVolumeClaim", "reranker-models")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (volume,) = (one for one in reranker.pod["volumes"] if "persistentVolumeClaim" in one)
    assert volume["persistentVolumeClaim"]["claimName"] == "reranker-models"
    (container,) = reranker.containers
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    settings = _settings(monkeypatch, reranker.environment())
    assert settings.model_store == mounts[volume["name"]]["mountPath"]
    assert not mounts[volume["name"]].get("readOnly")
    assert settings.database().get_backend_name() == "postgresql"
    assert isinstance(opening.version_store(settings), ModelStore)
    # A pod's own files are its own.
    assert str(settings.home) == mounts["home"]["mountPath"]
    assert [one["metadata"]["name"] for one in reranker.document["spec"]["volumeClaimTemplates"]] == ["home"]


def test_pods_are_spread_and_evicted_one_at_a_time() -> None:
    built = with_components("postgres", "reranker-replicas")
    reranker = built.workload("reranker")
    budget = built.one("PodDisruptionBudget", "reranker")
    assert budget["spec"]["maxUnavailable"] == 1
    assert [one.name for one in built.selected(budget["spec"]["selector"])] == ["reranker"]
    spread = {one["topologyKey"] for one in reranker.pod["topologySpreadConstraints"]}
    assert spread == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
    assert built.one("Service", "reranker")["spec"]["clusterIP"] == "None"


def test_a_bucket_takes_the_place_of_the_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (
        one
        for one in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "RERANKER_MODEL_STORE" in one
    )
    built = overlay(yaml.safe_load(block), "postgres", "reranker-replicas")
    assert not [
        one for one in built.of("PersistentVolumeClaim") if one["metadata"]["name"] == "reranker-models"
    ]
    (reranker,) = (one for one in built.of("StatefulSet") if one["metadata"]["name"] == "reranker")
    pod = reranker["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = {one["name"]: one.get("value", "") for one in container["env"]}
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= given.keys()
    volumes = {one["name"] for one in pod["volumes"]} | {"home"}
    assert {one["name"] for one in container["volumeMounts"]} <= volumes - {"shared-models"}
    monkeypatch.setenv("EVENMESH_RERANKER_MODEL_STORE", given["EVENMESH_RERANKER_MODEL_STORE"])
    assert isinstance(opening.version_store(load(RerankerSettings)), BucketStore)

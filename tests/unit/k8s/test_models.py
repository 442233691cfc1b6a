"""Models get to the pods that compute them: fetched before a pod starts, on a volume that it only reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from evenmesh_generator.settings import GeneratorSettings
from evenmesh_kit.settings import load
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_retriever.settings import RetrieverSettings
from tests.support.manifests import Manifests, Workload, build, overlay, with_components
from tests.support.pages import blocks, section

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "components.md"
SERVICES = ("generator", "reranker", "retriever")
FETCH = "model-files"


@pytest.fixture(scope="module")
def built() -> Manifests:
    """The overlay that the page shows."""
    (block,) = blocks(section(PAGE.read_text(), "models"), "yaml")
    further: dict[str, Any] = yaml.safe_load(block)
    insecure = {"name": "evenmesh", "behavior": "merge", "literals": ["EVENMESH_ALLOW_INSECURE=true"]}
    return overlay({**further, "configMapGenerator": [insecure]}, "models", "network-policy")


def fetching(workload: Workload) -> Any:
    return next(one for one in workload.pod["initContainers"] if one["name"] == FETCH)


@pytest.mark.parametrize(
    ("name", "source", "settings", "named"),
    [
        ("generator", "flan=google/flan-t5-large", GeneratorSettings, lambda one: one.models[0].path),
        ("reranker", "bge=s3://models/bge-reranker-base", RerankerSettings, lambda one: one.cross_encoder),
        ("retriever", "e5=intfloat/e5-base-v2@main", RetrieverSettings, lambda one: one.encoder),
    ],
)
def test_what_the_page_shows_is_fetched_where_the_settings_look(
    built: Manifests, name: str, source: str, settings: Any, named: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = built.workload(name)
    container = fetching(workload)
    assert workload.variables[FETCH]["EVENMESH_FETCH_MODELS"] == source
    *_, to, folder = container["args"]
    assert (container["command"], container["args"][0], to) == (["evenmesh"], "fetch-models", "--to")
    for key, value in workload.environment().items():
        monkeypatch.setenv(key, value)
    assert named(load(settings)) == f"{folder}/{source.partition('=')[0]}"


@pytest.mark.parametrize("name", SERVICES)
def test_the_service_reads_the_volume_and_sees_no_secret(built: Manifests, name: str) -> None:
    workload = built.workload(name)
    mounts = {one["mountPath"]: one for one in fetching(workload)["volumeMounts"]}
    (container,) = workload.containers
    (read,) = [one for one in container["volumeMounts"] if one["mountPath"] == "/models"]
    assert read["name"] == mounts["/models"]["name"]
    assert read["readOnly"] is True
    volumes = {one["name"]: one for one in workload.pod["volumes"]}
    claim = volumes[read["name"]]["persistentVolumeClaim"]["claimName"]
    assert built.one("PersistentVolumeClaim", claim)["spec"]["accessModes"] == ["ReadWriteMany"]
    assert workload.variables[FETCH]["HF_TOKEN"] == "TOKEN"  # noqa: S105
    assert "HF_TOKEN" not in workload.environment()
    (secret,) = [one["secretRef"] for one in fetching(workload)["envFrom"] if "secretRef" in one]
    assert secret["optional"] is True, "what is public needs none"
    assert "HF_HUB_OFFLINE" not in workload.variables[FETCH]


def gigabytes(workload: Workload) -> int:
    return int(workload.containers[0]["resources"]["limits"]["memory"].removesuffix("Gi"))


@pytest.mark.parametrize("name", SERVICES)
def test_limits_hold_weights_twice_while_they_load(built: Manifests, name: str) -> None:
    assert gigabytes(built.workload(name)) >= 2 * gigabytes(build("base").workload(name))


def test_a_generator_in_front_of_triton_fetches_nothing_and_triton_does() -> None:
    built = with_components("triton", "gpu", "models")
    assert "initContainers" not in built.workload("generator").pod
    triton = built.workload("triton")
    assert [one["name"] for one in triton.pod["initContainers"]] == [FETCH, "model-fetch"]
    assert triton.variables["model-fetch"]["HF_TOKEN"] == "TOKEN"  # noqa: S105
    at = {one["mountPath"]: one["name"] for one in fetching(triton)["volumeMounts"]}
    assert at["/models"] in {one["name"] for one in triton.containers[0]["volumeMounts"]}
    assert "HF_TOKEN" not in triton.environment()


def test_nothing_is_fetched_until_it_is_named() -> None:
    built = with_components("models")
    for name in SERVICES:
        assert built.workload(name).variables[FETCH]["EVENMESH_FETCH_MODELS"] == ""

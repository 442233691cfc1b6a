"""vLLM and TEI as components: what is fetched is served, and called by the name that it is served by."""

from __future__ import annotations

import os
from typing import Any

import pytest

from evenmesh_generator.settings import GeneratorSettings
from evenmesh_kit.settings import load
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_retriever.settings import RetrieverSettings
from tests.support.manifests import Manifests, Workload, with_components

SERVERS = ("vllm", "tei-embed", "tei-rerank")
SETTINGS: dict[str, Any] = {
    "generator": GeneratorSettings,
    "reranker": RerankerSettings,
    "retriever": RetrieverSettings,
}


@pytest.fixture(scope="module")
def built() -> Manifests:
    return with_components("vllm", "tei", "vllm-autoscaling", "tei-autoscaling")


def settings(built: Manifests, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    for key in [one for one in os.environ if one.startswith("EVENMESH_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("EVENMESH_ALLOW_INSECURE", "true")
    for key, value in built.workload(name).environment().items():
        monkeypatch.setenv(key, value)
    return load(SETTINGS[name])


def options(workload: Workload) -> dict[str, str]:
    return dict(word.lstrip("-").split("=", 1) for word in workload.containers[0]["args"] if "=" in word)


def base_url(built: Manifests, name: str) -> str:
    (port,) = built.one("Service", name)["spec"]["ports"]
    assert int(options(built.workload(name))["port"]) == port["port"]
    return f"http://{name}:{port['port']}"


def test_the_generator_asks_vllm_for_what_it_serves(
    built: Manifests, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = settings(built, "generator", monkeypatch)
    assert (found.engine, found.remote_urls) == ("openai", (f"{base_url(built, 'vllm')}/v1",))
    assert found.names == (options(built.workload("vllm"))["served-model-name"],)
    assert "evenmesh.io/computes" not in built.workload("generator").document["metadata"]["labels"]
    assert "nvidia.com/gpu" in built.workload("vllm").containers[0]["resources"]["limits"]


def test_retriever_and_reranker_ask_tei(built: Manifests, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        found = settings(built, "retriever", patch)
        assert (found.encoder, found.remote_server) == ("remote", "tei")
        assert found.remote_urls == (base_url(built, "tei-embed"),)
    found = settings(built, "reranker", monkeypatch)
    assert (found.default_reranker, found.remote_server, found.cross_encoder) == ("remote", "tei", "")
    assert found.remote_urls == (base_url(built, "tei-rerank"),)


@pytest.mark.parametrize("name", SERVERS)
def test_what_is_served_was_fetched(built: Manifests, name: str) -> None:
    workload = built.workload(name)
    args = workload.containers[0]["args"]
    folder = args[0] if name == "vllm" else options(workload)["model-id"]
    (model,) = workload.variables["model-files"]["EVENMESH_FETCH_MODELS"].split()
    assert folder == f"/models/{model.partition('=')[0]}"
    assert "HF_TOKEN" in workload.variables["model-files"]
    assert "HF_TOKEN" not in workload.environment()
    (mount,) = [one for one in workload.containers[0]["volumeMounts"] if one["mountPath"] == "/models"]
    assert mount["readOnly"] is True


@pytest.mark.parametrize("name", SERVERS)
def test_running_requests_end_before_the_server_does(built: Manifests, name: str) -> None:
    workload = built.workload(name)
    pause = workload.containers[0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert workload.pod["terminationGracePeriodSeconds"] >= pause + 10
    assert workload.pod["enableServiceLinks"] is False, "VLLM_PORT of a Service named vllm would be a setting"


def test_vllm_has_shared_memory_and_a_place_for_what_it_compiles(built: Manifests) -> None:
    workload = built.workload("vllm")
    at = {one["mountPath"]: one["name"] for one in workload.containers[0]["volumeMounts"]}
    volumes = {one["name"]: one for one in workload.pod["volumes"]}
    assert volumes[at["/dev/shm"]]["emptyDir"]["medium"] == "Memory"  # noqa: S108 - a path in the container
    assert workload.environment()["HOME"] in at


@pytest.mark.parametrize("name", ["generator", "retriever", "reranker"])
def test_new_servers_get_calls_because_no_connection_stays(
    built: Manifests, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings(built, name, monkeypatch).remote_keep_alive_s == 0


def test_scalers_see_the_queue_before_it_is_full(built: Manifests, monkeypatch: pytest.MonkeyPatch) -> None:
    triggers = built.one("ScaledObject", "vllm")["spec"]["triggers"]
    queries = [one["metadata"]["query"] for one in triggers]
    assert 'vllm:num_requests_waiting{namespace="evenmesh"}' in queries[0]
    # vLLM batches 256 requests by default: what waits there is seen only if generators send more.
    assert settings(built, "generator", monkeypatch).remote_in_flight > 256
    for name in SERVERS[1:]:
        (trigger,) = built.one("ScaledObject", name)["spec"]["triggers"]
        assert f'job="{name}"' in trigger["metadata"]["query"], "the job that PodMonitor names after the pods"


def test_tei_may_have_gpus() -> None:
    built = with_components("tei", "gpu-tei")
    for name in SERVERS[1:]:
        workload = built.workload(name)
        assert workload.containers[0]["image"].endswith(":cuda-1.9")
        assert workload.containers[0]["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert workload.document["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0
    assert (
        "nvidia.com/gpu"
        not in with_components("tei").workload("tei-embed").containers[0]["resources"]["limits"]
    )

"""The online trainer shares database, versions and initial model with the reranker, and starts from its image."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from evenmesh_kit.settings import load, variable
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_training.online.settings import OnlineSettings
from tests.support.images import IMAGES, ROOT, command, running
from tests.support.manifests import EVERYTHING, Manifests, build, overlay, with_components
from tests.support.pages import blocks, section

PAGE = ROOT / "docs" / "operate" / "components.md"
SHARED = ("database_url", "model_store", "cross_encoder", "allow_download", "max_length", "model_cache_mb")
"""Settings of the reranker that the trainer reads, beside home, which is its own, and SQLite's."""
INSECURE = {"name": "evenmesh", "behavior": "merge", "literals": ["EVENMESH_ALLOW_INSECURE=true"]}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no variables of ours."""
    for name in [one for one in os.environ if one.startswith("EVENMESH_")]:
        monkeypatch.delenv(name)


def given(built: Manifests, name: str, monkeypatch: pytest.MonkeyPatch) -> RerankerSettings:
    """Return the settings of the reranker as a workload has them."""
    with monkeypatch.context() as patch:
        for key, value in built.workload(name).environment().items():
            patch.setenv(key, value)
        return load(RerankerSettings)


def test_it_can_start_with_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(EVERYTHING)
    trainer = built.workload("trainer")
    for key, value in trainer.environment().items():
        monkeypatch.setenv(key, value)
    known = {variable(one, field) for one in (OnlineSettings, RerankerSettings) for field in one.model_fields}
    assert {one for one in trainer.environment() if one.startswith("EVENMESH_")} <= known
    settings = load(OnlineSettings)
    ports = trainer.ports()
    assert (settings.health_port, settings.metrics_port) == (ports["health"], ports["metrics"])
    assert not settings.allow_insecure
    mounts = {mount["mountPath"] for mount in trainer.containers[0]["volumeMounts"]}
    for path in (settings.tls_cert, settings.tls_key, settings.tls_ca, settings.api_keys):
        assert path is not None
        assert str(path.parent) in mounts
    (certificate,) = (one for one in built.of("Certificate") if one["metadata"]["name"] == "trainer")
    assert {"server auth", "client auth"} <= set(certificate["spec"]["usages"])
    assert "trainer" in certificate["spec"]["dnsNames"]


def test_it_shares_what_it_must_with_the_reranker(monkeypatch: pytest.MonkeyPatch) -> None:
    patches = [
        {
            "patch": yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": "reranker"},
                    "data": {
                        "EVENMESH_RERANKER_CROSS_ENCODER": "/models/bge",
                        "EVENMESH_RERANKER_ALLOW_DOWNLOAD": "true",
                        "EVENMESH_RERANKER_MAX_LENGTH": "128",
                        "EVENMESH_RERANKER_MODEL_CACHE_MB": "77",
                    },
                }
            )
        }
    ]
    further = {"patches": patches, "configMapGenerator": [INSECURE]}
    for built in (
        with_components("postgres", "reranker-replicas", "trainer", "mtls"),
        overlay(further, "postgres", "reranker-replicas", "trainer", "models"),
    ):
        mine, its = given(built, "trainer", monkeypatch), given(built, "reranker", monkeypatch)
        for field in SHARED:
            assert getattr(mine, field) == getattr(its, field), field
    assert its.cross_encoder == "/models/bge"
    mounted = built.workload("trainer").containers[0]["volumeMounts"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in mounted


def test_it_writes_versions_where_rerankers_read_them() -> None:
    built = with_components("postgres", "reranker-replicas", "trainer")
    stores = []
    for name in ("trainer", "reranker"):
        workload = built.workload(name)
        at = workload.environment()["EVENMESH_RERANKER_MODEL_STORE"]
        (mount,) = (one for one in workload.containers[0]["volumeMounts"] if one["mountPath"] == at)
        assert not mount.get("readOnly")
        (volume,) = (one for one in workload.pod["volumes"] if one["name"] == mount["name"])
        stores.append(volume["persistentVolumeClaim"]["claimName"])
    assert stores == ["reranker-models"] * 2
    claim = built.one("PersistentVolumeClaim", "reranker-models")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_its_volume_is_one_pods_at_a_time() -> None:
    built = with_components("postgres", "reranker-replicas", "trainer")
    trainer = built.workload("trainer")
    assert trainer.document["spec"]["strategy"] == {"type": "Recreate"}
    (home,) = (one for one in trainer.pod["volumes"] if one["name"] == "home")
    claim = built.one("PersistentVolumeClaim", home["persistentVolumeClaim"]["claimName"])
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    (mount,) = (one for one in trainer.containers[0]["volumeMounts"] if one["name"] == "home")
    assert mount["mountPath"] == trainer.environment()["EVENMESH_HOME"], "checkpoints are there"


def test_what_the_page_changes_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks(section(PAGE.read_text(), "trainer"), "yaml")
    further = yaml.safe_load(block)
    components = [Path(one).name for one in further.pop("components")]
    built = overlay({**further, "configMapGenerator": [INSECURE]}, *components)
    for key, value in built.workload("trainer").environment().items():
        monkeypatch.setenv(key, value)
    assert load(OnlineSettings).queries == 128
    assert built.workload("trainer").containers[0]["image"] == "registry.example.com/evenmesh/training:0.3.0"


def test_nobody_calls_it() -> None:
    built = build(EVERYTHING)
    labels = built.workload("trainer").labels
    assert not [one for one in built.of("Service") if one["spec"]["selector"].items() <= labels.items()]


def test_its_image_has_what_it_needs(tmp_path: Path) -> None:
    (container,) = with_components("postgres", "reranker-replicas", "trainer").workload("trainer").containers
    assert container["image"] == "evenmesh-training"
    assert container["command"] == ["python", "-m", "evenmesh_training.online"]
    image = IMAGES["training"]
    assert {"postgres", "s3", "telemetry"} <= set(image.extras)
    *only, _ = command(image, image.extras)  # the last is the image's own program
    mine = {
        "EVENMESH_TRAINER_PORT": "0",
        "EVENMESH_TRAINER_PORT_FILE": str(tmp_path / "port"),
        "EVENMESH_TRAINER_METRICS_PORT": "0",
    }
    with running(image, [*only, container["command"][-1]], tmp_path, settings=mine):
        pass  # it serves, and ends when it is asked to

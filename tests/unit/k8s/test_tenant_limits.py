"""Limits of tenants get to every service, and change without a rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from evenmesh_kit.admission.limits import Limits
from tests.support.manifests import FOLLOWED, SERVICES, Manifests, build, overlay, with_components
from tests.support.pages import blocks, section

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "components.md"
LIMITED = (*SERVICES, "retriever-replicas")


def read(built: Manifests, name: str, folder: Path) -> Limits:
    """The limits that a workload reads, from the ConfigMap that it mounts."""
    workload = built.workload(name)
    path = Path(workload.environment()["EVENMESH_LIMITS"])
    (mount,) = (one for one in workload.containers[0]["volumeMounts"] if one["mountPath"] == str(path.parent))
    assert "subPath" not in mount, "Kubernetes would never replace it"
    (volume,) = (one for one in workload.pod["volumes"] if one["name"] == mount["name"])
    file = folder / path.name
    file.write_text(built.one("ConfigMap", volume["configMap"]["name"])["data"][path.name])
    return Limits.read(file)


@pytest.mark.parametrize("name", LIMITED)
def test_every_service_reads_the_limits(name: str, tmp_path: Path) -> None:
    found = read(build(FOLLOWED), name, tmp_path).of("anybody")
    assert found.calls_per_s
    assert found.tokens_per_minute


def test_those_of_the_page_take_their_place_and_replace_no_pod(tmp_path: Path) -> None:
    (block,) = blocks(section(PAGE.read_text(), "limits"), "yaml")
    further: dict[str, Any] = yaml.safe_load(block)
    before, after = with_components("limits"), overlay(further, "limits")
    for name in SERVICES:
        assert read(after, name, tmp_path).of("acme").tokens_per_minute == 1_000_000
        assert read(after, name, tmp_path).of("another").tokens_per_minute == 50_000
        assert before.workload(name).document == after.workload(name).document

"""compose.yaml has the images, settings and limits of the manifests, and is open to this machine alone."""

from __future__ import annotations

import os
from typing import Any

import pytest
import yaml

from evenmesh_gateway.settings import GatewaySettings
from evenmesh_kit.settings import is_loopback, load
from tests.support.images import IMAGES, ROOT
from tests.support.manifests import SERVICES, addresses, build, with_components
from tests.unit.k8s.test_pod_settings import SETTINGS

_UNITS = {"m": "Mi", "g": "Gi"}


def composed(name: str = "compose.yaml") -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return found


def variables(service: dict[str, Any]) -> dict[str, str]:
    """What a container has: its files, in their order, and what stands in compose.yaml."""
    lines = [
        line
        for file in service["env_file"]
        for line in (ROOT / file).read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    return dict(line.split("=", 1) for line in lines) | service["environment"]


def test_every_service_is_there_once_with_its_volume() -> None:
    found = composed()
    assert set(found["services"]) == {*SERVICES, "gateway"}
    assert set(found["volumes"]) == set(SERVICES)
    for name, service in found["services"].items():
        assert service["build"] == {"context": ".", "args": {"SERVICE": name}}
        if name != "gateway":
            assert service["volumes"] == [f"{name}:/var/lib/evenmesh"]
            assert service["env_file"] == [f"k8s/base/{file}.env" for file in ("evenmesh", name)]
    gateway = found["services"]["gateway"]
    assert gateway["env_file"] == ["k8s/base/evenmesh.env", "k8s/components/http/gateway.env"]
    assert "volumes" not in gateway, "it keeps nothing"
    assert any(one.startswith("/var/lib/evenmesh:") for one in gateway["tmpfs"])


def test_the_gateway_lets_pages_of_this_machine_alone_call() -> None:
    hosts = variables(composed()["services"]["gateway"])["EVENMESH_GATEWAY_HOSTS"].split(",")
    assert all(is_loopback(host) for host in hosts)


@pytest.mark.parametrize("name", [*SERVICES, "gateway"])
def test_a_service_starts_with_these_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = composed()["services"][name]
    for one in [one for one in os.environ if one.startswith("EVENMESH_")]:
        monkeypatch.delenv(one)
    for key, value in variables(service).items():
        monkeypatch.setenv(key, value)
    settings = load({**SETTINGS, "gateway": GatewaySettings}[name])
    assert settings.allow_insecure
    assert service["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"]
    ends_s = settings.grace_s + getattr(settings, "outbox_drain_s", 0)
    assert max(ends_s, settings.grace_s + 10) <= float(service["stop_grace_period"].removesuffix("s"))
    targets = {host: port for value in variables(service).values() for host, port in addresses(value)}
    assert targets == {host: IMAGES[host].port for host in targets}


@pytest.mark.parametrize("name", [*SERVICES, "gateway"])
def test_a_service_may_do_no_more_than_in_a_pod(name: str) -> None:
    service = composed()["services"][name]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    manifests = with_components("http") if name == "gateway" else build("base")
    (container,) = manifests.workload(name).containers
    limit = service["mem_limit"]
    assert limit[:-1] + _UNITS[limit[-1]] == container["resources"]["limits"]["memory"]


def test_the_gpu_is_the_generators_with_the_image_for_it() -> None:
    (only,) = composed("compose.gpu.yaml")["services"].items()
    assert only[0] == "generator"
    assert only[1]["build"]["args"] == {"SERVICE": "generator", "VARIANT": "cuda"}
    (device,) = only[1]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    (generator,) = with_components("gpu").workload("generator").containers
    assert only[1]["image"] == f"{generator['image']}:compose"
    assert only[1]["environment"] == {"EVENMESH_GENERATOR_REQUIRE_GPU": "true"}

"""Traces go from the services to the collector, and on, with TLS wherever a component says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.manifests import EVERYTHING, SERVICES, Manifests, build, with_components

GUARDED: Final = ("prod", EVERYTHING)


def configuration(built: Manifests) -> dict[str, Any]:
    """The collector's configuration: its files over each other, as it merges them."""
    collector = built.workload("otel-collector")
    (container,) = collector.containers
    (name,) = (one["configMap"]["name"] for one in collector.pod["volumes"] if "configMap" in one)
    files = built.one("ConfigMap", name)["data"]
    named = [Path(word.removeprefix("--config=")).name for word in container["args"]]
    assert sorted(named) == sorted(files), "every file is read, and there"
    merged: dict[str, Any] = {}
    for one in named:
        merge(merged, yaml.safe_load(files[one]))
    return merged


def merge(into: dict[str, Any], other: dict[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def held(built: Manifests) -> dict[str, str]:
    """The Secret behind each folder that the collector mounts."""
    pod = built.workload("otel-collector").pod
    secrets = {one["name"]: one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
    (container,) = pod["containers"]
    return {
        mount["mountPath"]: secrets[mount["name"]]
        for mount in container["volumeMounts"]
        if mount["name"] in secrets
    }


def endpoints(built: Manifests) -> dict[str, str]:
    """Where each service sends its traces."""
    return {
        name: built.workload(name).environment()[f"EVENMESH_{name.upper()}_OTLP_ENDPOINT"]
        for name in (*SERVICES, "gateway")
    }


def test_without_more_traces_are_in_plain_text() -> None:
    built = with_components("http", "otel")
    assert set(endpoints(built).values()) == {"http://otel-collector:4317"}
    reported = configuration(built)
    assert reported["exporters"]["otlp"]["tls"] == {"insecure": True}
    assert "tls" not in reported["receivers"]["otlp"]["protocols"]["grpc"]
    assert held(built) == {}


@pytest.mark.parametrize("name", GUARDED)
def test_the_collector_trusts_the_authority_of_the_secret_alone(name: str) -> None:
    built = build(name)
    tls = configuration(built)["exporters"]["otlp"]["tls"]
    assert tls["insecure"] is False
    assert "insecure_skip_verify" not in tls
    for key, file in (("ca_file", "ca.crt"), ("cert_file", "tls.crt"), ("key_file", "tls.key")):
        path = Path(tls[key])
        assert path.name == file
        assert held(built)[str(path.parent)] == "otel-backend"


@pytest.mark.parametrize("name", GUARDED)
def test_services_send_traces_with_tls_to_a_certificate_that_they_trust(name: str) -> None:
    built = build(name)
    assert set(endpoints(built).values()) == {"https://otel-collector:4317"}
    tls = configuration(built)["receivers"]["otlp"]["protocols"]["grpc"]["tls"]
    certificate = built.one("Certificate", "otel-collector")["spec"]
    assert "otel-collector" in certificate["dnsNames"]
    assert "server auth" in certificate["usages"]
    for key in ("cert_file", "key_file"):
        assert held(built)[str(Path(tls[key]).parent)] == certificate["secretName"]
    assert certificate["issuerRef"] == built.one("Certificate", "retriever")["spec"]["issuerRef"]
    for one in (*SERVICES, "gateway"):
        variables = built.workload(one).environment()
        assert variables["EVENMESH_OTLP_CA"] == variables["EVENMESH_TLS_CA"], "mounted, of the same authority"
    (port,) = built.one("Service", "otel-collector")["spec"]["ports"]
    assert port["appProtocol"] == "https"


def test_each_of_the_two_ways_can_be_guarded_alone() -> None:
    outside = with_components("http", "otel", "otel-tls")
    assert set(endpoints(outside).values()) == {"http://otel-collector:4317"}
    assert configuration(outside)["exporters"]["otlp"]["tls"]["insecure"] is False
    inside = with_components("http", "otel", "mtls", "otel-mtls")
    assert set(endpoints(inside).values()) == {"https://otel-collector:4317"}
    assert configuration(inside)["exporters"]["otlp"]["tls"]["insecure"] is True

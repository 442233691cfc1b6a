"""What pods are reported is what their services know, and ports are the same wherever they are named."""

from __future__ import annotations

import inspect
import os
import re
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import make_url

from evenmesh.addresses import VARIABLES
from evenmesh.wire.security import ChannelSecurity
from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_generator.settings import GeneratorSettings
from evenmesh_generator.triton.__main__ import main as triton
from evenmesh_generator.triton.settings import TritonSettings
from evenmesh_kit.settings import ServiceSettings, SettingsError, load, variable
from evenmesh_kit.storage.sql import CONNECTIONS
from evenmesh_orchestrator.settings import OrchestratorSettings
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_retriever.settings import RetrieverSettings
from evenmesh_training.online.settings import OnlineSettings
from tests.support.images import IMAGES
from tests.support.manifests import EVERYTHING, FOLLOWED, OVERLAYS, SERVICES, Manifests, Workload, build

BUILT = (*OVERLAYS, EVERYTHING, FOLLOWED)
SETTINGS: dict[str, type[ServiceSettings]] = {
    "orchestrator": OrchestratorSettings,
    "retriever": RetrieverSettings,
    "reranker": RerankerSettings,
    "generator": GeneratorSettings,
    "evaluator": EvaluatorSettings,
}
CLIENT = {
    f"EVENMESH_{name}" for name in re.findall(r'"([A-Z_]{5,})"', inspect.getsource(ChannelSecurity.find))
}
OTHERS = {
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HOME",
    "NUMBA_CACHE_DIR",
    "OMP_NUM_THREADS",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "TOKENIZERS_PARALLELISM",
}
"""Variables of libraries."""


@pytest.fixture(params=BUILT)
def built(request: pytest.FixtureRequest) -> Manifests:
    return build(request.param)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without variables of ours."""
    for name in [one for one in os.environ if one.startswith("EVENMESH_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def settings(workload: Workload, environment: pytest.MonkeyPatch) -> Any:
    for name, value in workload.environment().items():
        environment.setenv(name, value)
    return load(SETTINGS[workload.name])


def test_the_client_reads_what_is_thought() -> None:
    assert {
        "EVENMESH_TLS_CA", "EVENMESH_TLS_CERT", "EVENMESH_TLS_KEY", "EVENMESH_API_KEY", "EVENMESH_TOKEN_FILE",
    } == CLIENT  # fmt: skip


@pytest.mark.parametrize("name", SERVICES)
def test_every_variable_of_a_service_is_one_of_its_settings(built: Manifests, name: str) -> None:
    known = {variable(SETTINGS[name], field) for field in SETTINGS[name].model_fields}
    reported = set(built.workload(name).environment())
    assert {one for one in reported if one.startswith("EVENMESH_")} <= known
    assert {one for one in reported if not one.startswith("EVENMESH_")} <= OTHERS


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_start_with_what_it_is_given(
    built: Manifests, name: str, environment: pytest.MonkeyPatch
) -> None:
    workload = built.workload(name)
    reported = settings(workload, environment)
    ports = workload.ports()
    assert reported.port == SETTINGS[name].model_fields["port"].default == ports["grpc"]
    assert reported.metrics_port == ports["metrics"]
    assert reported.health_port == ports["health"]
    assert reported.host == "0.0.0.0"  # noqa: S104 - other pods call it
    mounts = {mount["mountPath"] for mount in workload.containers[0]["volumeMounts"]}
    # Evaluators that share a database write nothing of their own.
    assert (str(reported.home) in mounts) is ((name, workload.kind) != ("evaluator", "Deployment"))


@pytest.mark.parametrize("name", SERVICES)
def test_the_base_alone_refuses_to_start(name: str, environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=f"EVENMESH_{name.upper()}_HOST=0.0.0.0: .*TLS"):
        settings(build("base").workload(name), environment)


@pytest.mark.parametrize("name", SERVICES)
def test_only_the_overlay_for_trying_out_is_insecure(name: str, environment: pytest.MonkeyPatch) -> None:
    assert settings(build("dev").workload(name), environment).allow_insecure
    environment.delenv("EVENMESH_ALLOW_INSECURE")
    guarded = settings(build("prod").workload(name), environment)
    assert not guarded.allow_insecure
    assert guarded.api_keys is not None
    mounts = {mount["mountPath"] for mount in build("prod").workload(name).containers[0]["volumeMounts"]}
    for path in (guarded.tls_cert, guarded.tls_key, guarded.tls_ca, guarded.api_keys):
        assert str(path.parent) in mounts
    # Who calls the orchestrator shows a key; the others take the mesh's own certificates alone.
    assert guarded.tls_clients == ("open" if name == "orchestrator" else "required")


def test_those_are_services_who_call(environment: pytest.MonkeyPatch) -> None:
    built = build("prod")
    callers: dict[str, set[str]] = {name: set() for name in SERVICES}
    for caller, known in {**SETTINGS, "trainer": OnlineSettings}.items():
        for field in known.model_fields:
            target = field.removesuffix("_target")
            if target != field and target in callers:
                callers[target].add(caller)
    for name in SERVICES:
        with pytest.MonkeyPatch.context() as patch:
            assert set(settings(built.workload(name), patch).tls_services) == callers[name]
        assert set(built.one("Certificate", name)["spec"]["usages"]) >= {"server auth", "client auth"}
        assert name in built.one("Certificate", name)["spec"]["dnsNames"]
    client = set(built.one("Certificate", "client")["spec"]["dnsNames"])
    assert not client & set(SERVICES), "nobody but a service is one"


@pytest.mark.parametrize("name", ["prod", EVERYTHING])
def test_the_gateway_can_start_and_is_no_service(name: str, environment: pytest.MonkeyPatch) -> None:
    built = build(name)
    workload = built.workload("gateway")
    for variable_name, value in workload.environment().items():
        environment.setenv(variable_name, value)
    known = {variable(GatewaySettings, field) for field in GatewaySettings.model_fields}
    assert {one for one in workload.environment() if one.startswith("EVENMESH_")} <= known
    reported = load(GatewaySettings)
    assert reported.port == GatewaySettings.model_fields["port"].default == workload.ports()["http"]
    assert reported.metrics_port == workload.ports()["metrics"]
    assert reported.api_keys is not None
    mounts = {mount["mountPath"] for mount in workload.containers[0]["volumeMounts"]}
    for path in (reported.home, reported.tls_cert.parent, reported.tls_key.parent, reported.api_keys.parent):
        assert str(path) in mounts
    pause = int(workload.containers[0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert workload.pod["terminationGracePeriodSeconds"] >= pause + reported.grace_s + 10
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert workload.containers[0][probe]["httpGet"]["scheme"] == "HTTPS"
    shown = set(built.one("Certificate", "gateway")["spec"]["dnsNames"]) - {"localhost"}
    for one in SERVICES:
        with pytest.MonkeyPatch.context() as patch:
            assert not shown & set(settings(built.workload(one), patch).tls_services)
    (port,) = built.one("Service", "gateway")["spec"]["ports"]
    assert (port["port"], port["appProtocol"]) == (reported.port, "https")


def test_a_pod_of_the_gateway_has_room_for_the_uploads_that_it_permits(
    environment: pytest.MonkeyPatch,
) -> None:
    workload = build("prod").workload("gateway")
    for name, value in workload.environment().items():
        environment.setenv(name, value)
    settings = load(GatewaySettings)
    assert settings.documents
    assert "documents" in IMAGES["gateway"].extras
    limits = workload.containers[0]["resources"]["limits"]
    processes = 2 * settings.documents_uploads
    own = 512 * 2**20
    assert amount(limits["memory"]) >= processes * settings.documents_memory_bytes + own
    (scratch,) = (one for one in workload.pod["volumes"] if one["name"] == "scratch")
    (home,) = (one for one in workload.pod["volumes"] if one["name"] == "home")
    room = amount(scratch["emptyDir"]["sizeLimit"])
    # A file of an archive is on disk while it is read.
    assert room >= settings.documents_disk_bytes + settings.documents_uploads * settings.documents_bytes
    assert amount(limits["ephemeral-storage"]) >= room + amount(home["emptyDir"]["sizeLimit"])
    # One tenant's uploads leave a place, and disk, for another's.
    one = settings.documents_bytes + 2 * settings.documents_text_bytes
    assert settings.tenant_share * settings.documents_uploads < settings.documents_uploads
    assert settings.documents_disk_bytes >= settings.documents_uploads * one


def amount(text: str) -> int:
    """Bytes of a quantity of Kubernetes."""
    return int(text[:-2]) * {"Mi": 2**20, "Gi": 2**30}[text[-2:]]


def test_jobs_know_what_clients_know(built: Manifests) -> None:
    for job in built.workloads("CronJob"):
        for variables in job.variables.values():
            ours = {name for name in variables if name.startswith("EVENMESH_")}
            assert ours <= {*VARIABLES.values(), *CLIENT}, job.name
            assert set(variables) - ours <= OTHERS


def test_jobs_that_call_show_a_certificate_and_a_key() -> None:
    for job in build(EVERYTHING).workloads("CronJob"):
        reported = job.environment()
        if any(name in VARIABLES.values() for name in reported):
            assert job.document["metadata"]["labels"]["evenmesh.io/calls"] == "mesh"
            assert CLIENT - {"EVENMESH_TOKEN_FILE"} <= set(reported)
        else:
            assert not CLIENT & set(reported)


def test_ports_of_services_are_ports_of_their_pods(built: Manifests) -> None:
    for service in built.of("Service"):
        (workload,) = built.selected({"matchLabels": service["spec"]["selector"]})
        for port in service["spec"]["ports"]:
            assert workload.ports()[port["targetPort"]] == port["port"], service["metadata"]["name"]
    for name in SERVICES:
        spec = built.one("Service", name)["spec"]
        assert spec["clusterIP"] == "None", "round_robin wants the pods' addresses"
        assert [port["port"] for port in spec["ports"]] == [SETTINGS[name].model_fields["port"].default]


def test_probes_ask_ports_that_are_there(built: Manifests) -> None:
    for workload in built.workloads("Deployment", "StatefulSet"):
        ports = workload.ports()
        for container in workload.containers:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                asked = container[probe].get("httpGet") or container[probe].get("grpc") or {}
                assert asked.get("port", next(iter(ports))) in {*ports, *ports.values()}


def test_postgres_has_the_databases_that_are_asked_for(environment: pytest.MonkeyPatch) -> None:
    built = build("prod")
    (databases,) = (
        one["data"]["databases.sql"] for one in built.of("ConfigMap") if "databases.sql" in one["data"]
    )
    for name in ("evaluator", "reranker"):
        url = settings(built.workload(name), environment).database()
        assert (url.drivername, url.host, url.port) == ("postgresql+asyncpg", "postgres", 5432)
        assert f"CREATE DATABASE {url.database};" in databases
    reported = built.workload("orchestrator").environment()
    conversations = make_url(reported["EVENMESH_ORCHESTRATOR_CONVERSATIONS_URL"])
    assert (conversations.host, conversations.port) == ("postgres", 5432)
    assert f"CREATE DATABASE {conversations.database};" in databases


@pytest.mark.parametrize("name", ["prod", EVERYTHING])
def test_postgres_takes_the_connections_of_all_who_may_run_at_once(name: str) -> None:
    """Where it refuses some, whichever service comes last fails."""
    built = build(name)
    most = {
        one["metadata"]["name"]: one["spec"]["maxReplicas"] for one in built.of("HorizontalPodAutoscaler")
    }
    processes = 0
    for workload in built.workloads("Deployment", "StatefulSet"):
        if "@postgres:" in str(workload.variables):
            spec = workload.document["spec"]
            surge = spec.get("strategy", {}).get("rollingUpdate", {}).get("maxSurge", 0)
            processes += most.get(workload.name, spec.get("replicas", 0)) + surge
    (container,) = built.workload("postgres").containers
    (taken,) = (int(one.partition("=")[2]) for one in container["args"] if "max_connections" in one)
    assert processes >= 10 + 3 + 1
    assert taken >= processes * CONNECTIONS + 10  # people's, and those that back it up
    assert "/dev/shm" in {mount["mountPath"] for mount in container["volumeMounts"]}  # noqa: S108


def test_the_generator_asks_triton_for_what_it_has(environment: pytest.MonkeyPatch, tmp_path: Any) -> None:
    generator = settings(build("prod").workload("generator"), environment)
    server = build("prod").workload("triton")
    assert generator.triton_target == f"triton:{server.ports()['grpc']}"
    assert server.ports()["grpc"] == TritonSettings.model_fields["port"].default
    (fetch,) = server.pod["initContainers"]
    assert fetch["command"] == ["python3", "-m", "evenmesh_generator.triton", "repository"]
    named = [
        word.removeprefix("--model=").split("=")[0] for word in fetch["args"] if word.startswith("--model=")
    ]
    assert set(named) == set(generator.names)
    # The same words, but for a model that would have to be fetched.
    output = tmp_path / "models"
    words = [word for word in fetch["args"] if word != "--model=flan=google/flan-t5-large"]
    words = [f"--output={output}" if word.startswith("--output=") else word for word in words]
    assert triton(["repository", *words]) == 0
    written = {path.name for path in output.iterdir()}
    assert {"evenmesh-pointer"} < written
    (container,) = server.containers
    reported = dict(word.split("=", 1) for word in container["args"] if "=" in word)
    assert f"--output={reported['--model-repository']}" in fetch["args"]
    assert {int(reported[f"--{name}-port"]) for name in ("grpc", "http", "metrics")} == set(
        server.ports().values()
    )


def test_what_scalers_ask_for_is_measured(environment: pytest.MonkeyPatch) -> None:
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.trace import NoOpTracer

    from evenmesh_generator.metrics import GeneratorMetrics
    from evenmesh_generator.runtime.statistics import EngineStatistics
    from evenmesh_kit.compute.tenant_places import TenantPlaces
    from evenmesh_kit.telemetry.setup import Telemetry

    reader = PrometheusMetricReader()
    meters = MeterProvider([reader])
    watched = GeneratorMetrics(Telemetry(NoOpTracer(), meters.get_meter("t"), enabled=True))
    watched.watch("m", EngineStatistics)
    watched.watch_places(TenantPlaces(1, share=1.0, where="a server"))
    registry = CollectorRegistry()
    registry.register(reader._collector)
    shown = set(re.findall(r"^# TYPE (\S+)", generate_latest(registry).decode(), re.MULTILINE))
    meters.shutdown()
    asked = {
        name
        for one in build("prod").of("ScaledObject")
        for trigger in one["spec"]["triggers"]
        for name in re.findall(r"\b(evenmesh_\w+)", trigger["metadata"]["query"])
    }
    assert len(asked) == 3
    assert asked <= shown


def test_an_audit_has_as_many_shards_as_pods() -> None:
    job = build(EVERYTHING).workload("audit")
    spec = job.document["spec"]["jobTemplate"]["spec"]
    (script,) = job.containers[0]["args"]
    (count,) = re.findall(r'--shard "\$JOB_COMPLETION_INDEX/(\d+)"', script)
    assert spec["completionMode"] == "Indexed"
    assert int(count) == spec["completions"] == spec["parallelism"]
    assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == job.containers[0]["name"]


def test_an_audit_is_one_of_the_command_line() -> None:
    import shlex

    import typer

    from evenmesh.commands import application
    from evenmesh.commands.failure import USAGE

    job = build(EVERYTHING).workload("audit")
    (script,) = job.containers[0]["args"]
    words = shlex.split(script.replace("$JOB_COMPLETION_INDEX", "3").replace("\\\n", ""))
    assert words[:3] == ["exec", "evenmesh", "audit"]
    command = typer.main.get_command(application()).commands["audit"]  # type: ignore[attr-defined]
    parsed = command.make_context("audit", words[3:]).params
    assert parsed["shard"] == "3/4"
    assert parsed["alpha"] == "1,2,4,8"
    mounts = {mount["mountPath"]: mount for mount in job.containers[0]["volumeMounts"]}
    assert mounts["/data"]["readOnly"] is True
    assert str(parsed["queries"]).startswith("/data/")
    assert str(parsed["out"]).startswith("/output/")
    rules = job.document["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onExitCodes"]["values"] == [USAGE]

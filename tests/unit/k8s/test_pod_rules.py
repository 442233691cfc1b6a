"""What pods may do, what they ask for, and how they start, are looked after, move and end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenmesh.orchestrator.v1 import orchestrator_service_pb2
from evenmesh_kit.settings import variable
from evenmesh_orchestrator.settings import OrchestratorSettings
from tests.support.manifests import (
    EVERYTHING,
    FOLLOWED,
    NAME,
    OVERLAYS,
    SERVICES,
    Manifests,
    Workload,
    build,
    matches,
    overlay,
    with_components,
)
from tests.support.pages import blocks, section

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "components.md"
BUILT = (*OVERLAYS, EVERYTHING, FOLLOWED)
LONG_LIVED = ("Deployment", "StatefulSet")


@pytest.fixture(params=BUILT)
def built(request: pytest.FixtureRequest) -> Manifests:
    return build(request.param)


def test_containers_may_do_no_more_than_they_must(built: Manifests) -> None:
    for workload in built.workloads():
        pod = workload.pod["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] > 0
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(workload.pod)
        assert not any("hostPath" in volume for volume in workload.pod["volumes"])
        for container in workload.every_container:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, (workload.name, container["name"])


def test_who_is_given_a_secret_can_read_it(built: Manifests) -> None:
    """Files of a Secret are root's, and of the pod's group where it names one."""
    for workload in built.workloads():
        pod = workload.pod["securityContext"]
        for secret in (one["secret"] for one in workload.pod["volumes"] if "secret" in one):
            mode = secret.get("defaultMode", 0o644)
            assert mode & 0o004 or (mode & 0o040 and pod.get("fsGroup") == pod["runAsGroup"]), workload.name


def test_nobody_has_a_token_of_the_api_server(built: Manifests) -> None:
    for workload in built.workloads():
        assert workload.pod["automountServiceAccountToken"] is False
    for workload in built.workloads(*LONG_LIVED):
        account = built.one("ServiceAccount", workload.pod["serviceAccountName"])
        assert account["automountServiceAccountToken"] is False
        assert account["metadata"]["name"] == workload.name
    assert not built.of("RoleBinding") + built.of("ClusterRoleBinding")


def test_containers_say_what_they_need_and_what_they_may_take(built: Manifests) -> None:
    for workload in built.workloads():
        for container in workload.every_container:
            resources = container["resources"]
            assert {"cpu", "memory"} <= set(resources["requests"]), workload.name
            # No limit of the processor: it would slow down what nobody else wants to use.
            assert "memory" in resources["limits"]
            assert "cpu" not in resources["limits"]


def test_everything_written_lies_on_a_volume_with_a_bound(built: Manifests) -> None:
    of_sets = {
        f"{one['metadata']['name']}-{workload.name}-{number}"
        for workload in built.workloads("StatefulSet")
        for one in workload.document["spec"].get("volumeClaimTemplates", ())
        for number in range(workload.document["spec"].get("replicas", 1))
    }
    for workload in built.workloads():
        assert "/tmp" in {mount["mountPath"] for c in workload.containers for mount in c["volumeMounts"]} or (  # noqa: S108
            workload.name == "otel-collector"
        )
        claimed = {
            one["metadata"]["name"] for one in workload.document["spec"].get("volumeClaimTemplates", ())
        }
        volumes = {volume["name"] for volume in workload.pod["volumes"]} | claimed
        mounted = {mount["name"] for c in workload.every_container for mount in c["volumeMounts"]}
        assert mounted == volumes, workload.name
        for volume in workload.pod["volumes"]:
            if "emptyDir" in volume:
                assert "sizeLimit" in volume["emptyDir"], (workload.name, volume["name"])
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim is not None and claim not in of_sets:
                built.one("PersistentVolumeClaim", claim)
            if "configMap" in volume:
                built.one("ConfigMap", volume["configMap"]["name"])


def test_what_runs_on_is_looked_after(built: Manifests) -> None:
    for workload in built.workloads(*LONG_LIVED):
        for container in workload.containers:
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container), workload.name
            start = container["startupProbe"]
            assert start["periodSeconds"] * start["failureThreshold"] >= 300


def test_probes_ask_a_port_that_callers_do_not_have(built: Manifests) -> None:
    """Else who takes all connections of a service has it restarted. The kubelet speaks no TLS, and has no key."""
    for name in (*SERVICES, "retriever-replicas", "trainer"):
        for workload in (one for one in built.workloads() if one.name == name):
            (container,) = workload.containers
            port = workload.ports()["health"]
            assert container["startupProbe"]["grpc"] == {"port": port}
            assert container["readinessProbe"]["grpc"] == {"port": port}
            # Under this name a process says that it answers; overall, that it can work (Triton may be away).
            assert container["livenessProbe"]["grpc"] == {"port": port, "service": "live"}
            for service in built.of("Service"):
                assert port not in {one["port"] for one in service["spec"]["ports"]}


def test_a_renewed_authority_is_trusted_with_the_certificates_of_before() -> None:
    """It keeps its key; certificates of services change theirs."""
    certificates = {one["metadata"]["name"]: one["spec"] for one in build("prod").of("Certificate")}
    policies = {name: one["privateKey"].get("rotationPolicy") for name, one in certificates.items()}
    assert policies.pop("evenmesh-ca") == "Never"
    assert set(policies.values()) == {"Always"}


@pytest.mark.parametrize("name", ["orchestrator", "gateway"])
def test_callers_of_other_namespaces_find_the_name_that_they_call_in_the_certificate(name: str) -> None:
    built = build("prod")
    namespace = built.one("Service", name)["metadata"]["namespace"]
    called = {f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"}
    assert called < set(built.one("Certificate", name)["spec"]["dnsNames"])


def test_processes_that_lost_their_parent_are_reaped() -> None:
    """Where the gateway itself is the first process, each parser of an upload that was ended stays as a zombie."""
    workload = build("prod").workload("gateway")
    assert workload.pod["shareProcessNamespace"] is True
    assert len(workload.containers) == 1, "containers of a pod would see each other's processes"


def test_a_rollout_counts_as_failed_no_sooner_than_a_start_does(built: Manifests) -> None:
    """`kubectl rollout status` would give up before its own --timeout, and a start be taken for a failure."""
    for workload in built.workloads("Deployment"):
        probe = workload.containers[0]["startupProbe"]
        start_s = probe["periodSeconds"] * probe["failureThreshold"]
        fetches = workload.labels.get("evenmesh.io/fetches") == "models"
        deadline_s = workload.document["spec"].get("progressDeadlineSeconds", 600)
        assert deadline_s >= start_s + (1800 if fetches else 60), workload.name


@pytest.mark.parametrize("name", ["evaluator", "reranker", "trainer"])
def test_an_upgrade_of_a_database_has_an_hour(built: Manifests, name: str) -> None:
    """A pod that is ended within it begins again, and would be ended again."""
    for workload in (one for one in built.workloads() if one.name == name):
        probe = workload.containers[0]["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= 3600
        if workload.kind == "Deployment":
            assert workload.document["spec"]["progressDeadlineSeconds"] >= 3600


def test_pods_are_spread_and_may_be_moved(built: Manifests) -> None:
    for workload in built.workloads(*LONG_LIVED):
        spread = workload.pod["topologySpreadConstraints"]
        assert "kubernetes.io/hostname" in {one["topologyKey"] for one in spread}
        assert all(matches(one["labelSelector"], workload.labels) for one in spread)
        budget = built.one("PodDisruptionBudget", workload.name)["spec"]
        assert matches(budget["selector"], workload.labels)
        # One of one may go too: otherwise no node could be emptied.
        assert budget["maxUnavailable"] == 1


def test_selectors_take_the_pods_of_one_workload(built: Manifests) -> None:
    for workload in built.workloads(*LONG_LIVED):
        selector = workload.document["spec"]["selector"]
        assert [one.name for one in built.selected(selector)] == [workload.name]
        assert workload.labels[NAME] == workload.name
        assert workload.labels["app.kubernetes.io/part-of"] == "evenmesh"


def test_one_scaler_for_each_and_none_for_what_keeps_data(built: Manifests) -> None:
    scalers = [
        (one["spec"]["scaleTargetRef"]["kind"], one["spec"]["scaleTargetRef"]["name"], one)
        for one in (*built.of("HorizontalPodAutoscaler"), *built.of("ScaledObject"))
    ]
    assert len({(kind, name) for kind, name, _ in scalers}) == len(scalers)
    for kind, name, scaler in scalers:
        assert name in {"orchestrator", "generator", "gateway", "triton", "vllm", "tei-embed", "tei-rerank"}
        assert "replicas" not in built.one(kind, name)["spec"], "each would undo what the other does"
        reported = scaler["spec"]
        behavior = (
            reported.get("behavior") or reported["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        )
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= 300
    scaled = {name for _, name, _ in scalers}
    for workload in built.workloads(*LONG_LIVED):
        if workload.name not in scaled:
            # What keeps data of its own is one; what shares it, and read replicas, are two.
            several = (
                (workload.kind, workload.name) == ("Deployment", "evaluator")
                or (workload.name == "reranker" and "EVENMESH_RERANKER_MODEL_STORE" in str(workload.document))
                or workload.name == "retriever-replicas"
            )
            assert workload.document["spec"]["replicas"] == 1 + several


def test_a_gpu_is_asked_for_where_models_are_computed() -> None:
    def with_gpu(built: Manifests) -> list[str]:
        return [
            one.name
            for one in built.workloads(*LONG_LIVED)
            if "nvidia.com/gpu" in one.containers[0]["resources"]["limits"]
        ]

    assert with_gpu(build("dev")) == []
    assert with_gpu(build("prod")) == ["triton"]
    assert "nodeSelector" not in build("prod").workload("triton").pod, "a label that only some clusters have"


def test_kinds_of_gpus_are_chosen_as_the_page_shows() -> None:
    (block,) = blocks(section(PAGE.read_text(), "gpu"), "yaml")
    patches = yaml.safe_load(block)
    built = overlay(patches, "triton", "gpu", "training")
    assert set(built.workload("triton").pod["nodeSelector"]) == {"cloud.google.com/gke-accelerator"}
    assert set(built.workload("rankrag-training").pod["nodeSelector"]) == {"node.kubernetes.io/instance-type"}
    for workload in build(EVERYTHING).workloads():
        assert not {"nodeSelector", "affinity"} & set(workload.pod), "labels that only some clusters have"


def test_pods_with_a_gpu_go_where_gpus_are_and_wait_for_none_that_is_free(built: Manifests) -> None:
    for workload in built.workloads():
        if not any("nvidia.com/gpu" in one["resources"]["limits"] for one in workload.containers):
            continue
        assert [one["key"] for one in workload.pod["tolerations"]] == ["nvidia.com/gpu"], workload.name
        if workload.kind == "Deployment":
            strategy = workload.document["spec"]["strategy"]
            assert strategy == {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
            }


def test_scalers_ask_about_this_mesh_and_may_fall_back(built: Manifests) -> None:
    for scaler in built.of("ScaledObject"):
        assert "fallback" in scaler["spec"]
        for trigger in scaler["spec"]["triggers"]:
            assert trigger["metricType"] == "AverageValue", "KEDA falls back for no other"
            query = trigger["metadata"]["query"]
            named = re.findall(r"\b(?:evenmesh_|vllm:|te_)\w+(\{[^}]*\})?", query)
            assert named
            assert all(f'namespace="{scaler["metadata"]["namespace"]}"' in one for one in named)


@pytest.mark.parametrize("name", ["prod", EVERYTHING])
def test_what_serves_displaces_jobs_and_never_the_other_way_round(name: str) -> None:
    built = build(name)
    classes = {one["metadata"]["name"]: one for one in built.of("PriorityClass")}
    assert not any(one.get("globalDefault") for one in classes.values()), "others' pods are none of ours"
    serving, jobs = classes["evenmesh-serving"], classes["evenmesh-jobs"]
    assert serving["value"] > 0 > jobs["value"]
    assert jobs["value"] >= -10, "the cluster autoscaler makes no node for less"
    assert jobs["preemptionPolicy"] == "Never"
    for workload in built.workloads():
        serves = workload.kind in LONG_LIVED and workload.name != "trainer"
        wanted = serving if serves else jobs
        assert workload.pod["priorityClassName"] == wanted["metadata"]["name"], workload.name


def test_what_is_applied_again_changes_no_job_and_starts_none(built: Manifests) -> None:
    """Kubernetes forbids to change a Job's template; `kubectl create job --from` makes each run a name."""
    assert not built.workloads("Job")
    for workload in built.workloads("CronJob"):
        spec = workload.document["spec"]
        if workload.name == "sources":
            continue
        assert spec["suspend"] is True, workload.name
        labels = spec["jobTemplate"]["metadata"]["labels"]
        assert labels[NAME] == workload.name, "by which runs are found"
        assert spec["successfulJobsHistoryLimit"] == spec["failedJobsHistoryLimit"] == 10
    if built is build(EVERYTHING):
        runs = {one.name for one in built.workloads("CronJob")}
        assert runs == {"audit", "bench", "ium-training", "rankrag-training", "sources"}


def test_finished_jobs_are_removed(built: Manifests) -> None:
    for workload in built.workloads("CronJob"):
        spec = workload.document["spec"]
        made = spec["jobTemplate"]["spec"]
        kept = spec["successfulJobsHistoryLimit"] + spec["failedJobsHistoryLimit"]
        assert made.get("ttlSecondsAfterFinished") == 7 * 24 * 3600 or kept <= 4, workload.name


def before_the_end(workload: Workload) -> int:
    """Seconds that a pod which ends still serves, so that its callers learn of it."""
    (container,) = workload.containers
    return int(container["lifecycle"]["preStop"]["sleep"]["seconds"])


@pytest.mark.parametrize("name", [*SERVICES, "triton"])
def test_callers_learn_that_a_pod_goes_before_it_refuses(name: str) -> None:
    assert before_the_end(build(EVERYTHING).workload(name)) >= 5


@pytest.mark.parametrize(
    ("components", "named"),
    [(["gpu"], ["generator"]), (["triton", "gpu"], ["triton"]), (["gpu-ranking"], ["reranker", "retriever"])],
)
def test_what_is_given_a_gpu_refuses_to_do_without(components: list[str], named: list[str]) -> None:
    """Each has the image with CUDA, a place on a node with a GPU, and says so when CUDA cannot start."""
    built = with_components(*components)
    asking = [
        one
        for one in built.workloads(*LONG_LIVED)
        if "nvidia.com/gpu" in one.containers[0]["resources"]["limits"]
    ]
    assert sorted(one.name for one in asking) == named
    for one in asking:
        assert [toleration["key"] for toleration in one.pod["tolerations"]] == ["nvidia.com/gpu"]
        if one.name == "triton":
            continue
        assert one.containers[0]["image"] == f"evenmesh-{one.name}-cuda"
        assert one.environment()[f"EVENMESH_{one.name.upper()}_REQUIRE_GPU"] == "true"
    if "triton" in components:
        assert "EVENMESH_GENERATOR_REQUIRE_GPU" not in built.workload("generator").environment()


def test_conversions_have_a_volume_of_their_own() -> None:
    """The cache of CTranslate2 is not in the gigabyte under /tmp, and not in the pod's ephemeral storage."""
    generator = with_components("ctranslate2").workload("generator")
    home = generator.environment()["EVENMESH_GENERATOR_CTRANSLATE2_HOME"]
    (mounted,) = [one["name"] for one in generator.containers[0]["volumeMounts"] if one["mountPath"] == home]
    (volume,) = [one for one in generator.pod["volumes"] if one["name"] == mounted]
    assert "storage" in volume["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"]["requests"]


def grace(workload: Workload) -> tuple[Any, Any]:
    return workload.pod["terminationGracePeriodSeconds"], workload.environment()


@pytest.mark.parametrize("name", SERVICES)
def test_running_calls_end_before_the_pod_does(built: Manifests, name: str) -> None:
    seconds, environment = grace(built.workload(name))
    ends = before_the_end(built.workload(name)) + float(environment[f"EVENMESH_{name.upper()}_GRACE_S"])
    assert seconds >= ends + 10


def test_an_orchestrator_delivers_its_outbox_before_it_ends_and_keeps_the_rest(built: Manifests) -> None:
    """A pod that is scaled away may never be back."""
    workload = built.workload("orchestrator")
    seconds, environment = grace(workload)
    drain_s = float(environment["EVENMESH_ORCHESTRATOR_OUTBOX_DRAIN_S"])
    assert drain_s >= 30, "an evaluator that is replaced is back in that time"
    ends = before_the_end(workload) + float(environment["EVENMESH_ORCHESTRATOR_GRACE_S"]) + drain_s
    assert seconds >= ends + 10
    kept = workload.document["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert kept == {"whenDeleted": "Retain", "whenScaled": "Retain"}, "what stays is found by the next pod"


@pytest.mark.parametrize("name", SERVICES)
def test_no_stream_is_cut_because_its_connection_is_old(built: Manifests, name: str) -> None:
    environment = built.workload(name).environment()
    age = float(environment[f"EVENMESH_{name.upper()}_MAX_CONNECTION_AGE_S"])
    left = float(environment[f"EVENMESH_{name.upper()}_MAX_CONNECTION_AGE_GRACE_S"])
    settings = OrchestratorSettings()
    longest = settings.conversation_turns * settings.turn_timeout_s
    assert left > longest, variable(settings, "conversation_turns")
    assert age <= 60


def test_asks_come_in_by_the_gateway() -> None:
    route = build("prod").one("GRPCRoute", "orchestrator")["spec"]
    (rule,) = route["rules"]
    (match,) = rule["matches"]
    services = orchestrator_service_pb2.DESCRIPTOR.services_by_name.values()
    assert match["method"]["service"] in {service.full_name for service in services}
    (backend,) = rule["backendRefs"]
    service = build("prod").one("Service", backend["name"])
    assert service["spec"]["ports"][0]["port"] == backend["port"]
    assert [one.name for one in build("prod").selected({"matchLabels": service["spec"]["selector"]})] == [
        "orchestrator"
    ]
    policy = build("prod").one("BackendTLSPolicy", "orchestrator")["spec"]
    assert policy["targetRefs"][0]["name"] == backend["name"]
    assert (
        policy["validation"]["hostname"]
        in build("prod").one("Certificate", "orchestrator")["spec"]["dnsNames"]
    )


def test_requests_over_http_come_in_by_it_too() -> None:
    built = build("prod")
    route = built.one("HTTPRoute", "gateway")["spec"]
    assert not set(route["hostnames"]) & set(built.one("GRPCRoute", "orchestrator")["spec"]["hostnames"])
    (rule,) = route["rules"]
    (backend,) = rule["backendRefs"]
    service = built.one("Service", backend["name"])["spec"]
    assert service["ports"][0]["port"] == backend["port"]
    assert [one.name for one in built.selected({"matchLabels": service["selector"]})] == ["gateway"]
    policy = built.one("BackendTLSPolicy", "gateway")["spec"]
    assert policy["targetRefs"][0]["name"] == backend["name"]
    assert policy["validation"]["hostname"] in built.one("Certificate", "gateway")["spec"]["dnsNames"]


def test_nothing_has_an_address_outside_the_cluster(built: Manifests) -> None:
    for service in built.of("Service"):
        assert service["spec"].get("type", "ClusterIP") == "ClusterIP"
    assert not built.of("Ingress")


def test_namespaces_take_no_other_pods() -> None:
    for name in OVERLAYS:
        namespace = build(name).one("Namespace", "evenmesh")
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"

"""Kubernetes manifests as `kubectl kustomize` gives them, and what a test asks of them."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.programs import required

K8S: Final = Path(__file__).parents[2] / "k8s"
OVERLAYS: Final = ("dev", "prod")
EVERYTHING: Final = "everything"
"""All components over the base, in the order that the overlays and their comments ask for."""
ORDER: Final = (
    "postgres",
    "evaluator-replicas",
    "reranker-replicas",
    "trainer",
    "statements",
    "milvus",
    "triton",
    "vllm",
    "tei",
    "gpu",
    "gpu-ranking",
    "gpu-tei",
    "models",
    "ctranslate2",
    "http",
    "limits",
    "otel",
    "otel-tls",
    "monitoring",
    "probe",
    "gateway",
    "http-route",
    "training",
    "audit",
    "bench",
    "sources",
    "autoscaling",
    "triton-autoscaling",
    "vllm-autoscaling",
    "tei-autoscaling",
    "priority",
    "mtls",
    "otel-mtls",
    "network-policy",
)
FOLLOWED: Final = "everything with replicas of the retriever"
"""The same with replicas that follow a retriever instead of Milvus, which do not go together."""
INSTEAD: Final = {"milvus": "retriever-replicas"}
"""Components of ``EVERYTHING``, and those that take their place in ``FOLLOWED``."""
SERVICES: Final = ("orchestrator", "retriever", "reranker", "generator", "evaluator")
NAME: Final = "app.kubernetes.io/name"

Document = dict[str, Any]

SECRETS: Final = {
    ("evenmesh-postgres", "orchestrator-url"): "postgresql://evenmesh:PW@postgres:5432/orchestrator",
    ("evenmesh-postgres", "evaluator-url"): "postgresql://evenmesh:PW@postgres:5432/evaluator",
    ("evenmesh-postgres", "reranker-url"): "postgresql://evenmesh:PW@postgres:5432/reranker",
    ("evenmesh-client", "api-key"): "KEY",
    ("evenmesh-models", "HF_TOKEN"): "TOKEN",
}
"""What the Secrets that a user makes would hold; the page and the components say how they are made."""


@dataclass(frozen=True)
class Workload:
    """A Deployment, StatefulSet, Job or CronJob.

    Attributes:
        document: all of it.
        variables: the environment of each of its containers, init containers among them.
    """

    document: Document
    variables: Mapping[str, Mapping[str, str]]

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.document["metadata"]["name"])

    @property
    def kind(self) -> str:
        """Its kind."""
        return str(self.document["kind"])

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of its pods."""
        return dict(_template(self.document)["metadata"]["labels"])

    @property
    def pod(self) -> Document:
        """The specification of its pods."""
        found: Document = _template(self.document)["spec"]
        return found

    @property
    def containers(self) -> list[Document]:
        """Containers that run as long as the pod does."""
        return list(self.pod["containers"])

    @property
    def every_container(self) -> list[Document]:
        """Init containers too."""
        return [*self.pod.get("initContainers", ()), *self.pod["containers"]]

    def ports(self) -> dict[str, int]:
        """Ports of its pods by name."""
        return {
            port["name"]: port["containerPort"]
            for container in self.containers
            for port in container.get("ports", ())
        }

    def environment(self) -> dict[str, str]:
        """Of its only container."""
        (container,) = self.containers
        return dict(self.variables[container["name"]])


def cron_pod(file: Path) -> Document:
    """The specification of the pods of a file's CronJob."""
    (job,) = yaml.safe_load_all(file.read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    found: Document = _template(job)["spec"]
    return found


@dataclass(frozen=True)
class Manifests:
    """All that one kustomization comes to."""

    documents: tuple[Document, ...]

    def of(self, kind: str) -> list[Document]:
        """The documents of a kind."""
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str, name: str) -> Document:
        """The document of this kind and name."""
        (found,) = (one for one in self.of(kind) if one["metadata"]["name"] == name)
        return found

    def workloads(self, *kinds: str) -> list[Workload]:
        """What has pods."""
        kinds = kinds or ("Deployment", "StatefulSet", "Job", "CronJob")
        return [
            Workload(document, {one["name"]: self._variables(one) for one in _containers(document)})
            for kind in kinds
            for document in self.of(kind)
        ]

    def workload(self, name: str) -> Workload:
        """The one of this name."""
        (found,) = (one for one in self.workloads() if one.name == name)
        return found

    def selected(self, selector: Document) -> list[Workload]:
        """Workloads whose pods a label selector takes."""
        return [one for one in self.workloads() if matches(selector, one.labels)]

    def _variables(self, container: Document) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            if "secretRef" in source:
                found |= {
                    key: value
                    for (name, key), value in SECRETS.items()
                    if name == source["secretRef"]["name"]
                }
                continue
            found |= self.one("ConfigMap", source["configMapRef"]["name"])["data"]
        for variable in container.get("env", ()):
            if "value" in variable:
                found[variable["name"]] = variable["value"]
            elif "configMapKeyRef" in variable["valueFrom"]:
                named = variable["valueFrom"]["configMapKeyRef"]
                data = self.one("ConfigMap", named["name"])["data"]
                if named["key"] in data or not named.get("optional"):
                    found[variable["name"]] = data[named["key"]]
            else:
                secret = variable["valueFrom"]["secretKeyRef"]
                found[variable["name"]] = SECRETS[secret["name"], secret["key"]]
        return found


def matches(selector: Document, labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes what has these labels."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for expression in selector.get("matchExpressions", ()):
        if expression["operator"] != "In":
            raise NotImplementedError(expression["operator"])
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True


def addresses(value: str) -> Iterator[tuple[str, int]]:
    """Hosts and ports that a variable's value names: of targets, URLs and ``host:port``."""
    for host, port in re.findall(r"(?:^|[/@])([a-z0-9][a-z0-9.-]*):(\d{2,5})(?=$|/)", value):
        yield host, int(port)


def _template(document: Document) -> Document:
    """The template of its pods."""
    spec = document["spec"]["jobTemplate"]["spec"] if document["kind"] == "CronJob" else document["spec"]
    found: Document = spec["template"]
    return found


def _containers(document: Document) -> list[Document]:
    pod = _template(document)["spec"]
    return [*pod.get("initContainers", ()), *pod["containers"]]


@functools.cache
def build(name: str) -> Manifests:
    """What a kustomization comes to: ``base``, an overlay's name, or ``everything``; skips without kubectl."""
    if name == EVERYTHING:
        return with_components(*ORDER)
    if name == FOLLOWED:
        return with_components(*(INSTEAD.get(one, one) for one in ORDER))
    required("kubectl")
    return _built(K8S / "base" if name == "base" else K8S / "overlays" / name)


@functools.cache
def with_components(*names: str) -> Manifests:
    """What the base and some components come to; skips without kubectl."""
    return overlay({}, *names)


def overlay(further: Mapping[str, Any], *names: str) -> Manifests:
    """What an overlay of the base, some components and further fields comes to; skips without kubectl."""
    required("kubectl")
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder).resolve()
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": "evenmesh",
            "resources": [os.path.relpath(K8S / "base", at)],
            "components": [os.path.relpath(K8S / "components" / one, at) for one in names],
            **further,
        }
        (at / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return _built(at)


def _built(folder: Path) -> Manifests:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # deprecated fields are reported there
    documents = [one for one in yaml.safe_load_all(done.stdout) if one]
    return Manifests(tuple(documents))

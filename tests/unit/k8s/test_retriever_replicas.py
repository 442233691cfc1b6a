"""Replicas of the retriever read what the one that writes keeps, and cannot write it."""

from __future__ import annotations

import os

import pytest

from evenmesh_kit.settings import load
from evenmesh_retriever.settings import RetrieverSettings
from tests.support.manifests import FOLLOWED, Workload, build


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [one for one in os.environ if one.startswith("EVENMESH_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def settings(workload: Workload, environment: pytest.MonkeyPatch) -> RetrieverSettings:
    with environment.context() as patch:
        for name, value in workload.environment().items():
            patch.setenv(name, value)
        return load(RetrieverSettings)


def test_they_mount_the_volume_of_the_writer_and_may_only_read_it(environment: pytest.MonkeyPatch) -> None:
    writer, replicas = (build(FOLLOWED).workload(name) for name in ("retriever", "retriever-replicas"))
    (claim,) = writer.document["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert writer.document["spec"]["replicas"] == 1
    of_writer, of_replicas = settings(writer, environment), settings(replicas, environment)
    (container,) = replicas.containers
    (mount,) = [one for one in container["volumeMounts"] if one["mountPath"] == str(of_replicas.follow)]
    assert mount["readOnly"] is True
    (volume,) = [one for one in replicas.pod["volumes"] if one["name"] == mount["name"]]
    assert volume["persistentVolumeClaim"] == {
        "claimName": f"{claim['metadata']['name']}-{writer.name}-0",
        "readOnly": True,
    }
    # What it follows is what the writer's home is mounted from.
    (home,) = [one for one in writer.containers[0]["volumeMounts"] if one["name"] == "home"]
    assert home["mountPath"] == str(of_writer.home)
    assert of_writer.follow is None
    assert of_replicas.home != of_replicas.follow


def test_they_are_set_as_the_writer_is_so_that_they_give_its_replies(environment: pytest.MonkeyPatch) -> None:
    writer, replicas = (build(FOLLOWED).workload(name) for name in ("retriever", "retriever-replicas"))
    given = replicas.environment()
    assert given.pop("EVENMESH_RETRIEVER_FOLLOW")
    assert given == writer.environment()
    reported = settings(replicas, environment)
    # Files stay for longer than a replica takes to let go of them.
    assert reported.keep_s / 2 > 10 * reported.follow_look_s
    assert reported.keep_s / 2 > reported.follow_stale_s
    models = [one for one in replicas.containers[0]["volumeMounts"] if one["name"] == "models"]
    assert models == [one for one in writer.containers[0]["volumeMounts"] if one["name"] == "models"]


def test_pods_run_as_the_user_who_may_read_the_files() -> None:
    writer, replicas = (build(FOLLOWED).workload(name) for name in ("retriever", "retriever-replicas"))
    assert replicas.pod["securityContext"] == writer.pod["securityContext"]


def test_their_certificate_has_their_name() -> None:
    names = build(FOLLOWED).one("Certificate", "retriever")["spec"]["dnsNames"]
    assert {"retriever", "retriever-replicas"} <= set(names)
    (volume,) = [
        one for one in build(FOLLOWED).workload("retriever-replicas").pod["volumes"] if one["name"] == "tls"
    ]
    assert volume["secret"]["secretName"] == "retriever-tls"

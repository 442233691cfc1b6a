"""Every overlay can be built, and is what the API servers of three Kubernetes versions accept."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from tests.support.manifests import EVERYTHING, FOLLOWED, INSTEAD, K8S, ORDER, OVERLAYS, Manifests, build

BUILT = ("base", *OVERLAYS, EVERYTHING, FOLLOWED)
MINORS = ("1.33", "1.34", "1.35")
CUSTOM = {
    "keda.sh/v1alpha1",
    "cert-manager.io/v1",
    "gateway.networking.k8s.io/v1",
    "monitoring.coreos.com/v1",
}
"""APIs that Kubernetes has not by itself; crds/ has the fields we use, and no others pass."""


@pytest.fixture(params=BUILT)
def built(request: pytest.FixtureRequest) -> Manifests:
    return build(request.param)


def schema(document: dict[str, Any]) -> dict[str, Any]:
    path = Path(__file__).with_name("crds") / f"{document['kind'].lower()}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_everything_is_all_components() -> None:
    assert {*ORDER, *INSTEAD.values()} == {
        path.parent.name for path in (K8S / "components").glob("*/kustomization.yaml")
    }


def test_every_file_is_used() -> None:
    for path in K8S.rglob("kustomization.yaml"):
        folder, reported = path.parent, yaml.safe_load(path.read_text(encoding="utf-8"))
        named = {*reported.get("resources", ()), *(one["path"] for one in reported.get("patches", ()))}
        for generator in reported.get("configMapGenerator", ()):
            named |= {*generator.get("envs", ()), *generator.get("files", ())}
        there = {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}
        # Rules are in an object of the operator, which a test of tests/unit/operations holds against them.
        if folder.name == "monitoring":
            there -= {str(one.relative_to(folder)) for one in (folder / "rules").iterdir()}
        here = {name for name in named if not name.startswith("../")}
        assert there == {"kustomization.yaml", *here}, folder


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """The schemas of a version are megabytes, and read again for every document."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        yield


@pytest.mark.parametrize("minor", MINORS)
def test_kubernetes_accepts_it(built: Manifests, minor: str) -> None:
    for document in built.documents:
        if document["apiVersion"] not in CUSTOM:
            assert kubernetes_validate.validate(document, minor, strict=True) == minor


def test_a_field_that_is_not_there_is_found() -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "a"},
        "spec": {"clusterip": "None"},
    }
    with pytest.raises(kubernetes_validate.ValidationError, match="clusterip"):
        kubernetes_validate.validate(service, MINORS[0], strict=True)


def test_the_other_apis_accept_it(built: Manifests) -> None:
    for document in built.documents:
        if document["apiVersion"] in CUSTOM:
            jsonschema.Draft202012Validator(schema(document)).validate(document)


def test_all_other_apis_are_used_and_have_a_schema() -> None:
    documents = [one for name in BUILT for one in build(name).documents if one["apiVersion"] in CUSTOM]
    assert {one["apiVersion"] for one in documents} == CUSTOM
    written = {path.stem for path in Path(__file__).with_name("crds").iterdir()}
    assert {one["kind"].lower() for one in documents} == written


def test_names_are_there_once(built: Manifests) -> None:
    names = [(one["apiVersion"], one["kind"], one["metadata"]["name"]) for one in built.documents]
    assert len(names) == len(set(names))

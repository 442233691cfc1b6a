"""The CronJob of sources: it asks for what the command line has, and may do no more than it must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from evenmesh.addresses import VARIABLES
from evenmesh_documents.limits import Limits
from evenmesh_documents.source_commands import sources
from evenmesh_documents.syncing.source_file import load
from tests.support.manifests import EVERYTHING, build, overlay
from tests.support.pages import blocks, section

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "components.md"
FOLDER = Path(__file__).parents[3] / "k8s" / "components" / "sources"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    made = yaml.safe_load((FOLDER / "cronjob.yaml").read_text(encoding="utf-8"))
    assert (made["apiVersion"], made["kind"]) == ("batch/v1", "CronJob")
    found: dict[str, Any] = made["spec"]
    return found


@pytest.fixture(scope="module")
def pod(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["jobTemplate"]["spec"]["template"]["spec"]
    return found


def parsed(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    assert container["command"] == ["evenmesh"]
    group, name, *words = container["args"]
    assert (group, name) == ("sources", "sync")
    command = typer.main.get_command(sources()).commands["sync"]  # type: ignore[attr-defined]
    given: dict[str, Any] = command.make_context("sync", list(words)).params
    return given


def test_the_command_is_one_of_the_command_line_and_ends(pod: dict[str, Any]) -> None:
    given = parsed(pod)
    assert (given["watch"], given["dry_run"], given["allow_empty"], given["as_json"]) == (
        None,
        False,
        False,
        True,
    )
    mounted = {one["mountPath"] for one in pod["containers"][0]["volumeMounts"] if one.get("readOnly")}
    assert mounted == {str(given["file"].parent), "/data"}


def test_the_sources_that_it_brings_can_be_read_and_are_on_its_volume() -> None:
    (one,) = load(FOLDER / "sources.yaml").values()
    assert one.paths == ("/data",)
    # What counts does not follow from what an image has.
    assert one.passages.tokenizer == "words"


def test_sources_of_ones_own_take_their_place_as_the_page_shows(tmp_path: Path) -> None:
    (block,) = blocks(section(PAGE.read_text(), "sources"), "yaml")
    (made,) = [
        one
        for one in overlay(yaml.safe_load(block), "sources").of("ConfigMap")
        if "sources.yaml" in one["data"]
    ]
    file = tmp_path / "sources.yaml"
    file.write_text(made["data"]["sources.yaml"])
    (one,) = load(file).values()
    assert one.paths == ("/data/handbooks",)


def test_its_parsers_fit_into_its_memory(pod: dict[str, Any]) -> None:
    limit = pod["containers"][0]["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("Gi")) << 30 > parsed(pod)["jobs"] * Limits().memory_bytes


def test_one_sync_runs_at_a_time(job: dict[str, Any]) -> None:
    assert job["concurrencyPolicy"] == "Forbid"
    # One that hangs ends, or no other would begin.
    assert job["jobTemplate"]["spec"]["activeDeadlineSeconds"] <= 6 * 3600


def test_it_knows_where_the_retriever_is_and_nobody_else(pod: dict[str, Any]) -> None:
    named = {one["name"] for one in pod["containers"][0]["env"]}
    assert named & set(VARIABLES.values()) == {VARIABLES["retriever"]}


def test_in_a_guarded_mesh_it_shows_a_certificate_and_a_key() -> None:
    environment = build(EVERYTHING).workload("sources").environment()
    assert environment["EVENMESH_API_KEY"] == "KEY"
    assert environment["EVENMESH_TLS_CERT"].startswith("/etc/evenmesh/tls/")

"""The Job of offline IUM: it asks for what the command line has, and writes its output alone."""

from pathlib import Path
from typing import Any

import pytest
import typer

from evenmesh.addresses import VARIABLES
from evenmesh_training.commands.train import train
from evenmesh_training.ium import recipe
from tests.support.manifests import K8S, cron_pod


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    return cron_pod(K8S / "components/training/ium-cronjob.yaml")


def test_the_command_is_one_of_the_command_line(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert container["command"] == ["evenmesh"]
    group, name, *words = container["args"]
    assert (group, name) == ("train", "ium")
    command = typer.main.get_command(train()).commands["ium"]  # type: ignore[attr-defined]
    parsed = command.make_context("ium", list(words)).params
    assert recipe.load(parsed["recipe"]).rounds == 3
    assert str(parsed["output"]).startswith("/output/")
    assert parsed["agents"] == Path("/data/AGENTS.toml")


def test_it_knows_where_the_mesh_is(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    reported = {one["name"] for one in container["env"]}
    assert {VARIABLES["retriever"], VARIABLES["generator"]} <= reported


def test_it_writes_its_output_and_no_data(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    written = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
    assert written == {"/output", "/tmp"}  # noqa: S108 - an empty volume of the container

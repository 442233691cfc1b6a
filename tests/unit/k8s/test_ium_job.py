"""The Job of offline IUM: it asks for what the command line has, and may do no more than it must."""

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from evenmesh.addresses import VARIABLES
from evenmesh_training.commands.train import train
from evenmesh_training.ium import recipe

FOLDER = Path(__file__).parents[3] / "k8s" / "components" / "training"


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    job = yaml.safe_load((FOLDER / "ium-cronjob.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    found: dict[str, Any] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return found


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


def test_it_may_do_no_more_than_it_must(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    written = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
    assert written == {"/output", "/tmp"}  # noqa: S108 - an empty volume of the container

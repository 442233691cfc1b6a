"""The Job of a load test: it asks for what the command line has."""

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from evenmesh.addresses import VARIABLES
from evenmesh_studies.commands.load import bench

FOLDER = Path(__file__).parents[3] / "k8s" / "components" / "bench"


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    job = yaml.safe_load((FOLDER / "cronjob.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    found: dict[str, Any] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return found


def test_the_command_is_one_of_the_command_line(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert container["command"] == ["evenmesh"]
    group, name, *words = container["args"]
    assert (group, name) == ("bench", "ramp")
    command = typer.main.get_command(bench()).commands["ramp"]  # type: ignore[attr-defined]
    parsed = command.make_context("ramp", list(words)).params
    assert parsed["operation"] == "ask"
    assert str(parsed["out"]).startswith("/output/")
    # A core for each process.
    assert container["resources"]["requests"]["cpu"] == str(parsed["processes"])


def test_it_knows_where_the_services_are_that_it_may_call(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    reported = {one["name"] for one in container["env"]}
    assert {VARIABLES[name] for name in ("orchestrator", "retriever", "reranker", "generator")} <= reported

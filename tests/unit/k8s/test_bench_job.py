"""The Job of a load test: it asks for what the command line has."""

from typing import Any

import pytest
import typer

from evenmesh.addresses import VARIABLES
from evenmesh_studies.commands.load import bench
from tests.support.manifests import K8S, cron_pod


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    return cron_pod(K8S / "components/bench/cronjob.yaml")


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

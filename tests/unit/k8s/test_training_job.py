"""The Job that trains: it asks for what the command line has, and can go on."""

import shlex
from typing import Any

import pytest
import typer
import yaml
from torch.distributed.run import get_args_parser

from evenmesh_training.commands.train import train
from evenmesh_training.rankrag import checkpoints, recipe
from tests.support.manifests import K8S, cron_pod

FOLDER = K8S / "components" / "training"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    return cron_pod(FOLDER / "rankrag-cronjob.yaml")


@pytest.fixture(scope="module")
def script(pod: dict[str, Any]) -> str:
    (container,) = pod["containers"]
    assert container["command"] == ["sh", "-ec"]
    (text,) = container["args"]
    return str(text)


def test_the_component_lists_what_is_there() -> None:
    (component,) = documents("kustomization.yaml")
    assert component["kind"] == "Component"
    assert {*component["resources"], "kustomization.yaml"} == {path.name for path in FOLDER.iterdir()}


def test_the_commands_are_the_command_lines(script: str) -> None:
    words = shlex.split(script.replace("$(", " ").replace(")", " "))
    at = words.index("evenmesh")
    launched = words[words.index("torchrun") + 1 : at]
    options = get_args_parser().parse_args([*launched, "evenmesh"])
    assert (options.standalone, options.nproc_per_node, options.no_python) == (True, "gpu", True)
    assert words[at + 1 : at + 3] == ["train", "rankrag"]
    command = typer.main.get_command(train()).commands["rankrag"]  # type: ignore[attr-defined]
    known = {name for parameter in command.params for name in parameter.opts}
    used = [word for word in words[at + 3 :] if word.startswith("--")]
    assert set(used) <= known
    assert {"--recipe", "--model", "--data", "--output", "--resume"} <= set(used)
    given = dict(zip(words[at + 3 :], words[at + 4 :], strict=False))
    assert recipe.load(given["--recipe"]).stage(int(given["--stage"])).steps > 0
    assert f"{given['--output']}/{checkpoints.NAME}" in words


def test_it_has_a_gpu(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] >= 1


def test_what_is_mounted_is_claimed(pod: dict[str, Any], script: str) -> None:
    claims = {one["metadata"]["name"] for one in documents("volumes.yaml")}
    volumes = {one["name"]: one for one in pod["volumes"]}
    (container,) = pod["containers"]
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert {one["name"] for one in mounts.values()} == set(volumes)
    used = {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v}
    assert used == claims
    assert mounts["/data"]["readOnly"] is True
    # the root is read-only: all that is written lies on a volume
    assert {"/output", "/tmp", "/dev/shm"} <= set(mounts)  # noqa: S108 - paths in the container
    assert "/output/run" in script

"""What the Dockerfile installs for each service, and services run with that and nothing else."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from packaging.requirements import Requirement
from platformdirs import user_cache_path

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator_grpc
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb2
from evenmesh.generator.v1 import generator_service_pb2_grpc as generator_grpc
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as orchestrator_grpc
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb2
from evenmesh.reranker.v1 import reranker_service_pb2_grpc as reranker_grpc
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb2
from evenmesh.retriever.v1 import retriever_service_pb2_grpc as retriever_grpc

ROOT: Final = Path(__file__).parents[2]
DOCKERFILE: Final = (ROOT / "Dockerfile").read_text(encoding="utf-8")
INSTALL: Final = (ROOT / "k8s" / "image" / "install.sh").read_text(encoding="utf-8")

_START_S: Final = 240
_CASE: Final = re.compile(r'^  (\w+)\) rooms="([^"]+)" extras=(\S+) port=(\d+) ;;$', re.MULTILINE)
_PASSAGES: Final = [
    Passage(id="a", text="A worn chain is replaced together with its sprockets."),
    Passage(id="b", text="Brake pads are replaced when the grooves are gone."),
]


PROJECTS: Final[dict[str, dict[str, Any]]] = {
    project["name"]: project | {"folder": path.parent.relative_to(ROOT).as_posix()}
    for path in sorted([*ROOT.glob("*/pyproject.toml"), *ROOT.glob("*/*/pyproject.toml")])
    for project in [tomllib.loads(path.read_text(encoding="utf-8"))["project"]]
}
"""The distributions of this repository, by name: the ``project`` table of each, and its folder."""


@dataclass(frozen=True)
class Image:
    """What `k8s/image/install.sh` says of one value of SERVICE.

    Attributes:
        name: the value.
        rooms: folders that are installed, the one that the image is for last.
        extras: extras of the last.
        port: where it listens; 0 for what does not.
    """

    name: str
    rooms: tuple[str, ...]
    extras: tuple[str, ...]
    port: int

    @property
    def distribution(self) -> str:
        """The distribution that the image is for."""
        return next(name for name, one in PROJECTS.items() if one["folder"] == self.rooms[-1])

    @property
    def program(self) -> str:
        """What ``python -m`` runs; ``evenmesh`` where nothing is served."""
        return f"evenmesh_{self.name}" if self.port else "evenmesh"


IMAGES: Final = {
    name: Image(name, tuple(rooms.split()), tuple(extras.split(",")), int(port))
    for name, rooms, extras, port in _CASE.findall(INSTALL)
}


def closure(distribution: str, extras: Iterable[str] = ()) -> set[str]:
    """Distributions that ``pip install distribution[extras]`` brings here, by normalised name.

    Our own requirements are read from pyproject.toml (the metadata of an editable installation is that of
    when it was installed), all others from the metadata of what is installed.
    """
    found: set[str] = set()
    left = [(distribution, frozenset(extras))]
    seen: set[tuple[str, str]] = set()
    while left:
        name, wanted = left.pop()
        found.add(name)
        for extra in ("", *wanted):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in _requirements(name, extra):
                requirement = Requirement(text)
                if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                    left.append((_normal(requirement.name), frozenset(requirement.extras)))
    return found


@cache
def _requirements(name: str, extra: str) -> list[str]:
    if name in PROJECTS:
        project = PROJECTS[name]
        required: list[str] = project["optional-dependencies"][extra] if extra else project["dependencies"]
        return required
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []  # for another platform or Python, whose markers a requirement did not carry


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def hidden_from(image: Image, extras: Iterable[str]) -> list[str]:
    """Modules that the image with these extras does not have: those of other distributions."""
    there = closure(image.distribution, extras)
    modules = {**_installed()}
    modules |= {name.replace("-", "_"): [name] for name in PROJECTS}  # editable: their files are not listed
    return [module for module, names in modules.items() if not {_normal(one) for one in names} & there]


@cache
def _installed() -> Mapping[str, list[str]]:
    """Distributions by the modules that they bring: all of their metadata, which takes a while to read."""
    return importlib.metadata.packages_distributions()


_ONLY: Final = """
import json, re, runpy, sys
hidden, there = map(set, json.loads(sys.argv[1]))
class Hiding:
    # As if they were not there: those who look before they import find neither module nor metadata.
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name in hidden else self.finder.find_spec(name, path, target)
    def find_distributions(self, *context):
        for one in getattr(self.finder, "find_distributions", lambda *_: ())(*context):
            if re.sub(r"[-_.]+", "-", one.name).lower() in there:
                yield one
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def command(image: Image, extras: Iterable[str], *, without: Iterable[str] = ()) -> list[str]:
    """Runs the image's service with this Python as if its distribution with these extras alone were installed.

    Args:
        image: whose service.
        extras: what is there.
        without: modules that are not there all the same.
    """
    extras = list(extras)
    reported = [[*hidden_from(image, extras), *without], sorted(closure(image.distribution, extras))]
    return [sys.executable, "-c", _ONLY, json.dumps(reported), image.program]


@contextmanager
def running(
    image: Image,
    reported: list[str],
    folder: Path,
    *,
    cwd: Path = ROOT,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """The service, started by a command, in a folder of its own; yields its address once it serves.

    Args:
        settings: further variables of its environment.

    Raises:
        AssertionError: it does not; with what it wrote.
    """
    prefix = f"EVENMESH_{image.name.upper()}_"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENMESH_")}
    environment |= {
        "EVENMESH_HOME": str(folder / "home"),
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(user_cache_path()),  # converts models for OpenVINO once on each machine
        "OMP_NUM_THREADS": "1",
        f"{prefix}PORT": "0",
        f"{prefix}PORT_FILE": str(folder / "port"),
        f"{prefix}GRACE_S": "1",
    }
    # Nobody is at these; asks end with UNAVAILABLE.
    environment |= {
        f"EVENMESH_ORCHESTRATOR_{name}_TARGET": "dns:///127.0.0.1:1"
        for name in ("RETRIEVER", "RERANKER", "GENERATOR", "EVALUATOR")
    }
    environment |= settings
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(reported, cwd=cwd, env=environment, stdout=output, stderr=output)
    try:
        with grpc.insecure_channel(_address(process, folder / "port", log)) as channel:
            _until_serving(process, channel, log)
        yield (folder / "port").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], path: Path, log: Path) -> str:
    for _ in range(10 * _START_S):
        if path.exists():
            return path.read_text()
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"it does not start:\n{log.read_text()}")


def _until_serving(process: subprocess.Popen[bytes], channel: grpc.Channel, log: Path) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=_START_S)
    try:
        for reply in watch:
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return
    except grpc.RpcError:
        pass
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    raise AssertionError(f"it does not serve (exit status {process.poll()}):\n{log.read_text()}")


def call(name: str, address: str) -> Any:
    """One call to a service: what it answers, or the code of its refusal."""
    with grpc.insecure_channel(address) as channel:
        match name:
            case "orchestrator":
                ask = orchestrator_pb2.AskRequest(
                    question="What goes with a worn chain?",
                    candidates=retriever_pb2.InlineCandidates(passages=_PASSAGES),
                )
                try:
                    return list(orchestrator_grpc.OrchestratorServiceStub(channel).Ask(ask, timeout=60))
                except grpc.RpcError as error:
                    return error.code()  # type: ignore[attr-defined]
            case "retriever":
                retrieve = retriever_pb2.RetrieveRequest(
                    query="worn chain",
                    candidates=retriever_pb2.InlineCandidates(passages=_PASSAGES),
                    retriever="hybrid",
                )
                reply = retriever_grpc.RetrieverServiceStub(channel).Retrieve(retrieve, timeout=120)
                return [passage.id for passage in reply.passages]
            case "reranker":
                rerank = reranker_pb2.RerankRequest(query="worn chain", passages=_PASSAGES, reranker="none")
                ranked = reranker_grpc.RerankerServiceStub(channel).Rerank(rerank, timeout=60)
                return list(ranked.order)
            case "generator":
                write = generator_pb2.GenerateRequest(
                    question="What is replaced together with a worn chain?", passages=_PASSAGES
                )
                replies = list(generator_grpc.GeneratorServiceStub(channel).Generate(write, timeout=120))
                return replies[-1].answer.text
            case _:
                measure = evaluator_pb2.EvaluateUtilityRequest(
                    answers=["its sprockets"],
                    references=["sprockets"],
                    metric=evaluator_pb2.UTILITY_METRIC_TOKEN_F1,
                )
                stub = evaluator_grpc.EvaluatorServiceStub(channel)
                return list(stub.EvaluateUtility(measure, timeout=60).utilities)

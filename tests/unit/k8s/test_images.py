"""Images have what their services need and no more, are not root's, and get nothing that is not installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from meshkit.settings import ServiceSettings
from orchestrator.settings import OrchestratorSettings
from services.evaluator.settings import EvaluatorSettings
from services.generator.settings import GeneratorSettings
from services.reranker.settings import RerankerSettings
from services.retriever.settings import RetrieverSettings
from tests.images import DOCKERFILE, IMAGES, PROJECT, ROOT, call, closure, command, hidden_from, running
from tests.manifests import EVERYTHING, SERVICES, build

WANTED = os.environ.get("RAGMESH_TEST_IMAGES", "")
"""Services to install into a venv of their own: `all`, or names separated by commas."""
HEAVY = {"torch", "transformers", "sentence-transformers", "faiss-cpu", "ctranslate2", "pymilvus"}
SETTINGS: dict[str, type[ServiceSettings]] = {
    "orchestrator": OrchestratorSettings,
    "retriever": RetrieverSettings,
    "reranker": RerankerSettings,
    "generator": GeneratorSettings,
    "evaluator": EvaluatorSettings,
}
ANSWERS: dict[str, Any] = {
    "orchestrator": grpc.StatusCode.UNAVAILABLE,
    "retriever": ["a", "b"],
    "reranker": [0, 1],
    "generator": "sprockets",
    # precision 1/2, recall 1
    "evaluator": [pytest.approx(2 * (1 / 2) * 1 / (1 / 2 + 1))],
}
"""What each answers to the call of tests/images.py; the orchestrator is alone, and says so."""


def answers(name: str, address: str) -> None:
    said = call(name, address)
    if name == "generator":
        assert ANSWERS[name] in said
    else:
        assert said == ANSWERS[name]


def test_there_is_an_image_for_each_service_and_for_what_calls_them() -> None:
    assert set(IMAGES) == {*SERVICES, "client", "training"}
    for name in SERVICES:
        assert IMAGES[name].port == SETTINGS[name].model_fields["port"].default
        assert name in IMAGES[name].extras
    assert IMAGES["client"].port == IMAGES["training"].port == 0


def test_images_have_the_extras_that_manifests_switch_on() -> None:
    known = set(PROJECT["optional-dependencies"])
    for image in IMAGES.values():
        assert set(image.extras) <= known
    for name in SERVICES:
        told = build(EVERYTHING).workload(name).environment()
        needs = {
            "telemetry": f"RAGMESH_{name.upper()}_METRICS_PORT" in told,
            "postgres": f"RAGMESH_{name.upper()}_DATABASE_URL" in told,
            "milvus": told.get("RAGMESH_RETRIEVER_STORE") == "milvus",
            "triton": told.get("RAGMESH_GENERATOR_ENGINE") == "triton",
        }
        assert {extra for extra, needed in needs.items() if needed} <= set(IMAGES[name].extras), name


@pytest.mark.parametrize("name", ["orchestrator", "evaluator"])
def test_what_computes_no_model_holds_none_of_what_models_need(name: str) -> None:
    assert not closure(IMAGES[name].extras) & HEAVY
    assert "torch" in closure(IMAGES["generator"].extras)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_runs_with_its_own_extra_alone(name: str, tmp_path: Path) -> None:
    image = IMAGES[name]
    assert {"pytest", "hypothesis"} <= set(hidden_from(image, [name]))
    with running(image, command(image, [name]), tmp_path) as address:
        answers(name, address)


def test_a_module_that_no_extra_brings_is_missed(tmp_path: Path) -> None:
    image = IMAGES["orchestrator"]
    with (
        pytest.raises(AssertionError, match="No module named 'lark'"),
        running(image, command(image, ["orchestrator"], without=["lark"]), tmp_path),
    ):
        pass


def test_an_audit_runs_where_only_the_client_is_installed(tmp_path: Path) -> None:
    queries, labels = tmp_path / "questions.jsonl", tmp_path / "labels.qrels"
    queries.write_text('{"query_id": "q", "question": "How often?", "references": ["daily"]}\n')
    labels.write_text("q 0 a 1\n")
    image = IMAGES["client"]
    words = [
        "audit",
        str(queries),
        "--labels",
        str(labels),
        "--out",
        str(tmp_path / "out"),
        "--exposure-only",
    ]
    told = [*command(image, image.extras), *words, "--collection", "demo", "--target", "127.0.0.1:1"]
    environment = {**os.environ, "RAGMESH_CLIENT_RETRIEVER_TARGET": "127.0.0.1:1"}
    done = subprocess.run(told, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stderr
    assert "127.0.0.1:1" in done.stderr, "it read its files and found nobody"
    assert not closure(image.extras) & HEAVY


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.timeout(3600)
def test_a_service_runs_where_only_its_image_is_installed(name: str, tmp_path: Path) -> None:
    if WANTED != "all" and name not in WANTED.split(","):
        pytest.skip(
            f"RAGMESH_TEST_IMAGES={name} (or several, or all) installs it into a venv of its own: minutes, and "
            "for the retriever, the reranker and the generator gigabytes"
        )
    image = IMAGES[name]
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    installing = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    wanted = f"ragmesh[{','.join(image.extras)}] @ {ROOT.as_uri()}"
    done = subprocess.run([*installing, wanted], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    )
    installed = {line.split("==")[0].lower() for line in listed.stdout.splitlines()}
    if name in ("orchestrator", "evaluator"):
        assert not installed & HEAVY
    with running(image, [str(python), "-P", "-m", image.module], tmp_path, cwd=tmp_path) as address:
        answers(name, address)


def test_what_installs_is_a_script_that_refuses_what_it_does_not_know() -> None:
    (script,) = re.findall(r"<<'INSTALL'\n(.*?)^INSTALL$", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert subprocess.run(["sh", "-n"], input=script, text=True, timeout=60).returncode == 0
    for told, message in (
        ({"SERVICE": "retreiver", "VARIANT": "cpu"}, "SERVICE=retreiver is none of"),
        ({"SERVICE": "retriever", "VARIANT": "rocm"}, "VARIANT=rocm is neither"),
    ):
        environment = {"PATH": "/usr/bin:/bin", **told}
        done = subprocess.run(
            ["sh"], input=script, env=environment, text=True, capture_output=True, timeout=60
        )
        assert done.returncode == 1
        assert message in done.stderr


def test_nobody_is_root_and_only_two_folders_are_written() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    by_name = {re.search(r" AS (\S+)", stage).group(1): stage for stage in stages}  # type: ignore[union-attr]
    for name in ("runtime", "triton"):
        assert "\nUSER 10001:10001\n" in by_name[name]
    for name in ("client", "service"):
        assert by_name[name].startswith("runtime AS ")
        assert "USER" not in by_name[name]
    for workload in build(EVERYTHING).workloads():
        for container in workload.every_container:
            if container["image"].startswith("ragmesh-"):
                assert workload.pod["securityContext"]["runAsUser"] == 10001
    assert list(by_name)[-1] == "service", "what is built without --target"


def test_every_image_of_ours_in_the_manifests_can_be_built() -> None:
    ours = {
        container["image"]
        for workload in build(EVERYTHING).workloads()
        for container in workload.every_container
        if container["image"].startswith("ragmesh-")
    }
    buildable = {f"ragmesh-{name}" for name in IMAGES} | {"ragmesh-generator-cuda", "ragmesh-triton"}
    assert ours <= buildable
    assert "ARG VARIANT=cpu" in DOCKERFILE


def test_the_builder_is_given_what_is_installed_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        word
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
        for word in line.split()
    }
    assert copied == allowed
    assert all((ROOT / name).exists() for name in allowed)
    assert "**/__pycache__" in lines

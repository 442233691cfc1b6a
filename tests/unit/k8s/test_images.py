"""Images have what their services need and no more, are not root's, and get nothing that is not installed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from evenmesh_documents.limits import Limits
from evenmesh_documents.parsing.parsers import Parsers
from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_generator.settings import GeneratorSettings
from evenmesh_kit.settings import ServiceSettings
from evenmesh_orchestrator.settings import OrchestratorSettings
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_retriever.settings import RetrieverSettings
from tests.locks import REMOTE, extras_of
from tests.support import document_files
from tests.support.images import (
    DOCKERFILE,
    IMAGES,
    INSTALL,
    PROJECTS,
    ROOT,
    call,
    closure,
    command,
    hidden_from,
    running,
)
from tests.support.manifests import EVERYTHING, SERVICES, build

OWN = {"retriever": ["faiss-cpu", "models"], "reranker": ["models"], "generator": ["models"]}
"""Extras that a service by its defaults cannot do without."""
WANTED = os.environ.get("EVENMESH_TEST_IMAGES", "")
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
"""What each answers to the call of tests/support/images.py; the orchestrator is alone, and says so."""


def answers(name: str, address: str) -> None:
    said = call(name, address)
    if name == "generator":
        assert ANSWERS[name] in said
    else:
        assert said == ANSWERS[name]


def test_there_is_an_image_for_each_service_and_for_what_calls_them() -> None:
    assert set(IMAGES) == {*SERVICES, "gateway", "client", "documents", "training"}
    for name in SERVICES:
        assert IMAGES[name].port == SETTINGS[name].model_fields["port"].default
        assert IMAGES[name].distribution == f"evenmesh-{name}"
    assert IMAGES["client"].port == IMAGES["documents"].port == IMAGES["training"].port == 0


def test_images_have_the_extras_that_manifests_switch_on() -> None:
    for image in IMAGES.values():
        assert set(image.extras) <= set(PROJECTS[image.distribution].get("optional-dependencies", {}))
    for name in SERVICES:
        reported = build(EVERYTHING).workload(name).environment()
        needs = {
            "telemetry": f"EVENMESH_{name.upper()}_METRICS_PORT" in reported,
            "postgres": bool(
                {f"EVENMESH_{name.upper()}_{one}_URL" for one in ("DATABASE", "CONVERSATIONS")}
                & set(reported)
            ),
            "milvus": reported.get("EVENMESH_RETRIEVER_STORE") == "milvus",
            "triton": reported.get("EVENMESH_GENERATOR_ENGINE") == "triton",
        }
        assert {extra for extra, needed in needs.items() if needed} <= set(IMAGES[name].extras), name


@pytest.mark.parametrize("name", ["orchestrator", "evaluator", "gateway"])
def test_what_computes_no_model_holds_none_of_what_models_need(name: str) -> None:
    assert not closure(f"evenmesh-{name}", IMAGES[name].extras) & HEAVY
    assert not closure("evenmesh-gateway", IMAGES["gateway"].extras) & {"scipy", "pandas", "pyarrow"}
    assert "torch" in closure("evenmesh-generator", IMAGES["generator"].extras)


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_is_given_every_room_that_it_needs_by_path(name: str) -> None:
    image = IMAGES[name]
    ours = closure(image.distribution, image.extras) & set(PROJECTS)
    assert {PROJECTS[one]["folder"] for one in ours} == set(image.rooms)


@pytest.mark.parametrize("name", REMOTE)
def test_an_image_with_models_on_servers_is_given_neither_weights_nor_what_computes_them(name: str) -> None:
    image = IMAGES[name]
    start = INSTALL.index('case "$SERVICE"')
    program = INSTALL[start : INSTALL.index("\nlock=", start)] + '\necho "$extras"; echo "$rooms"'
    environment = {"PATH": "/usr/bin:/bin", "SERVICE": name, "VARIANT": "remote"}
    done = subprocess.run(
        ["sh", "-eu"], input=program, env=environment, text=True, capture_output=True, timeout=60, check=True
    )
    extras, rooms = done.stdout.splitlines()
    assert extras.split(",") == extras_of(image, "remote")
    assert rooms.split() == [room for room in image.rooms if room != "models"]
    there = closure(image.distribution, extras.split(","))
    assert {PROJECTS[one]["folder"] for one in there & set(PROJECTS)} == set(rooms.split())
    assert not there & (HEAVY - {"faiss-cpu", "pymilvus"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("generator", "EVENMESH_GENERATOR_ENGINE=in-process needs torch, which is not installed"),
        ("reranker", "an empty EVENMESH_RERANKER_CROSS_ENCODER loads none"),
        ("retriever", "EVENMESH_RETRIEVER_ENCODER=remote encodes on servers"),
    ],
)
def test_such_an_image_says_what_brings_a_model_that_it_is_asked_for(
    name: str, said: str, tmp_path: Path
) -> None:
    image = IMAGES[name]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("EVENMESH_")}
    environment |= {"EVENMESH_HOME": str(tmp_path), f"EVENMESH_{name.upper()}_PORT": "0"}
    done = subprocess.run(
        command(image, extras_of(image, "remote")),
        cwd=ROOT,
        env=environment,
        text=True,
        capture_output=True,
        timeout=240,
    )
    (line,) = [one for one in done.stderr.splitlines() if not one.startswith("{")]
    assert done.returncode == 2
    assert said in line
    assert f"./models './services/{name}[models]'" in line


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_runs_with_its_own_distribution_alone(name: str, tmp_path: Path) -> None:
    image = IMAGES[name]
    assert {"pytest", "hypothesis"} <= set(hidden_from(image, OWN.get(name, [])))
    with running(image, command(image, OWN.get(name, [])), tmp_path) as address:
        answers(name, address)


def test_the_gateways_image_reads_documents_within_the_memory_of_its_pod(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = IMAGES["gateway"]
    python = tmp_path / "python"  # for the process that parses
    python.write_text(f'#!/bin/sh\nshift\nexec {shlex.join(command(image, image.extras)[:-1])} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    said = "Otters hold hands."
    files = {
        "a.pdf": document_files.pdf([[(11, said)]]),
        "a.docx": document_files.word([("Normal", said)]),
        "a.pptx": document_files.presentation([("Zoo", [said], "")]),
        "a.xlsx": document_files.workbook({"Zoo": [["what"], [said]]}),
        "a.epub": document_files.epub({"one.xhtml": f"<p>{said}</p>"}),
        "a.html": f"<p>{said}</p>".encode(),
        "a.eml": document_files.mail("Zoo", said),
        "a.md": said.encode(),
        "a.csv": f"what\n{said}\n".encode(),
    }
    memory = int(build("prod").workload("gateway").environment()["EVENMESH_GATEWAY_DOCUMENTS_MEMORY_BYTES"])
    with Parsers(1, Limits(memory_bytes=memory)) as parsers:
        for name, data in files.items():
            path = tmp_path / name
            path.write_bytes(data)
            found = parsers.read(path, name)
            assert found.document is not None, (name, found.reason)
            assert said in str(found.document), name
    assert {"scipy", "pyarrow", "torch"} <= set(hidden_from(image, image.extras))


def test_a_module_that_no_distribution_brings_is_missed(tmp_path: Path) -> None:
    image = IMAGES["orchestrator"]
    with (
        pytest.raises(AssertionError, match="No module named 'lark'"),
        running(image, command(image, [], without=["lark"]), tmp_path),
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
    reported = [*command(image, image.extras), *words, "--collection", "demo", "--target", "127.0.0.1:1"]
    environment = {**os.environ, "EVENMESH_CLIENT_RETRIEVER_TARGET": "127.0.0.1:1"}
    done = subprocess.run(reported, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stderr
    assert "127.0.0.1:1" in done.stderr, "it read its files and found nobody"
    assert not closure(image.distribution, image.extras) & HEAVY


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.timeout(3600)
def test_a_service_runs_where_only_its_image_is_installed(name: str, tmp_path: Path) -> None:
    if WANTED != "all" and name not in WANTED.split(","):
        pytest.skip(
            f"EVENMESH_TEST_IMAGES={name} (or several, or all) installs it into a venv of its own: minutes, and "
            "for the retriever, the reranker and the generator gigabytes"
        )
    image = IMAGES[name]
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [python, "-m", "pip"]
    for step in (  # as in the Dockerfile, but for the environment that builds
        ["install", "--quiet", "--require-hashes", "--requirement", ROOT / "locks" / f"{name}-cpu.txt"],
        ["install", "--quiet", "--no-deps", *(ROOT / room for room in image.rooms)],
        ["check"],
    ):
        done = subprocess.run([*pip, *step], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    )
    installed = {line.split("==")[0].lower() for line in listed.stdout.splitlines()}
    if name in ("orchestrator", "evaluator"):
        assert not installed & HEAVY
    with running(image, [str(python), "-P", "-m", image.program], tmp_path, cwd=tmp_path) as address:
        answers(name, address)


def test_what_installs_is_a_script_that_refuses_what_it_does_not_know() -> None:
    assert subprocess.run(["sh", "-n"], input=INSTALL, text=True, timeout=60).returncode == 0
    for reported, message in (
        ({"SERVICE": "retreiver", "VARIANT": "cpu"}, "SERVICE=retreiver is none of"),
        ({"SERVICE": "retriever", "VARIANT": "rocm"}, "VARIANT=rocm is none of"),
    ):
        environment = {"PATH": "/usr/bin:/bin", **reported}
        done = subprocess.run(
            ["sh"], input=INSTALL, env=environment, text=True, capture_output=True, timeout=60
        )
        assert done.returncode == 1
        assert message in done.stderr


def test_an_engine_asks_the_port_of_health_where_there_is_one(tmp_path: Path) -> None:
    """As probes of Kubernetes do: callers cannot fill it, and it speaks no TLS."""
    start = INSTALL.index('if [ "$SERVICE" = gateway ]')
    made = INSTALL[start : INSTALL.index("\nfi", start) + 3].replace("/opt/venv/bin", str(tmp_path))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SERVICE": "retriever", "port": "7071"}
    subprocess.run(["sh", "-eu"], input=made, env=environment, text=True, timeout=60, check=True)
    asking = tmp_path / "grpc-health-probe"
    asking.write_text('#!/bin/sh\necho "$@"\n')
    asking.chmod(0o755)
    for also, port in (({}, 7071), ({"EVENMESH_RETRIEVER_HEALTH_PORT": "7079"}, 7079)):
        done = subprocess.run(
            ["sh", tmp_path / "healthy"], env=environment | also, text=True, capture_output=True, timeout=60
        )
        assert done.stdout == f"-addr=127.0.0.1:{port}\n", done.stderr


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
            if container["image"].startswith("evenmesh-"):
                assert workload.pod["securityContext"]["runAsUser"] == 10001
    assert list(by_name)[-1] == "service", "what is built without --target"


def test_every_image_of_ours_in_the_manifests_can_be_built() -> None:
    ours = {
        container["image"]
        for workload in build(EVERYTHING).workloads()
        for container in workload.every_container
        if container["image"].startswith("evenmesh-")
    }
    buildable = (
        {f"evenmesh-{name}" for name in IMAGES}
        | {f"evenmesh-{name}-{variant}" for name in REMOTE for variant in ("cuda", "remote")}
        | {"evenmesh-triton"}
    )
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
    # Of k8s/ the one script alone.
    assert {Path(name).parent.as_posix() if name.startswith("k8s/") else name for name in copied} == allowed
    assert all((ROOT / name).exists() for name in allowed)
    assert "**/__pycache__" in lines

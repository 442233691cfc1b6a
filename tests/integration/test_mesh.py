"""The real five processes, asked over gRPC."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
import psutil
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from evenmesh import (
    Addresses,
    AskResult,
    Balance,
    Client,
    GroupShare,
    Health,
    MeshError,
    Passage,
    Policy,
    Report,
    Retrieved,
)
from evenmesh.local_mesh import read_running
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb2
from evenmesh.retriever.v1 import collection_service_pb2_grpc as collection_grpc
from evenmesh_studies import demo
from tests.integration.conftest import DEMO, RunningMesh
from tests.support.command_line import run_here

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DEADLINE_S = 300.0
CONTRACT = {
    "orchestrator": {"evenmesh.orchestrator.v1.OrchestratorService"},
    "retriever": {"evenmesh.retriever.v1.RetrieverService", "evenmesh.retriever.v1.CollectionService"},
    "reranker": {"evenmesh.reranker.v1.RerankerService", "evenmesh.reranker.v1.FeedbackService"},
    "generator": {"evenmesh.generator.v1.GeneratorService"},
    "evaluator": {"evenmesh.evaluator.v1.EvaluatorService"},
}
QUESTION = demo.questions()[0]
T = TypeVar("T")


def eventually(look: Callable[[], T], holds: Callable[[T], bool]) -> T:
    """Looks again and again until what it sees holds; what it saw last if that takes too long."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds(seen := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return seen


def evenmesh(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line."""
    return subprocess.run(
        [sys.executable, "-m", "evenmesh", *arguments],
        env=os.environ | {"EVENMESH_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def test_every_service_serves_by_name_and_as_a_whole(mesh: RunningMesh, client: Client) -> None:
    assert {one.health for one in client.status(timeout=30)} == {Health.SERVING}
    for service, names in CONTRACT.items():
        with grpc.insecure_channel(getattr(mesh.addresses, service)) as channel:
            for name in ("", *names):
                reply = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service=name), timeout=30
                )
                assert reply.status == health_pb2.HealthCheckResponse.SERVING, name


def test_reflection_tells_the_whole_contract(mesh: RunningMesh) -> None:
    for service, names in CONTRACT.items():
        with grpc.insecure_channel(getattr(mesh.addresses, service)) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            assert names <= set(database.get_services())
            pool = DescriptorPool(database)
            for name in names:
                methods = pool.FindServiceByName(name).methods
                assert methods, name


def test_an_ask_is_answered_from_passages_it_cites(client: Client) -> None:
    result = client.answer(QUESTION.question, collection=DEMO)

    assert result.text
    assert result.retrieved is not None
    assert result.ranked is not None
    assert result.done is not None
    assert result.degradations == ()
    passages = {passage.id: passage for passage in result.retrieved.passages}
    (context,) = result.ranked.contexts
    shown = [result.retrieved.passages[index].id for index in context]
    assert len(shown) == 5
    assert set(shown) & set(QUESTION.useful_passage_ids)
    assert result.citations
    for citation in result.citations:
        passage = passages[citation.passage_id]
        assert shown[citation.rank - 1] == citation.passage_id
        assert citation.provider == passage.provider
        if citation.start is not None:
            assert passage.text[citation.start : citation.end] == result.text
    (sure,) = {answer.confidence for answer in result.answers}
    assert sure is not None
    assert 0 < sure < 1
    assert {"retrieve", "rerank", "generate"} <= set(result.done.stage_ms)
    assert result.done.total_ms >= max(result.done.stage_ms.values())


def test_most_demo_questions_get_a_right_answer(client: Client) -> None:
    questions = demo.questions()[:8]
    right = 0
    for question in questions:
        said = client.answer(question.question, collection=DEMO).text.lower()
        right += any(answer.lower() in said or said in answer.lower() for answer in question.answers if said)

    assert right >= len(questions) // 2


def test_the_fairness_dial_moves_exposure(client: Client) -> None:
    def ask(alpha: float) -> AskResult:
        return client.answer(
            QUESTION.question,
            collection=DEMO,
            alpha=alpha,
            samples=100,
            seed=0,
            num_answers=0,
            reranker="none",
            useful=QUESTION.useful_passage_ids,
        )

    def providers(result: AskResult) -> dict[str, float]:
        assert result.report is not None
        return {share.name: share.share for share in result.report.providers}

    even, middle, sharp = (ask(alpha) for alpha in (0.0, 1.0, 8.0))
    assert even.report is not None
    assert middle.report is not None
    assert sharp.report is not None
    assert even.report.ee_d_norm < middle.report.ee_d_norm < sharp.report.ee_d_norm
    assert max(providers(even).values()) < max(providers(sharp).values())
    assert providers(even) != providers(middle) != providers(sharp)
    for result in (even, middle, sharp):
        assert sum(providers(result).values()) == pytest.approx(1.0)
        assert result.report is not None
        assert result.report.ee_r_norm is not None


@pytest.mark.parametrize("reranker", ["none", None])
def test_a_target_is_reached_wherever_rankings_are_drawn(client: Client, reranker: str | None) -> None:
    def ask(**target: Any) -> tuple[Policy, Report]:
        result = client.answer(
            QUESTION.question,
            collection=DEMO,
            samples=1000,
            num_answers=0,
            reranker=reranker,
            observe=False,
            **target,
        )
        assert result.ranked is not None
        assert result.ranked.policy is not None
        assert result.report is not None
        return result.ranked.policy, result.report

    wanted, report = ask(disparity=0.5)
    assert (wanted.kind, wanted.target_disparity, wanted.reached) == ("plackett_luce", 0.5, True)
    assert wanted.relevance_kind == ("normalized_score" if reranker else "probability")
    assert wanted.disparity == pytest.approx(0.5, abs=1e-3)
    assert report.ee_d_norm == pytest.approx(0.5, abs=0.05)
    cheap, _ = ask(relevance_loss=0.1)
    assert cheap.reached
    assert cheap.relevance_loss <= 0.1 + 1e-3
    shared, report = ask(shares=[GroupShare("provider", at_most=0.5)])
    assert (shared.kind, shared.alpha, shared.reached) == ("decomposed", None, True)
    assert max(one.share for one in report.providers) <= 0.55


def test_a_target_has_a_configuration_of_its_own(client: Client) -> None:
    client.answer(
        QUESTION.question, collection=DEMO, disparity=0.625, num_answers=0, run_id="targets", run_report=True
    )
    (measured,) = client.measurements("targets")
    assert (measured.configuration.alpha, measured.configuration.target) == (None, "disparity 0.625")


def test_what_providers_are_owed_is_remembered_and_made_up_for(client: Client) -> None:
    options: Any = {"collection": DEMO, "alpha": 8.0, "num_answers": 0, "samples": 20, "run_report": True}
    client.answer(QUESTION.question, run_id="balance-before", **options)
    owed = {one.provider: one.owed for one in client.exposure_balance(DEMO)}
    assert max(owed.values()) > 0 > min(owed.values())
    balance = Balance(strength=1.0, limit=0.5)
    result = client.answer(QUESTION.question, run_id="balance", balance=balance, **options)
    assert result.ranked is not None
    policy = result.ranked.policy
    assert policy is not None
    assert policy.balance == Balance(1.0, 0.5, 30.0)
    assert policy.offsets
    for one in policy.offsets:
        assert abs(one.offset) <= 0.5
        assert one.offset * owed[one.provider] > 0
    (measured,) = client.measurements("balance")
    assert measured.configuration.target == "alpha 8, balance 1 up to 0.5 over 30 days"
    assert client.reset_exposure_balance(DEMO) >= len(owed)
    assert client.exposure_balance(DEMO) == []


def test_a_seed_draws_the_same_rankings_again(client: Client) -> None:
    def contexts(seed: int) -> object:
        result = client.answer(
            QUESTION.question, collection=DEMO, alpha=1, samples=10, seed=seed, num_answers=0, reranker="none"
        )
        assert result.ranked is not None
        return result.ranked.contexts

    assert contexts(7) == contexts(7)
    assert contexts(7) != contexts(8)


def test_passages_can_come_with_the_question(client: Client) -> None:
    passages = [
        Passage(
            "a", "The ferry to Ambleford leaves at seven in the morning.", "Ferry", {"provider": "Harbour"}
        ),
        Passage("b", "Bread is baked from flour, water, yeast and salt.", "Bread"),
    ]

    result = client.answer("When does the ferry leave?", passages=passages)

    assert "seven" in result.text
    assert [citation.provider for citation in result.citations] == ["Harbour"]


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ({"question": ""}, "INVALID_ARGUMENT", "question"),
        ({"question": " \n"}, "INVALID_ARGUMENT", "question"),
        ({"question": "x" * 1_000_000}, "INVALID_ARGUMENT", "question"),
        ({"collection": "no-such"}, "NOT_FOUND", "collection"),
        ({"collection": "Not A Name"}, "INVALID_ARGUMENT", "collection"),
        ({"k": 0}, "INVALID_ARGUMENT", "k"),
        ({"k": 101}, "INVALID_ARGUMENT", "k"),
        ({"k": 20, "depth": 10}, "INVALID_ARGUMENT", "k"),
        ({"depth": 0}, "INVALID_ARGUMENT", "depth"),
        ({"alpha": -1.0}, "INVALID_ARGUMENT", "sampling.alpha"),
        ({"alpha": float("nan")}, "INVALID_ARGUMENT", "sampling.alpha"),
        ({"disparity": 1.5}, "INVALID_ARGUMENT", "sampling.disparity"),
        ({"relevance_loss": 0.1, "alpha": 1.0}, "INVALID_ARGUMENT", "sampling.relevance_loss"),
        ({"samples": 0}, "INVALID_ARGUMENT", "sampling.num_rankings"),
        ({"retriever": "no-such"}, "NOT_FOUND", "retriever"),
        ({"reranker": "no-such"}, "NOT_FOUND", "reranker"),
        ({"model": "no-such"}, "NOT_FOUND", "model"),
        ({"passages": []}, "INVALID_ARGUMENT", "candidates.passages"),
        (
            {"passages": [Passage("a", "x"), Passage("a", "y")]},
            "INVALID_ARGUMENT",
            "candidates.passages[1].id",
        ),
        ({"passages": [Passage("a", "x" * 65_537)]}, "INVALID_ARGUMENT", "candidates.passages[0].text"),
        ({"passages": [Passage("a", "")]}, "INVALID_ARGUMENT", "candidates.passages[0].text"),
    ],
)
def test_bad_input_names_its_field(client: Client, options: dict[str, Any], code: str, field: str) -> None:
    question = options.pop("question", QUESTION.question)

    with pytest.raises(MeshError) as caught:
        client.answer(question, **options)

    assert (caught.value.code.name, caught.value.field) == (code, field)


def test_a_collection_of_ones_own(mesh: RunningMesh, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    rows = [
        {
            "_id": "1",
            "title": "Lighthouse",
            "text": "The lighthouse of Pell was built in 1823.",
            "metadata": {},
        },
        {
            "_id": "2",
            "title": "Mill",
            "text": "The mill of Pell grinds oats.",
            "metadata": {"provider": "Archive"},
        },
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    first = run_here(mesh.home, "ingest", str(path), "--collection", "pell", "--json")
    again = run_here(mesh.home, "ingest", str(path), "--collection", "pell", "--json")

    assert (first.status, json.loads(first.out)["added"]) == (0, 2)
    assert json.loads(again.out)["unchanged"] == 2
    assert {one.name: one.num_passages for one in client.collections()}["pell"] == 2
    assert "1823" in client.answer("When was the lighthouse of Pell built?", collection="pell").text
    client.delete_collection("pell")
    with pytest.raises(MeshError) as caught:
        client.answer("When was the lighthouse of Pell built?", collection="pell")
    assert (caught.value.code, caught.value.field) == (grpc.StatusCode.NOT_FOUND, "collection")


def test_a_malformed_file_leaves_nothing(mesh: RunningMesh, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_bytes(b'{"id": "a", "text": "x"}\n{"id": "b", "text": "\xff"}\n')

    run = run_here(mesh.home, "ingest", str(path), "--collection", "broken")

    assert run.status == 1
    assert run.err == f"evenmesh: {path}, line 2: is not UTF-8 at byte 22\n"
    assert "broken" not in {one.name for one in client.collections()}


def test_a_broken_off_ingest_leaves_nothing(mesh: RunningMesh, client: Client) -> None:
    def passages() -> Any:
        yield from (Passage(str(n), f"passage {n}") for n in range(1200))
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        client.ingest(passages(), "half")

    assert "half" not in {one.name for one in client.collections()}


def test_a_cancelled_ingest_leaves_nothing(mesh: RunningMesh, client: Client) -> None:
    with grpc.insecure_channel(mesh.addresses.retriever) as channel:
        stub = collection_grpc.CollectionServiceStub(channel)
        for attempt in range(20):
            part = collection_pb2.IngestRequest(collection="cancelled", create_if_missing=True)
            part.passages.add(id="a", text=f"attempt {attempt}")

            async def cancel_midway(part: collection_pb2.IngestRequest) -> None:
                async with grpc.aio.insecure_channel(mesh.addresses.retriever) as aio_channel:
                    call = collection_grpc.CollectionServiceStub(aio_channel).Ingest(timeout=60)
                    await call.write(part)
                    call.cancel()

            asyncio.run(cancel_midway(part))
        names = {
            one.name for one in stub.ListCollections(collection_pb2.ListCollectionsRequest()).collections
        }

    assert "cancelled" not in names


def test_what_was_asked_is_reported_by_run(client: Client) -> None:
    for question in demo.questions()[:2]:
        client.answer(
            question.question,
            collection=DEMO,
            run_id="integration",
            references=question.answers,
            useful=question.useful_passage_ids,
        )

    def observed() -> int:
        return sum(run.num_observations for run in client.runs() if run.run_id == "integration")

    assert eventually(observed, lambda count: count == 2) == 2
    found = client.report("integration")
    assert (found.ee_r_norm.count, found.expected_utility.count) == (2, 2)
    with_report = client.answer(QUESTION.question, collection=DEMO, run_id="integration", run_report=True)
    assert with_report.report is not None
    assert with_report.report.run is not None
    assert with_report.report.run.num_observations == 3


def test_the_command_line_asks_and_looks(mesh: RunningMesh) -> None:
    asked = evenmesh(mesh.home, "ask", QUESTION.question, "--json", "--timeout", "240")
    events = [json.loads(line) for line in asked.stdout.splitlines()]
    assert asked.returncode == 0
    assert (events[0]["event"], events[-1]["event"]) == ("retrieved", "done")

    status = json.loads(evenmesh(mesh.home, "status", "--json").stdout)
    assert (status["serving"], status["supervisor_pid"]) == (True, mesh.state.pid)

    second = evenmesh(mesh.home, "up", "--detach")
    assert second.returncode == 1
    assert second.stderr.splitlines()[-1].startswith(
        "evenmesh: a mesh is running already: orchestrator at 127.0.0.1:"
    )


@pytest.mark.parametrize("example", ["ask_sdk.py", "bare_stubs.py", "stream_from_another_process.py"])
def test_examples_run(mesh: RunningMesh, example: str) -> None:
    arguments = [mesh.addresses.orchestrator] if example == "bare_stubs.py" else []

    run = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *arguments],
        env=os.environ | {"EVENMESH_HOME": str(mesh.home)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )

    assert (run.returncode, run.stderr) == (0, "")
    assert len(run.stdout.split()) > 3
    if example != "stream_from_another_process.py":
        assert "exposure: " in run.stdout
    else:
        assert run.stdout.count("(process ") == 2
        assert "[" not in run.stdout


@pytest.mark.timeout(900)
def test_a_client_alone_is_small_and_asks(mesh: RunningMesh, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    client = ROOT / "clients" / "python"
    # Beside the newest protobuf: its upper bound is tritonclient's alone.
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    done = subprocess.run(
        [*pip, "install", "--quiet", "--no-compile", client, "protobuf>=7"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]

    (packages,) = (tmp_path / "venv" / "lib").glob("python3.*/site-packages")
    names = {path.name.split("-")[0].lower() for path in packages.glob("*.dist-info")}
    assert {name for name in names if name.startswith("evenmesh")} == {"evenmesh"}
    added = [path for path in packages.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in added) <= 100e6

    run = subprocess.run(
        [python, EXAMPLES / "ask_sdk.py"],
        env={"EVENMESH_HOME": str(mesh.home), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=tmp_path,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "exposure: " in run.stdout


@pytest.mark.parametrize("service", ["retriever", "generator"])
def test_a_killed_service_comes_back_where_it_was(mesh: RunningMesh, client: Client, service: str) -> None:
    before = read_running(mesh.home)
    assert before is not None
    pid = before.services[service].pid
    assert pid is not None

    os.kill(pid, signal.SIGKILL)

    def pid_now() -> int | None:
        state = read_running(mesh.home)
        return state.services[service].pid if state is not None else None

    assert eventually(pid_now, lambda now: now not in (pid, None)) not in (pid, None)
    health = eventually(
        lambda: {one.service: one.health for one in client.status()},
        lambda all_: set(all_.values()) == {Health.SERVING},
    )
    assert set(health.values()) == {Health.SERVING}
    after = read_running(mesh.home)
    assert after is not None
    assert after.addresses == before.addresses
    assert after.services[service].restarts == before.services[service].restarts + 1
    assert client.answer(QUESTION.question, collection=DEMO).text


def test_up_in_the_foreground_ingests_the_demo_and_leaves_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "evenmesh", "up", "--port", "0", "--home", str(tmp_path)],
        # The mesh of the session has vectors; those of the whole demo take longer than all of this.
        env=os.environ | {"EVENMESH_RETRIEVER_ENCODER": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as up:
        assert up.stderr is not None
        said = []
        while (line := up.stderr.readline()) and "Ctrl-C stops it" not in line:
            said.append(line)
        state = read_running(tmp_path)
        assert state is not None, said
        with Client(Addresses(**state.addresses)) as client:
            assert [one.name for one in client.collections()] == ["demo"]
            first = next(iter(client.ask(QUESTION.question, timeout=240)))
        pids = [service.pid for service in state.services.values() if service.pid is not None]
        processes = [psutil.Process(pid) for pid in pids]

        up.send_signal(signal.SIGINT)

        out, err = up.communicate(timeout=DEADLINE_S)

    assert isinstance(first, Retrieved)
    assert up.returncode == 0
    assert len(pids) == 6, "five services and the gateway"
    assert all(address in out for address in state.addresses.values())
    assert "Traceback" not in err
    assert psutil.wait_procs(processes, timeout=DEADLINE_S)[1] == []
    assert list((tmp_path / "run").iterdir()) == []

"""`evenmesh label` over the real mesh: algorithm 1, and the same labels whatever was killed meanwhile."""

import json
from pathlib import Path

import pytest

from evenmesh import Client, Decoding, Passage
from evenmesh_core.text_metrics import token_f1
from evenmesh_lab.files import read_gains, read_labels
from evenmesh_studies import demo
from tests.integration.conftest import DEMO, RunningMesh
from tests.support.command_line import kill_at, run_here

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]

QUESTIONS = demo.questions()[:3]


def arguments(queries: Path, out: Path) -> tuple[str, ...]:
    return ("label", str(queries), "-o", str(out), "-c", DEMO, "--depth", "6", "--batch", "4")


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    """Questions of the demo; the last brings its own passages."""
    path = tmp_path / "queries.jsonl"
    lines = [
        {"query_id": one.id, "question": one.question, "references": list(one.answers)} for one in QUESTIONS
    ]
    known = {passage.id: passage for passage in demo.passages()}
    mine = [
        known[name] for name in (*QUESTIONS[2].useful_passage_ids[:2], *QUESTIONS[0].useful_passage_ids[:1])
    ]
    lines[2]["passages"] = [{"id": one.id, "title": one.title, "text": one.text} for one in mine]  # type: ignore[assignment]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_labels_are_algorithm_1_and_survive_kills(
    mesh: RunningMesh, client: Client, queries: Path, tmp_path: Path
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "killed"
    first = run_here(mesh.home, *arguments(queries, whole))
    assert first.status == 0, first
    assert "useful of them" in first.out + first.err

    gains = read_gains(whole / "evenmesh-pointer.gains.jsonl")
    assert [sum(one.query_id == question.id for one in gains) for question in QUESTIONS] == [6, 6, 3]
    for one in gains:
        references = next(question.answers for question in QUESTIONS if question.id == one.query_id)
        assert one.utility == token_f1(one.answer or "", references)
        assert one.useful == (one.utility > one.baseline)
    assert any(one.useful for one in gains)
    # One of them by hand: the answer from that passage alone, and the one from none.
    known = {passage.id: passage for passage in demo.passages()}
    one, question = gains[0], QUESTIONS[0]

    def answer(passages: list[Passage]) -> str:
        options = (
            {"passages": passages} if passages else {"collection": DEMO, "augmentation": "retrieval_free"}
        )
        return client.answer(
            question.question, decoding=_beams(), reranker="none", k=1, observe=False, **options
        ).text  # type: ignore[arg-type]

    assert one.answer == answer([known[one.passage_id]])
    assert one.baseline == token_f1(answer([]), question.answers)

    labels = read_labels(whole / "evenmesh-pointer.qrels")
    assert labels.grades == read_labels(whole / "evenmesh-pointer.labels.parquet").grades
    assert labels.grades[gains[0].query_id][gains[0].passage_id] == float(bool(gains[0].useful))

    for goal in (1, 2):
        kill_at(mesh.home, out / "label.journal", goal, *arguments(queries, out), later_s=0.3)
    ended = run_here(mesh.home, *arguments(queries, out))
    assert ended.status == 0, ended
    for name in ("label.journal", "evenmesh-pointer.gains.jsonl", "evenmesh-pointer.qrels"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_all_problems_are_reported_before_anything_is_generated(mesh: RunningMesh, tmp_path: Path) -> None:
    queries, out = tmp_path / "queries.jsonl", tmp_path / "out"
    queries.write_text('{"query_id": "q1", "question": "Who?"}\n{"query_id": "q1", "question": "Who?"}\n')
    ended = run_here(mesh.home, *arguments(queries, out))
    assert ended.status == 2
    assert "queries.jsonl:2: repeats the query 'q1' of line 1" in ended.err
    assert "no references to score answers against: q1" in ended.err
    assert not out.exists()


def _beams() -> Decoding:

    return Decoding(num_beams=4)

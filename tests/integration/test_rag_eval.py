"""`evenmesh eval rag` over the real mesh: what it says is what an ask says, and a kill changes nothing."""

import json
import signal
from pathlib import Path

import pytest

from evenmesh import Client, Decoding
from evenmesh_lab.files.answered import AnsweredRecord, read_all
from evenmesh_studies import demo
from tests.integration.conftest import DEMO, RunningMesh
from tests.support.command_line import kill_at, run_here

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]

QUESTIONS = demo.questions()[:2]
OPTIONS = ("-c", DEMO, "--reranker", "none", "--reranker", "rankrag", "-n", "6", "-k", "2")


def questions(folder: Path) -> Path:
    """Questions of the demo, and one of multiple choice."""
    path = folder / "bikes.jsonl"
    lines = [
        {
            "id": one.id,
            "question": one.question,
            "answers": list(one.answers),
            "gold_passage_ids": list(one.useful_passage_ids),
        }
        for one in QUESTIONS
    ]
    choice = {
        "id": "c",
        "question": QUESTIONS[0].question,
        "options": {"A": "never", "B": "often"},
        "answer": "A",
    }
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, choice]))
    return path


@pytest.fixture(autouse=True)
def _no_shared_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVENMESH_SHARED_DATA", raising=False)


def arguments(data: str, out: Path, options: tuple[str, ...]) -> tuple[str, ...]:
    return ("eval", "rag", "-d", data, "-o", str(out), *(options or OPTIONS))


def said_here(
    mesh: RunningMesh, data: str, out: Path, *options: str, status: int = 0, figures: bool = False
) -> str:
    """What the command says in this process."""
    ended = run_here(mesh.home, *arguments(data, out, options), figures=figures)
    assert ended.status == status, ended
    return ended.out + ended.err


def test_it_says_what_asks_say_and_a_kill_changes_nothing(
    mesh: RunningMesh, client: Client, tmp_path: Path
) -> None:
    data = str(questions(tmp_path))
    said = said_here(mesh, data, tmp_path / "whole", figures=True)

    assert "bm25 + rankrag" in said
    records = read_all(tmp_path / "whole" / "answers.jsonl", AnsweredRecord)
    assert [(one.query_id, one.reranker) for one in records] == [
        (query_id, reranker)
        for query_id in (*(one.id for one in QUESTIONS), "c")
        for reranker in ("none", "rankrag")
    ]
    for record, one in zip(records[:4], (one for one in QUESTIONS for _ in range(2)), strict=True):
        result = client.answer(
            one.question,
            collection=DEMO,
            retriever="bm25",
            reranker=record.reranker,
            depth=6,
            rerank_depth=6,
            k=2,
            decoding=Decoding(num_beams=1, max_new_tokens=32),
            observe=False,
        )
        assert result.retrieved is not None
        assert result.ranked is not None
        shown = [result.retrieved.passages[place].id for place in result.ranked.contexts[0]]
        assert (record.context, record.answer) == (shown, result.text)
        found = [passage.id for passage in result.retrieved.passages]
        assert record.gold_before == [
            rank for rank, name in enumerate(found, start=1) if name in one.useful_passage_ids
        ]
    report = tmp_path / "whole" / "report"
    assert {"report.html", "report.md", "answers.csv", "answers.svg", "answers.png"} <= {
        path.name for path in report.iterdir()
    }
    assert "version of evenmesh-pointer" in (report / "report.html").read_text()

    out = tmp_path / "killed"
    status = kill_at(mesh.home, out / "rag.journal", 3, *arguments(data, out, ()))
    assert status == -signal.SIGKILL, "it was done before it could be killed"
    said_here(mesh, data, tmp_path / "killed")

    killed, whole = (tmp_path / name / "answers.jsonl" for name in ("killed", "whole"))
    assert killed.read_bytes() == whole.read_bytes()


def test_a_turn_is_answered_as_by_an_ask_with_its_turns(
    mesh: RunningMesh, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "turns.jsonl"
    before = {"question": QUESTIONS[0].question, "answer": QUESTIONS[0].answers[0]}
    line = {"id": "t", "question": "And how often?", "answers": ["x"], "turns": [before]}
    path.write_text(json.dumps(line) + "\n")

    said_here(mesh, str(path), tmp_path / "out", "-c", DEMO, "--reranker", "none", "-n", "6", "-k", "2")

    (record,) = read_all(tmp_path / "out" / "answers.jsonl", AnsweredRecord)
    result = client.answer(
        "And how often?",
        turns=[(before["question"], before["answer"])],
        collection=DEMO,
        retriever="bm25",
        reranker="none",
        depth=6,
        k=2,
        decoding=Decoding(num_beams=1, max_new_tokens=32),
        observe=False,
    )
    assert result.retrieved is not None
    assert record.context == [passage.id for passage in result.retrieved.passages[:2]]
    assert record.answer == result.text


def test_all_problems_are_reported_before_anything_is_answered(mesh: RunningMesh, tmp_path: Path) -> None:
    data, out = questions(tmp_path), tmp_path / "out"
    options = ("-c", "nowhere", "--model", "nobody", "--reranker", "nothing", "-n", "3")

    said = said_here(mesh, str(data), out, *options, status=2)

    assert "--k 5: more passages than --n 3 retrieves" in said
    assert not out.exists()

    said = said_here(mesh, str(data), out, *options, "-k", "2", status=2)

    assert "there is no such model; there are evenmesh-pointer" in said
    assert "the mesh has no collection 'nowhere'; --ingest --passages FILE makes it" in said
    assert "no reranker 'nothing'" in said
    assert not out.exists()

    options = ("-c", DEMO, "-k", "2", "-n", "3", "--template", "no-such")
    said = said_here(mesh, str(data), out, *options, "-r", "nothing", status=2)

    assert "there is no retriever 'nothing'" in said
    # Templates only the generator knows, which is not asked to write for what is refused already.
    assert "no-such" not in said
    said = said_here(mesh, str(data), out, *options, status=2)
    assert "evenmesh-pointer reads passages in a form of its own and takes no template" in said
    assert not out.exists()

    said = said_here(mesh, "squad-open", out, status=2)

    assert "its folder is not known" in said


def test_a_data_set_brings_its_own_collection(mesh: RunningMesh, client: Client, tmp_path: Path) -> None:
    data, passages = questions(tmp_path), tmp_path / "passages.jsonl"
    passages.write_text(
        "".join(
            json.dumps({"id": one.id, "title": one.title, "text": one.text}) + "\n"
            for one in demo.passages()[:12]
        )
    )

    options = ("--ingest", "--passages", str(passages), "--reranker", "none")
    said = said_here(mesh, str(data), tmp_path / "out", *options)

    assert client.collection("bikes").num_passages == 12
    assert "12 added" in said
    client.delete_collection("bikes")

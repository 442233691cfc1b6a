"""`evenmesh eor` over the real mesh: votes that can be counted again, the same bytes after kills, bad input."""

import json
from pathlib import Path

import pytest

from evenmesh import Client
from evenmesh_lab.files import read_ensemble
from evenmesh_orchestrator.ensembles.definitions import EnsembleDefinition, read_ensembles
from evenmesh_orchestrator.expressions.sources import SourceCatalogue, SourceDefinition
from evenmesh_studies import demo
from tests.integration.conftest import SOURCES, RunningMesh
from tests.support.command_line import kill_at, run_here

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]

QUESTIONS = demo.questions()[:4]
POOL = "Lexical@1,Dense@2,Lexical@RR@1&Dense@1,ReFree"
MEMBERS = tuple(POOL.split(","))
FILES = ("eor.journal", "questions.evenmesh-pointer.jsonl")


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Four questions of the demo."""
    path = tmp_path / "questions.jsonl"
    path.write_text(
        "".join(
            json.dumps({"query_id": one.id, "question": one.question, "references": list(one.answers)}) + "\n"
            for one in QUESTIONS
        )
    )
    return path


def here(home: Path, *arguments: str, figures: bool = False) -> tuple[int, str]:
    """What the command says in this process, and its exit status."""
    ended = run_here(home, "eor", *arguments, figures=figures)
    return ended.status, ended.out + ended.err


def test_a_killed_study_ends_as_one_that_was_not(
    mesh: RunningMesh, client: Client, questions: Path, tmp_path: Path
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "killed"
    # With this seed two questions are trained on and two tested on: the split follows from their ids alone.
    options = ("--pool", POOL, "--seed", "2", "--similarity", "token_f1", "--similarity", "containment_em")
    status, said = here(mesh.home, str(questions), *options, "-o", str(whole))
    assert status == 0, said
    assert "The ensemble against single retrievers" in said

    found = read_ensemble([whole / FILES[1]])
    assert found.retrievers == MEMBERS
    assert {one.query_id for one in found.questions} == {one.id for one in QUESTIONS}
    by_member = dict(zip(MEMBERS, found.questions[0].answers, strict=True))
    assert by_member["ReFree"].context == ""
    assert by_member["Lexical@1"].context
    # One of them by hand: the same question with that retriever alone.
    first = found.questions[0]
    for member in (MEMBERS[0], MEMBERS[2]):
        alone = client.answer(first.question, expression=member, observe=False)
        assert by_member[member].answer == alone.text

    for goal in (2, 3):
        kill_at(mesh.home, out / FILES[0], goal, "eor", str(questions), *options, "-o", str(out))
    status, said = here(mesh.home, str(questions), *options, "-o", str(out))
    assert status == 0, said
    for name in FILES:
        assert (out / name).read_bytes() == (whole / name).read_bytes()

    # Without the mesh the same report is made of what is there.
    report = (whole / "report" / "eor.csv").read_bytes()
    report_only = (str(questions), *options, "-o", str(whole), "--report-only")
    assert not (whole / "report" / "weights.png").exists()
    status, said = here(tmp_path, *report_only, figures=True)
    assert status == 0, said
    assert (whole / "report" / "eor.csv").read_bytes() == report
    assert (whole / "report" / "weights.png").stat().st_size > 0

    # The weights are such as an orchestrator takes for its ensembles.
    written = json.loads((whole / "report" / "ensembles.json").read_text())
    ensembles = read_ensembles(
        {name: EnsembleDefinition.model_validate(one) for name, one in written.items()},
        SourceCatalogue({name: SourceDefinition.model_validate(one) for name, one in SOURCES.items()}),
    )
    ensemble = ensembles["eor"]
    assert ensemble.members == MEMBERS
    assert set(ensemble.vote("questions").similarities) == {"token_f1", "containment_em"}


def test_all_problems_are_reported_before_anything_is_generated(mesh: RunningMesh, tmp_path: Path) -> None:
    bad, out = tmp_path / "bad.jsonl", tmp_path / "out"
    bad.write_text('{"query_id": "q1", "question": "Who?"}\n{"query_id": "q1", "question": "Who?"}\n')
    pool = "Wiki@3,Lexical@1,Lexical@1@CP"
    wrong = ("--pool", pool, "-o", str(out), "--similarity", "nli", "--judge", "oracle")
    status, said = here(mesh.home, str(bad), *wrong)
    assert status == 2
    for problem in (
        "bad.jsonl:2: repeats the query 'q1' of line 1",
        "these questions have no answers to judge by: q1",
        "--pool Wiki@3: expression: column 1: there is no source 'Wiki'",
        "--pool Lexical@1@CP: the model evenmesh-pointer cannot summarise passages (@CP)",
        "--similarity nli: --nli-model",
        "--judge oracle: allowed: exact_match, containment, token_f1",
        "of 1 questions, --train-share 0.5 and --seed 0 leave none to",
    ):
        assert problem in " ".join(said.split()), said
    assert not out.exists()
    status, said = here(mesh.home, str(bad), "--pool", "Lexical@1", "-o", str(out))
    assert status == 2
    assert "--pool: has 1 retrievers; allowed: 2 to 20" in said

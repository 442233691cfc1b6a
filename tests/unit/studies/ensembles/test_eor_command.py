"""`evenmesh eor --report-only`: the report of what is there, without a mesh, and what does not go with it."""

import csv
import json
from pathlib import Path

import pytest

from evenmesh.commands import main
from evenmesh_lab import figures
from evenmesh_lab.files import Journal, read_queries
from evenmesh_studies.ensembles.plan import Dataset, EnsemblePlan, MemberAnswer, records, records_name
from evenmesh_studies.ensembles.pool import Pool
from evenmesh_studies.runner.shards import Shard, journal_path, records_file

Output = pytest.CaptureFixture[str]


@pytest.fixture
def study(tmp_path: Path) -> tuple[Path, Path]:
    """Questions, and the folder of a run that answered all but one of them."""
    path = tmp_path / "letters.jsonl"
    lines = [{"query_id": f"q{i}", "question": "?", "references": ["x"]} for i in range(6)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = EnsemblePlan([Dataset("letters", read_queries(path))], Pool(("A@1", "A@2", "PK")), ["m"])
    out = tmp_path / "out"
    with Journal(out / "eor.journal", plan.settings()) as journal:
        for unit in list(plan.units())[:5]:
            answers = {
                "A@1": MemberAnswer("x", "the x"),
                "A@2": MemberAnswer("x" if plan.is_training(unit.query) else "y", "the x"),
                "PK": MemberAnswer("y", None),
            }
            journal.add(
                unit.name,
                records_file(records_name("letters", "m")),
                records(unit, plan.pool.members, answers),
                {"version of m": "7", "engine of m": "pointer"},
            )
    return path, out


@pytest.mark.slow
def test_a_report_is_made_of_what_is_there(
    study: tuple[Path, Path], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path, out = study
    assert main(["eor", str(path), "-o", str(out), "--report-only", "--similarity", "token_f1"]) == 0
    said, stderr = capsys.readouterr()
    assert "note: 1 of 6 questions × models were not asked yet" in stderr
    assert "The ensemble against single retrievers" in said
    with (out / "report" / "eor-main.csv").open(encoding="utf-8", newline="") as stream:
        rows = {row["who"]: row for row in csv.DictReader(stream)}
    assert rows["A@1"]["accuracy"] == "1.0"
    for name in ("report.html", "report.md"):
        text = (out / "report" / name).read_text(encoding="utf-8")
        assert "m 7; questions and split by seed 0; evenmesh " in text
        assert "else bca bootstrap over queries, 2,000 resamples, seed 0" in text
    weights = json.loads((out / "report" / "weights-letters.m.json").read_text())
    assert weights["retrievers"] == ["A@1", "A@2", "PK"]
    assert weights["tuned"]["trace"][0][0] == 1


def test_a_report_of_another_study_is_refused_with_all_that_differs(
    study: tuple[Path, Path], capsys: Output
) -> None:
    path, out = study
    path.write_text('{"query_id": "q", "question": "?", "references": ["x"]}\n')
    command = ["eor", str(path), "-o", str(out), "--report-only", "--pool", "A@1,A@3", "--seed", "1"]
    assert main([*command, "--model", "n", "--pooling", "median", "--max-weight", "2", "--level", "1"]) == 2
    stderr = " ".join(capsys.readouterr().err.split())
    for problem in (
        "--pooling median: allowed: mean, max, majority, plurality",
        "--max-weight 2: allowed: above 0, at most 1",
        "--level 1: allowed: between 0 and 1",
        "--pool: is ['A@1', 'A@3'], the run was asked with ['A@1', 'A@2', 'PK']",
        "--seed: is 1, the run was asked with 0",
        "--model n: the run did not ask it",
    ):
        assert problem in stderr


def test_a_report_of_other_questions_is_refused(study: tuple[Path, Path], capsys: Output) -> None:
    path, out = study
    path.write_text('{"query_id": "q", "question": "?", "references": ["x"]}\n')
    assert main(["eor", str(path), "-o", str(out), "--report-only"]) == 2
    assert "the run was not asked these questions as 'letters'" in " ".join(capsys.readouterr().err.split())
    assert main(["eor", str(path), "-o", str(out / "none"), "--report-only"]) == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.slow
def test_shards_are_reported_as_the_whole(
    study: tuple[Path, Path], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "of", lambda *_, **__: {})  # to draw them takes longer than all else
    path, out = study
    command = ["eor", str(path), "--report-only", "--similarity", "token_f1"]
    assert main([*command, "-o", str(out)]) == 0
    plan = EnsemblePlan([Dataset("letters", read_queries(path))], Pool(("A@1", "A@2", "PK")), ["m"])
    written = {json.loads(line)["query_id"]: [] for line in (out / "letters.m.jsonl").open()}  # type: ignore[var-annotated]
    for line in (out / "letters.m.jsonl").read_text().splitlines():
        written[json.loads(line)["query_id"]].append(line)
    parts = out.with_name("parts")
    for shard in Shard(0, 2).all:
        with Journal(journal_path(parts, "eor", shard), plan.settings(shard)) as journal:
            for unit in plan.units(shard):
                if unit.query.query_id in written:
                    lines = written[unit.query.query_id]
                    facts = {"version of m": "7", "engine of m": "pointer"}
                    journal.add(unit.name, records_file(records_name("letters", "m"), shard), lines, facts)
    capsys.readouterr()
    assert main([*command, "-o", str(parts)]) == 0
    assert "note: 1 of 6 questions × models were not asked yet" in capsys.readouterr().err
    for name in ("eor-main.csv", "eor-retrievers.csv", "report.md", "weights-letters.m.json"):
        assert (parts / "report" / name).read_bytes() == (out / "report" / name).read_bytes()

"""Reports say what their models were trained on, and give the results of unseen questions first."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from evenmesh.commands import main
from evenmesh.types.passage import Passage
from evenmesh_lab import figures
from evenmesh_lab.files import Journal, read_labels, read_queries
from evenmesh_lab.files.answered import AnsweredRecord, TimesRecord
from evenmesh_lab.files.trained_texts import TrainedTexts, TrainingTexts, write_trained_texts
from evenmesh_lab.studies import Bootstrap
from evenmesh_lab.studies.overlap import measure
from evenmesh_studies.answering import report as answering
from evenmesh_studies.audits import report as audits
from evenmesh_studies.audits.plan import AuditPlan, RankingSystem
from evenmesh_studies.conversations import report as conversations
from evenmesh_studies.conversations.plan import ConversationPlan, SystemSettings
from evenmesh_studies.conversations.topics import read_topics
from evenmesh_studies.ensembles.plan import Dataset, EnsemblePlan, MemberAnswer, records, records_name
from evenmesh_studies.ensembles.pool import Pool
from evenmesh_studies.runner import overlap
from evenmesh_studies.runner.overlap import collection_texts, context_texts, read_given
from evenmesh_studies.runner.shards import records_file

Output = pytest.CaptureFixture[str]
QUESTIONS = {f"q{at}": f"Who was the mayor number {at}?" for at in range(12)}
SEEN = ("q0", "q1", "q2", "q3")
TEXTS = TrainedTexts((TrainingTexts.of("x", [QUESTIONS[one].upper() for one in SEEN], ["The X."]),))


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "of", lambda *_, **__: {})
    monkeypatch.setattr(answering, "answering_figures", lambda *_: {})


def _headings(folder: Path) -> list[str]:
    lines = (folder / "report.md").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("## ") for line in lines if line.startswith("## ")]


def test_an_evaluation_leads_with_its_unseen_questions(tmp_path: Path, no_figures: None) -> None:
    facts = {"dataset": "toy", "retriever": "bm25", "reranker": "none", "n": 20, "k": 5, "model": "m"}
    found = {"passages": 20, "references": ["x"]}
    answers = [
        AnsweredRecord.model_validate(
            facts | found | {"query_id": one, "answer": "x" if one in SEEN else "y"}
        )
        for one in QUESTIONS
    ]
    times = [TimesRecord.model_validate(facts | {"query_id": one}) for one in QUESTIONS]
    (tmp_path / "answers.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in answers))
    (tmp_path / "times.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in times))
    known = measure({("toy", one): (text,) for one, text in QUESTIONS.items()}, {"m": TEXTS})
    few = Bootstrap(num_resamples=100)
    parts = [
        (name, answering.study(tmp_path, abstention="no", bootstrap=few, only=mine))
        for name, mine in known.parts
    ]
    answering.write(
        answering.study(tmp_path, abstention="no", bootstrap=few),
        [("models", "m")],
        tmp_path / "report",
        overlap=known,
        parts=parts,
    )
    assert _headings(tmp_path / "report") == [
        "Seen in training",
        "Findings, unseen questions",
        "Findings, seen questions",
        "Findings, all questions",
    ]
    means = {}
    for part in ("-unseen", "-seen", ""):
        with (tmp_path / "report" / f"answers{part}-summary.csv").open(newline="") as stream:
            (row,) = csv.DictReader(stream)
        means[part] = (int(row["questions"]), float(row["exact_match"]))
    assert means == {"-unseen": (8, 0.0), "-seen": (4, 1.0), "": (12, pytest.approx(1 / 3))}
    with (tmp_path / "report" / "overlap.csv").open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert (row["model"], row["total"], row["seen"]) == ("m", "12", "4")


def _audit(tmp_path: Path) -> tuple[AuditPlan, Path]:
    queries, labels, rankings = tmp_path / "q.jsonl", tmp_path / "q.qrels", tmp_path / "m.jsonl"
    lines = [
        {"query_id": one, "question": text, "references": ["x"]} for one, text in list(QUESTIONS.items())[3:6]
    ]
    queries.write_text("".join(json.dumps(one) + "\n" for one in lines))
    labels.write_text("".join(f"{one['query_id']} 0 a 1\n" for one in lines))
    shown = [{"alpha": None}, {"alpha": 1, "sample": 0}, {"alpha": 1, "sample": 1}]
    written = [
        {"query_id": one["query_id"], "ranking": ["a"], "system": "bm25", "answer": "x", "references": ["x"]}
        | {name: value for name, value in how.items() if value is not None}
        for one in lines
        for how in shown
    ]
    rankings.write_text("".join(json.dumps(one) + "\n" for one in written))
    return AuditPlan(read_queries(queries), read_labels(labels), [RankingSystem("bm25")], ["m"]), rankings


def test_an_audit_leads_with_its_unseen_queries(tmp_path: Path, no_figures: None) -> None:
    plan, rankings = _audit(tmp_path)
    known = measure({one.query_id: (one.question,) for one in plan.queries.queries}, {"m": TEXTS})
    files = {"m": [rankings]}
    parts = [(name, audits.measure(plan, files, only=mine)) for name, mine in known.parts]
    audits.write(audits.measure(plan, files), [], tmp_path / "report", overlap=known, parts=parts)
    assert _headings(tmp_path / "report") == [
        "Seen in training",
        *(
            f"{study}, m, {which} queries"
            for which in ("unseen", "seen", "all")
            for study in ("Exposure", "Utility")
        ),
    ]
    rows = {}
    for part in ("unseen-", "seen-", ""):
        with (tmp_path / "report" / f"{part}m-utility.csv").open(newline="") as stream:
            rows[part] = {row["query_id"] for row in csv.DictReader(stream)}
    assert rows == {"unseen-": {"q4", "q5"}, "seen-": {"q3"}, "": {"q3", "q4", "q5"}}
    assert audits.measure(plan, files, only=()) == []


def _ensemble(tmp_path: Path) -> tuple[Path, Path, EnsemblePlan]:
    path, out = tmp_path / "mayors.jsonl", tmp_path / "out"
    lines = [{"query_id": one, "question": text, "references": ["the x"]} for one, text in QUESTIONS.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = EnsemblePlan([Dataset("mayors", read_queries(path))], Pool(("A@1", "A@2")), ["m"])
    with Journal(out / "eor.journal", plan.settings()) as journal:
        for unit in plan.units():
            answers = {"A@1": MemberAnswer("x", "Title\nThe X."), "A@2": MemberAnswer("y", "The Y.")}
            file = records_file(records_name("mayors", "m"))
            found = records(unit, plan.pool.members, answers)
            journal.add(unit.name, file, found, {"version of m": "7", "engine of m": "pointer"})
    return path, out, plan


@pytest.mark.slow
def test_an_ensemble_leads_with_its_unseen_test_questions(
    tmp_path: Path, no_figures: None, capsys: Output
) -> None:
    path, out, plan = _ensemble(tmp_path)
    tests = [one.query_id for one in plan.chosen(plan.datasets[0]) if not plan.is_training(one)]
    seen = tests[:2]
    model = tmp_path / "model"
    model.mkdir()
    texts = TrainingTexts.of("x", [QUESTIONS[one].lower() for one in seen], ["the x"])
    write_trained_texts(TrainedTexts((texts,)), model)
    command = ["eor", str(path), "-o", str(out), "--report-only", "--similarity", "token_f1"]
    assert main([*command, "--trained-on", f"m={model}"]) == 0
    said, stderr = capsys.readouterr()
    assert f"2 of the {len(tests)} questions are in the training of m" in " ".join(stderr.split())
    assert said.index("Unseen test questions") < said.index("Seen test questions") < said.index("All test")
    assert _headings(out / "report")[:2] == ["Seen in training", "Findings, unseen test questions"]
    with (out / "report" / "overlap.csv").open(newline="") as stream:
        counts = {row["what"]: (row["total"], row["seen"]) for row in csv.DictReader(stream)}
    assert counts == {"questions": (str(len(tests)), "2"), "passages": ("2", "1")}
    with (out / "report" / "eor-unseen-main.csv").open(newline="") as stream:
        assert {row["questions"] for row in csv.DictReader(stream)} == {str(len(tests) - 2)}


@pytest.mark.slow
def test_a_model_without_hashes_is_unknown_in_a_report(
    tmp_path: Path, no_figures: None, capsys: Output
) -> None:
    path, out, _ = _ensemble(tmp_path)
    assert main(["eor", str(path), "-o", str(out), "--report-only", "--similarity", "token_f1"]) == 0
    assert "is unknown: none (m) carries hashes of its training" in " ".join(capsys.readouterr().err.split())
    assert _headings(out / "report") == ["Seen in training", "Findings"]
    with (out / "report" / "overlap.csv").open(newline="") as stream:
        assert {row["seen"] for row in csv.DictReader(stream)} == {"unknown"}


def test_what_trained_on_names_is_checked(tmp_path: Path) -> None:
    (tmp_path / "trained_texts.bloom").write_bytes(b"no\n")
    problems: list[str] = []
    options = ["mine", "=x", f"mine={tmp_path}", f"other={tmp_path / 'nowhere'}"]
    assert read_given(options, problems) == {}
    assert [one.split(":")[0] for one in problems] == [
        "--trained-on mine",
        "--trained-on =x",
        "--trained-on mine",
        "--trained-on other",
    ]
    assert "is no file of trained texts" in problems[2]
    assert "has no trained_texts.bloom" in problems[3]


def test_a_conversation_is_compared_by_its_turns_together(tmp_path: Path, no_figures: None) -> None:
    path = tmp_path / "topics.jsonl"
    topics = [
        {"topic": "a", "turns": ["Who is mayor?", "Since when?"]},
        {"topic": "b", "turns": ["Who was it before?", "Since when?"]},
        {"topic": "c", "question": "List mayors."},
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in topics))
    plan = ConversationPlan(read_topics(path), [SystemSettings("ranked")], trials=1)
    asked = conversations.asked(plan)
    assert asked["a"] == ("Who is mayor?", "Who is mayor? Since when?")
    assert asked["c"] == ("List mayors.",)
    texts = TrainedTexts((TrainingTexts.of("x", ["who is mayor since when", "since when"], []),))
    known = measure(asked, {"m": texts})
    assert known.seen == {"a"}
    folder = tmp_path / "transcripts"
    folder.mkdir()
    turns = "### U1\nx\n### S1 o\ny\n### U2\nx\n### S2 x\ny\n"
    (folder / "ranked-trial1.txt").write_text("".join(f"##### {name}\n{turns}" for name in "abc"))
    parts = [(name, conversations.measure(tmp_path, plan, only=mine)) for name, mine in known.parts]
    found = conversations.measure(tmp_path, plan)
    conversations.write(found, [], tmp_path / "report", overlap=known, parts=parts)
    assert _headings(tmp_path / "report") == [
        "Seen in training",
        "Turns, unseen topics",
        "Turns, seen topics",
        "Turns, all topics",
    ]


class _Client:
    def passages(self, name: str) -> list[Passage]:
        return [Passage(f"{name}{at}", f"text {at}") for at in range(3)]


def test_a_collection_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    client = _Client()
    assert collection_texts(client, None) is None  # type: ignore[arg-type]
    assert collection_texts(client, "c") == ["text 0", "text 1", "text 2"]  # type: ignore[arg-type]
    monkeypatch.setattr(overlap, "MOST_PASSAGES", 2)
    assert collection_texts(client, "c") is None  # type: ignore[arg-type]


def test_contexts_are_cut_into_their_passages() -> None:
    assert context_texts(["Title\nA text.\n\nAnother text.", "Title\nA text."]) == [
        "A text.",
        "Another text.",
    ]

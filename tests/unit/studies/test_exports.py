"""Exports, as the libraries read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evenmesh.commands import main
from evenmesh_core.ranking_metrics import ranking_metrics
from evenmesh_lab.files import FileError, read_audits, read_labels
from evenmesh_lab.files.exports import write_runs

RECORDS = [
    {"query_id": "q1", "system": "bm25", "ranking": ["a", "b", "c"]},
    {"query_id": "q2", "system": "bm25", "ranking": ["c", "a"]},
    *(
        {"query_id": query, "system": "bm25", "alpha": 2.0, "sample": sample, "ranking": ranking}
        for query in ("q1", "q2")
        for sample, ranking in enumerate((["b", "a"], ["c", "b"]))
    ),
]
LABELS = [
    {"query_id": "q1", "passage_id": "b", "grade": 2.0},
    {"query_id": "q1", "passage_id": "c", "grade": 0.0},
    {"query_id": "q2", "passage_id": "a", "grade": 1.0},
    {"query_id": "q3", "passage_id": "a", "grade": 1.0},
]


def lines(path: Path, records: list[dict[str, object]]) -> Path:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    return path


def test_runs_and_judgements_are_read_by_ranx_as_we_measure_them(tmp_path: Path) -> None:
    ranx = pytest.importorskip("ranx", reason="ranx is not installed; it compiles for a minute")
    records, labels = lines(tmp_path / "r.jsonl", RECORDS), lines(tmp_path / "l.jsonl", LABELS)
    assert (
        main(["eval", "export", "runs", str(records), "--qrels", str(labels), "-o", str(tmp_path / "o")]) == 0
    )

    once, drawn = (tmp_path / "o" / f"{name}.trec" for name in ("bm25", "bm25-alpha=2"))
    run, qrels = ranx.Run.from_file(str(once)), ranx.Qrels.from_file(str(once.parent / "qrels" / once.name))
    assert run.name == "bm25"
    measured = ranx.evaluate(qrels, run, ["ndcg@2", "mrr@2"])
    rankings = {"q1": ["a", "b", "c"], "q2": ["c", "a"]}
    ours = ranking_metrics(rankings, {"q1": {"b": 2, "c": 0}, "q2": {"a": 1}}, k=2).means()
    assert measured["ndcg@2"] == pytest.approx(ours["ndcg"].mean)
    assert measured["mrr@2"] == pytest.approx(ours["reciprocal_rank"].mean)

    run, qrels = (
        ranx.Run.from_file(str(drawn)),
        ranx.Qrels.from_file(str(drawn.parent / "qrels" / drawn.name)),
    )
    assert ranx.evaluate(qrels, run, "mrr@2") == pytest.approx((1 + 1 / 2 + 1 / 2 + 0) / 4)
    assert list(run.keys()) == [f"{query}/sample={place}" for query in ("q1", "q2") for place in (0, 1)]


def test_runs_are_read_back_and_by_ir_measures(tmp_path: Path) -> None:
    import ir_measures

    written = write_runs(
        read_audits([lines(tmp_path / "r.jsonl", RECORDS)]),
        tmp_path / "o",
        read_labels(lines(tmp_path / "l.jsonl", LABELS)),
    )
    assert [(one.run.name, one.queries) for one in written] == [("bm25.trec", 2), ("bm25-alpha=2.trec", 4)]
    first = written[0]
    assert first.qrels == tmp_path / "o" / "qrels" / "bm25.trec"
    assert {one.run for one in written} == set((tmp_path / "o").glob("*.trec"))  # as a shell names the runs
    run, qrels = ir_measures.read_trec_run(str(first.run)), ir_measures.read_trec_qrels(str(first.qrels))
    assert ir_measures.pytrec_eval.calc_aggregate([ir_measures.RR], qrels, run) == {ir_measures.RR: 0.5}
    again = {audit.query_id: audit.samplings for audit in read_audits([written[1].run])}
    (sampled,) = again["q2"]
    assert list(sampled.rankings)[1] == ("c", "b")
    assert (sampled.system, sampled.alpha, len(sampled.rankings)) == ("bm25", 2.0, 2)
    assert written[1].qrels is not None
    judged = read_labels(written[1].qrels)
    assert judged.grades == {"q1": {"a": 1, "b": 0}, "q2": {"c": 1}} or set(judged.grades) <= {"q1", "q2"}


@pytest.mark.parametrize(
    ("record", "label", "message"),
    [
        ({"query_id": "q 1", "ranking": ["a"]}, None, "cannot hold the id 'q 1'"),
        ({"query_id": "q1", "ranking": ["a b"]}, None, "cannot hold the id 'a b'"),
        ({"query_id": "q1", "ranking": ["a"]}, {"passage_id": "a", "grade": 0.5}, "TREC has whole numbers"),
    ],
)
def test_what_the_formats_cannot_hold_is_refused(
    tmp_path: Path, record: dict[str, object], label: dict[str, object] | None, message: str
) -> None:
    labels = (
        None if label is None else read_labels(lines(tmp_path / "l.jsonl", [{"query_id": "q1", **label}]))
    )
    with pytest.raises(FileError, match=message):
        write_runs(read_audits([lines(tmp_path / "r.jsonl", [record])]), tmp_path / "o", labels)
    assert not (tmp_path / "o" / "qrels" / "run.trec").exists()


def test_systems_of_one_file_name_are_refused(tmp_path: Path) -> None:
    records = [{"query_id": "q", "system": name, "ranking": ["a"]} for name in ("a/b", "a-b")]
    with pytest.raises(FileError, match="is the file of two systems"):
        write_runs(read_audits([lines(tmp_path / "r.jsonl", records)]), tmp_path / "o")


def test_answers_become_samples_of_ragas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    system = {"dataset": "bikes", "retriever": "bm25", "reranker": "none", "n": 5, "k": 2, "model": "reader"}
    answers = lines(
        tmp_path / "answers.jsonl",
        [
            {**system, "query_id": "q1", "passages": 5, "context": ["a", "b"], "answer": "200 km"},
            {**system, "query_id": "q2", "passages": 5, "context": ["b", "z"], "answer": "B"},
            {**system, "query_id": "q3", "passages": 0, "failure": "away"},
        ],
    )
    questions = lines(
        tmp_path / "bikes.jsonl",
        [
            {
                "query_id": "q1",
                "question": "When?",
                "references": ["every 200 km"],
                "gold_passage_ids": ["a"],
            },
            {"query_id": "q2", "question": "Which?", "options": {"A": "oil", "B": "wax"}, "answer": "B"},
            {"query_id": "q3", "question": "Who?"},
        ],
    )
    passages = lines(
        tmp_path / "p.jsonl", [{"id": "a", "title": "T", "text": "Oil."}, {"id": "b", "text": "No."}]
    )
    command = ["eval", "export", "ragas", str(answers), "-d", str(questions), "-o", str(tmp_path / "o")]
    assert main([*command, "--passages", str(passages)]) == 0
    assert "1 questions have no answer" in capsys.readouterr().err

    (path,) = (tmp_path / "o").iterdir()
    assert path.name == "bikes-bm25-none-n5-k2-reader.jsonl"
    # The members of ragas 0.4's SingleTurnSample, which its from_jsonl builds of each line.
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {
            "user_input": "When?",
            "retrieved_context_ids": ["a", "b"],
            "response": "200 km",
            "reference": "every 200 km",
            "reference_context_ids": ["a"],
            "retrieved_contexts": ["T\nOil.", "No."],
        },
        {
            "user_input": "Which?\nA. oil\nB. wax",
            "retrieved_context_ids": ["b", "z"],
            "response": "B",
            "reference": "wax",
        },
    ]
    other = lines(tmp_path / "other.jsonl", [{"query_id": "q9", "question": "When?"}])
    assert main([*command[:-4], "-d", str(other), "-o", str(tmp_path / "o")]) == 1
    assert "has no question 'q1'" in capsys.readouterr().err

"""The report of a run: what stands in it, and that equal records give equal files."""

from pathlib import Path

from evenmesh_lab.files.answered import AnsweredRecord, TimesRecord
from evenmesh_lab.studies import Bootstrap
from evenmesh_studies.answering import report

FACTS = [("seeds", "questions 3, intervals 0"), ("version of m", "v7"), ("models", "m")]


def test_a_report_says_what_it_stands_on(tmp_path: Path) -> None:
    facts = {"dataset": "toy", "retriever": "bm25", "n": 20, "k": 5, "model": "m"}
    answers, times = [], []
    for place in range(4):
        for reranker in ("none", "rankrag"):
            one = facts | {"query_id": f"q{place}", "reranker": reranker}
            answer = AnsweredRecord.model_validate(
                one
                | {"passages": 20, "answer": "x", "references": ["x"], "first_before": 6, "first_after": 1}
            )
            answers.append(answer.model_dump_json(exclude_none=True))
            times.append(
                TimesRecord.model_validate(one | {"rerank_ms": 2.0, "generate_ms": 4.0}).model_dump_json()
            )
    (tmp_path / "answers.jsonl").write_text("\n".join(answers) + "\n")
    (tmp_path / "times.jsonl").write_text("\n".join(times) + "\n")

    found = report.study(tmp_path, abstention="no", bootstrap=Bootstrap(num_resamples=100))
    written = report.write(found, FACTS, tmp_path / "report")
    again = report.write(found, FACTS, tmp_path / "again")

    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in again]
    page, markdown, *others = written
    assert {"answers.svg", "answer-recall.png", "answers-time.svg", "answers-summary.csv"} <= {
        path.name for path in others
    }
    assert "questions 3, intervals 0" in page.read_text()
    text = markdown.read_text()
    assert "- version of m: v7" in text
    assert "![Mean of each measure of the answers, with its interval.](answers.png)" in text
    assert "| bm25 + rankrag | 100.0 [51.0, 100.0] |" in text
    # The rows of questions are in the CSV file alone.
    assert "| q3 |" not in text

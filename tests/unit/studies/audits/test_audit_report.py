"""An audit's report, from records alone."""

import csv
import json
from pathlib import Path

import pytest

from evenmesh_lab import figures
from evenmesh_lab.files import read_labels, read_queries
from evenmesh_studies.audits import report
from evenmesh_studies.audits.plan import AuditPlan, RankingSystem

RECORDS = """
{"query_id": "q1", "ranking": ["a"], "system": "bm25", "answer": "x", "references": ["x"]}
{"query_id": "q1", "ranking": ["a"], "system": "bm25", "alpha": 1, "sample": 0, "answer": "x"}
{"query_id": "q1", "ranking": ["b"], "system": "bm25", "alpha": 1, "sample": 1, "answer": "y"}
{"query_id": "q1", "ranking": ["a"], "system": "bm25", "alpha": 8, "sample": 0, "answer": "x"}
{"query_id": "q1", "ranking": ["a"], "system": "bm25", "alpha": 8, "sample": 1, "answer": "x"}
{"query_id": "q1", "ranking": ["a"], "system": "bm25/oracle", "sample": 0, "answer": "x", "utility": 1.0}
{"query_id": "q1", "ranking": ["b"], "system": "bm25/oracle", "sample": 1, "answer": "y", "utility": 0.0}
"""


@pytest.mark.slow
def test_pages_tables_and_figures_say_what_they_stand_on(tmp_path: Path) -> None:
    queries, labels, records = tmp_path / "q.jsonl", tmp_path / "q.qrels", tmp_path / "m.jsonl"
    queries.write_text('{"query_id": "q1", "question": "?", "references": ["x"]}\n')
    labels.write_text("q1 0 a 1\n")
    records.write_text(RECORDS.strip() + "\n")
    plan = AuditPlan(read_queries(queries), read_labels(labels), [RankingSystem("bm25")], ["m"])

    found = report.measure(plan, {"m": [records]})
    written = report.write(found, [("queries", "1")], tmp_path / "report", stated="m 7")

    names = {path.name for path in written}
    # Figures 3 to 6 and tables 1, 3, 4 and 5 of fair-rag, and what else there is.
    for figure in (
        *("m-exposure-dial-disparity", "m-exposure-dial-quality", "m-utility-dial-utility"),
        *("m-exposure-disparity-quality", "m-utility-quality-utility", "m-utility-disparity-utility"),
    ):
        assert {f"{figure}.svg", f"{figure}.png"} <= names
    assert {"m-utility-fairness.csv", "m-utility-curves.csv", "m-exposure-curves.csv", "report.html"} <= names
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    words = "1 queries, N = 2 rankings at each α; k = 1; 95% intervals: Student's t of fewer"
    for text in (page, markdown):
        assert words in text
        assert "m 7." in text
        assert "Expected utility, 1 passages given, answers scored by token_f1" in text
    assert "](m-utility-disparity-utility.png)" in markdown


@pytest.mark.slow
def test_a_model_whose_name_is_a_path_has_files_of_its_own(tmp_path: Path) -> None:
    queries, labels, records = tmp_path / "q.jsonl", tmp_path / "q.qrels", tmp_path / "m.jsonl"
    queries.write_text('{"query_id": "q1", "question": "?", "references": ["x"]}\n')
    labels.write_text("q1 0 a 1\n")
    records.write_text(RECORDS.strip() + "\n")
    plan = AuditPlan(read_queries(queries), read_labels(labels), [RankingSystem("bm25")], ["google/flan"])

    found = report.measure(plan, {"google/flan": [records]})
    written = report.write(found, [("queries", "1")], tmp_path / "report")

    assert {path.parent for path in written} == {tmp_path / "report"}
    assert "google_flan-utility-curves.csv" in {path.name for path in written}
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "## Utility, google/flan" in markdown
    assert "](google_flan-utility-disparity-utility.png)" in markdown


@pytest.mark.slow
def test_several_models_are_in_one_table_of_retrievers_by_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "of", lambda *_, **__: {})  # to draw them takes longer than all else
    queries, labels = tmp_path / "q.jsonl", tmp_path / "q.qrels"
    queries.write_text('{"query_id": "q1", "question": "?", "references": ["x"]}\n')
    labels.write_text("q1 0 a 1\n")
    files = {}
    # The second model is right at α = 1 whatever it is shown.
    for model, records in (("m", RECORDS), ("n", RECORDS.replace('"answer": "y"', '"answer": "x"'))):
        path = tmp_path / f"{model}.jsonl"
        path.write_text(records.strip() + "\n")
        files[model] = [path]
    plan = AuditPlan(read_queries(queries), read_labels(labels), [RankingSystem("bm25")], ["m", "n"])

    written = report.write(report.measure(plan, files), [], tmp_path / "report")

    names = {path.name for path in written}
    assert {
        "models-fairness.csv",
        "models-disparity-quality.csv",
        "models-disparity-utility.csv",
        "models-quality-utility.csv",
    } <= names
    with (tmp_path / "report" / "m-utility-curves.csv").open(encoding="utf-8") as stream:
        assert {row["system"] for row in csv.DictReader(stream)} == {"bm25"}  # the oracle has no dial
    with (tmp_path / "report" / "models-disparity-utility.csv").open(encoding="utf-8") as stream:
        (row,) = csv.DictReader(stream)
    assert row["system"] == "bm25"
    # α = 1 shows a and b in turn: EE-D (1/2)² + (1/2)², EU 1/2 of the maximum; α = 8 and no sampling: (1, 1).
    disparity = (1 / 2) ** 2 + (1 / 2) ** 2
    assert float(row["m slope"]) == pytest.approx((1 - 1 / 2) / (1 - disparity))
    assert float(row["n slope"]) == pytest.approx(0, abs=1e-12)
    with (tmp_path / "report" / "models-fairness.csv").open(encoding="utf-8") as stream:
        assert [line["model"] for line in csv.DictReader(stream)] == ["m", "n"]
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "## All models" in markdown


def test_what_shards_wrote_is_measured_as_what_one_run_wrote(tmp_path: Path) -> None:
    queries, labels = tmp_path / "q.jsonl", tmp_path / "q.qrels"
    names = [f"q{place}" for place in range(5)]
    queries.write_text("".join(f'{{"query_id": "{name}", "question": "?"}}\n' for name in names))
    labels.write_text("".join(f"{name} 0 a 1\n{name} 0 b 1\n" for name in names))
    lines = [
        json.dumps({"query_id": name, "ranking": [one], "system": "bm25", "alpha": 1, "sample": sample})
        for place, name in enumerate(names)
        for sample, one in enumerate("abcab"[: 2 + place % 3])
    ]
    whole, parts = tmp_path / "m.jsonl", [tmp_path / f"m-{place}-of-2.jsonl" for place in range(2)]
    whole.write_text("\n".join(lines) + "\n")
    for place, path in enumerate(parts):
        mine = set(names[place::2])
        path.write_text("".join(f"{line}\n" for line in lines if json.loads(line)["query_id"] in mine))
    plan = AuditPlan(
        read_queries(queries),
        read_labels(labels),
        [RankingSystem("bm25")],
        ["m"],
        alphas=[1.0],
        answers=False,
    )
    # By their text, in which what is undefined is equal to itself.
    assert repr(report.measure(plan, {"m": parts})) == repr(report.measure(plan, {"m": [whole]}))

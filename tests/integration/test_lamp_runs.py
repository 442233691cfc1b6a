"""LaMP through the real mesh: converted, labelled, filtered and audited; the profile is ranked for the query."""

import json
from pathlib import Path

import pytest

from evenmesh import Client, Passage
from evenmesh_lab.files import read_audits, read_queries
from tests.integration.conftest import RunningMesh
from tests.support.command_line import run_here

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]

PROFILE = [
    {"id": "1", "title": "Rain stops play", "text": "The headline article: rain fell on the match all day."},
    {"id": "2", "title": "Sun at last", "text": "The sun shone on the harbour."},
    {"id": "3", "title": "Harbour reopens", "text": "The harbour was opened again by the mayor."},
]
ARTICLE = "The mayor sailed out of the harbour."


def run(mesh: RunningMesh, *arguments: str) -> None:
    """Run a command that must succeed."""
    ended = run_here(mesh.home, *arguments)
    assert ended.status == 0, ended


def test_a_task_is_converted_labelled_and_audited(mesh: RunningMesh, client: Client, tmp_path: Path) -> None:
    questions, outputs = tmp_path / "dev_questions.json", tmp_path / "dev_outputs.json"
    asked = f"Generate a headline for the following article: {ARTICLE}"
    questions.write_text(json.dumps([{"id": "q", "input": asked, "profile": PROFILE}]))
    outputs.write_text(
        json.dumps({"task": "LaMP_4", "golds": [{"id": "q", "output": "Mayor opens harbour"}]})
    )
    queries, labels = tmp_path / "LaMP-4.jsonl", tmp_path / "labels"

    run(mesh, "eval", "lamp", "convert", str(questions), str(outputs), "-o", str(queries))
    run(mesh, "label", str(queries), "-o", str(labels), "--metric", "LaMP-4")
    (query,) = read_queries(queries).queries
    (qrels,) = labels.glob("*.qrels")
    judged = {line.split()[2] for line in qrels.read_text().splitlines()}
    assert judged == {"1", "2", "3"}

    # Labels of our own: what the bundled model makes of headlines is not what is tested here.
    useful = tmp_path / "useful.qrels"
    useful.write_text("q 0 2 1\nq 0 3 1\n")
    kept, out = tmp_path / "kept.jsonl", tmp_path / "out"
    run(mesh, "eval", "lamp", "filter", str(queries), "-l", str(useful), "-o", str(kept))
    options = ("-r", "bm25", "-n", "2", "-k", "2", "--alpha", "1", "--oracle", "1", "--metric", "rouge_l")
    run(mesh, "audit", str(kept), "-l", str(useful), "-o", str(out), *options)

    (records,) = out.glob("*.jsonl")
    (audit,) = read_audits([records])
    deterministic = next(level for level in audit.samplings if level.system == "bm25" and level.alpha is None)
    passages = [Passage(one.id, one.text, one.title) for one in query.passages]
    ranked = client.retrieve(ARTICLE, passages=passages, retriever="bm25", k=2)
    assert list(deterministic.rankings[0]) == [ranked.passages[place].id for place in ranked.rankings[0]]
    assert audit.references == ("Mayor opens harbour",)
    # Searched for as a whole, instruction included, another item would be shown.
    whole = client.retrieve(asked, passages=passages, retriever="bm25", k=2)
    assert {whole.passages[place].id for place in whole.rankings[0]} != set(deterministic.rankings[0])

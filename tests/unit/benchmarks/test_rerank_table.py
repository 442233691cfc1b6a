"""The table of rerankers: what it reads, keeps and computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.rerank_table import judged_sets, left_out, seen, table
from benchmarks.rerank_table.judged_sets import JudgedSet, sections
from benchmarks.rerank_table.scoring import Journal, Scores, standardized
from benchmarks.rerank_table.table import Pool
from evenmesh_generator.domain import Passage
from evenmesh_lab.files.trained_texts import TrainedTexts, TrainingTexts
from evenmesh_reranker.domain import Fusion
from evenmesh_training.bundled import reranker_lists

ROW = Scores(
    query="q",
    bm25={"a": 3.0, "b": 1.0},
    dense={"b": 0.9, "c": 0.5, "a": 0.1},
    candidates=["b", "a", "c"],
    reranked={"cosine": [0.9, 0.1, 0.5], "rankrag": [0.5, 0.9, 0.2]},
    seconds={"rankrag": 0.1},
)


def _judged(grades: dict[str, int], *ids: str) -> JudgedSet:
    """Return one question with the passages a, b and c, or others."""
    return JudgedSet("set", [Passage(one, "", "text") for one in ids or "abc"], {"q": "?"}, {"q": grades})


def test_sections_have_the_headings_above_them() -> None:
    text = "Before.\n# Page\nFirst.\n## Part\n```\n# no heading\n```\n### Empty\n## Last\nEnd.\n"
    found = [(one.id, one.title, one.text) for one in sections("p.md", text)]
    assert found == [
        ("p.md#", "", "Before."),
        ("p.md#Page", "Page", "First."),
        ("p.md#Part", "Page › Part", "```\n# no heading\n```"),
        ("p.md#Last", "Page › Last", "End."),
    ]


def test_our_questions_are_answered_where_they_say() -> None:
    own = judged_sets.load("own-docs", 100)
    assert len(own.queries) >= 30
    texts: dict[str, str] = {}
    for one in own.passages:
        texts[one.id] = texts.get(one.id, "") + one.text
    answers = judged_sets.own_questions()
    assert len(answers) == 40
    for row in answers:
        for gold in row["gold_passage_ids"]:
            assert row["answer"] in texts[gold], row["question"]
        assert bool(row["answer"]) is bool(row["gold_passage_ids"])


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "set.jsonl", "set 1")
    with journal.continued() as add:
        add(ROW)
        add(replace(ROW, query="r"))
    path = tmp_path / "set.jsonl"
    path.write_text(path.read_text()[:-20])
    assert list(journal.read()) == ["q"]
    with journal.continued() as add:
        add(replace(ROW, query="s"))
    assert journal.read() == {"q": ROW, "s": replace(ROW, query="s")}
    assert Journal(path, "set 2").read() == {}, "other questions or models"


def test_what_bm25_has_not_found_shares_nothing() -> None:
    """BM25: 3, 1, 0; cosines: 0.1, 0.9, 0.5."""
    one = (np.array([3.0, 1.0, 0.0]) - 4 / 3) / np.std([3.0, 1.0, 0.0])
    other = (np.array([0.1, 0.9, 0.5]) - 0.5) / np.std([0.1, 0.9, 0.5])
    assert standardized(ROW.bm25, ROW.dense) == pytest.approx(dict(zip("abc", one + other, strict=True)))


def test_pipelines_order_as_they_should() -> None:
    judged = JudgedSet("set", [], {"q": "?"}, {"q": {"a": 1}})
    rankings = {name: found["q"] for name, found in table.pipelines(judged, {"q": ROW}).items()}
    assert rankings["bm25"] == ["a", "b"]
    assert rankings["dense"] == ["b", "c", "a"]
    assert rankings[table.BASELINE] == ["b", "a", "c"]  # 1/62 + 1/61, 1/61 + 1/63, 1/62
    assert rankings["cosine"] == ["b", "c", "a"]
    assert rankings["rankrag"] == ["a", "b", "c"]


def test_a_weight_of_zero_leaves_the_reranker_and_a_great_one_the_first_stage() -> None:
    first = standardized(ROW.bm25, ROW.dense)
    pool = Pool.of(_judged({"a": 1}), dict.fromkeys("abc", "text"), ROW)
    assert pool.ranked("rankrag", Fusion(0.0)) == ["a", "b", "c"]
    assert pool.ranked("rankrag", Fusion(10.0)) == sorted(first, key=lambda one: -first[one])


def test_neighbors_of_probable_passages_rise() -> None:
    """c says what the more probable b says; of a and b the others say little, and c says it to b only."""
    pool = Pool.of(_judged({"a": 1}), {"a": "whale", "b": "red fox", "c": "fox"}, ROW)
    assert pool.ranked("rankrag", Fusion(0.5)) == ["a", "b", "c"]
    assert pool.ranked("rankrag", Fusion(0.5, neighbors=4.0))[0] == "c"


def test_calibration_error_by_hand() -> None:
    """Of a 0.9 that is right, a 0.5 and a 0.2 that are wrong: |0.9 - 1| + 0.5 + 0.2 over 3."""
    judged = _judged({"a": 1, "c": 0})
    pools = table.pools(judged, {"q": ROW})
    assert table.calibration_error(judged, pools, "rankrag", Fusion(0.0)) == pytest.approx(0.8 / 3)


def test_a_calibration_fits_what_it_is_given() -> None:
    """Of twenty passages at even odds five are relevant: the intercept becomes log 1/3."""
    ids = [f"{at:02}" for at in range(20)]
    row = Scores("q", {}, dict.fromkeys(ids, 0.5), ids, {"rankrag": [0.5] * 20})
    judged = _judged(dict.fromkeys(ids[:5], 1), *ids)
    pools = table.pools(judged, {"q": row})
    fusion = table.calibrated(judged, pools, "rankrag", Fusion(2.0))
    assert fusion.intercept == pytest.approx(np.log(1 / 3), abs=1e-2)
    assert table.calibration_error(judged, pools, "rankrag", fusion) == pytest.approx(0.0, abs=1e-2)


def test_weights_are_learned_on_other_sets() -> None:
    """On the other set rankrag is right and the first stage wrong; on the one that is left out never asked."""
    right = Scores("q", {"a": 3.0}, {"a": 0.9, "b": 0.1}, ["a", "b"], {"rankrag": [0.01, 0.99]})
    sets = {
        "mine": _judged({"a": 1}),
        "other": _judged({"b": 1}),
        "trained": replace(_judged({"a": 1}), trained=frozenset({judged_sets.READER})),
    }
    pools = {name: table.pools(judged, {"q": right}) for name, judged in sets.items()}
    values = table.values_of_fusions("rankrag", sets, pools)
    assert set(values) == {"mine", "other"}
    assert table.learned(values, without="mine") == Fusion(0.0)
    assert table.learned(values, without="other").weight > 0


def test_the_table_marks_what_a_model_has_trained_on() -> None:
    known = replace(_judged({"a": 1}), trained=frozenset({judged_sets.READER}))
    sets = {"seen": known, "new": replace(known, name="new", trained=frozenset())}
    row = replace(ROW, reranked={**ROW.reranked, "cross-encoder": [0.1, 0.2, 0.3]})
    scores = {name: {"q": row} for name in sets}
    pools = {name: table.pools(judged, scores[name]) for name, judged in sets.items()}
    found, fusions = table.everything(sets, scores, pools)
    text = table.markdown(sets, found)
    rankrag = next(line for line in text.splitlines() if line.startswith("| rankrag"))
    assert rankrag.split("|")[2:5] == [" 1.000 ", " 1.000* ", " 1.000 "]  # the unseen first
    assert set(fusions) == {"rankrag", "cross-encoder"}


def test_questions_and_relevant_passages_that_a_model_was_trained_on_are_counted() -> None:
    judged = replace(_judged({"a": 1}), queries={"q": "Who wrote it?"})
    asked = judged.queries["q"]
    shown = next(one.text for one in judged.passages if one.id == "a")
    texts = TrainedTexts((TrainingTexts.of("x", [asked.upper()], [shown]),))
    assert seen.rows("m", texts, {"one": judged}) == [
        {"model": "m", "texts": "questions", "one": "1 of 1"},
        {"model": "m", "texts": "relevant passages", "one": "1 of 1"},
    ]
    assert {row["one"] for row in seen.rows("m", None, {"one": judged})} == {"unknown"}


def test_every_set_that_the_cross_encoder_knows_is_ranked_by_a_model_without_its_domain() -> None:
    try:
        sets = {one: judged_sets.load(one, 1) for one in judged_sets.NAMES}
    except FileNotFoundError as error:
        pytest.skip(str(error))
    known = {name for name, judged in sets.items() if judged_sets.CROSS_ENCODER in judged.trained}
    ranked = [one for domain in left_out.DOMAINS.values() for one in domain.judged]
    assert sorted(ranked) == sorted(known)
    for domain in left_out.DOMAINS.values():
        assert set(domain.without) <= set(reranker_lists.LABELLED)
        assert set(domain.judged) & set(reranker_lists.LABELLED) <= set(domain.without)

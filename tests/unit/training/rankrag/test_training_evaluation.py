"""Measures during training."""

import math
from pathlib import Path

import pytest

from evenmesh_generator.domain import Passage
from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_training.rankrag import evaluation
from evenmesh_training.rankrag.data.examples import Example, Form, Kind, Shown
from evenmesh_training.rankrag.evaluation import auc
from evenmesh_training.rankrag.learners.learner import Prediction
from evenmesh_training.rankrag.recipe import Recipe


def made(kind: Kind, *, gold: bool) -> Example:
    shown = (Shown(Passage("p", "", "text"), gold=gold, holds=gold),)
    return Example(kind, "s", "i", "q", (), shown, "x y", ("x y",), Form.SHORT)


def test_auc_by_hand() -> None:
    # pairs (0.9, 0.2), (0.9, 0.5), (0.5, 0.2) are right, (0.5, 0.5) is a tie
    assert auc([True, True, False, False], [0.9, 0.5, 0.5, 0.2]) == (3 + 1 / 2) / 4
    assert math.isnan(auc([True], [0.5]))


def test_measures_by_hand() -> None:
    gold = made(Kind.CONTEXT_RICH_QA, gold=True)
    able, unable = made(Kind.RETRIEVAL_AUGMENTED_QA, gold=True), made(Kind.RETRIEVAL_AUGMENTED_QA, gold=False)
    true, false = made(Kind.CONTEXT_RANKING, gold=True), made(Kind.CONTEXT_RANKING, gold=False)
    found = evaluation.measures(
        {"gold": [gold, gold], "five": [able, able, unable, unable, unable], "ranking": [true, false, false]},
        {
            "gold": [Prediction(text="x y"), Prediction(text="x")],
            "five": [Prediction(text=text) for text in ("x y", ABSTENTION, ABSTENTION, ABSTENTION, "z")],
            "ranking": [Prediction(probability=value) for value in (0.6, 0.7, 0.1)],
        },
    )
    assert found == pytest.approx(
        {
            "gold_em": 1 / 2,
            "gold_f1": (1 + 2 * 1 * (1 / 2) / (1 + 1 / 2)) / 2,
            "five_em": 1 / 2,
            "five_f1": 1 / 2,
            "abstention_precision": 2 / 3,
            "abstention_recall": 2 / 3,
            "ranking_accuracy": 2 / 3,
            "ranking_auc": 1 / 2,
        }
    )


def test_nothing_to_count_is_undefined() -> None:
    assert all(math.isnan(value) for value in evaluation.measures({}, {}).values())


def test_samples_are_held_out_and_fixed(squad: Path, recipe: Recipe) -> None:
    found = evaluation.samples(recipe, squad, 3)
    assert {name: len(examples) for name, examples in found.items()} == {"gold": 3, "five": 3, "ranking": 3}
    assert all(one.id.startswith("q-d-") for examples in found.values() for one in examples)
    assert evaluation.samples(recipe, squad, 3) == found
    assert evaluation.samples(recipe.model_copy(update={"evaluation": ()}), squad, 3) == {}

"""Entailment and equivalence with tiny classifiers, against transformers itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from evenmesh_core.errors import InvalidInput
from evenmesh_lab.similarities import MissingModel, Models, load
from evenmesh_lab.similarities.classifiers import PairClassifier
from evenmesh_lab.similarities.entailment import entailment_label
from tests.unit.lab.similarities.conftest import Classifier

_NLI = {0: "CONTRADICTION", 1: "NEUTRAL", 2: "Entailment"}
_EQUIVALENCE = {0: "LABEL_0", 1: "LABEL_1"}


def _probability(folder: Path, texts: tuple[str, str], label: int) -> float:
    """P(label) of one pair, as any user of transformers would compute it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return float(model(**tokenizer(*texts, return_tensors="pt")).logits.softmax(1)[0, label])


def test_entailment_is_the_mean_of_both_directions(classifier: Classifier) -> None:
    folder = classifier(_NLI)
    forward = _probability(folder, ("the fox", "water boils"), 2)
    backward = _probability(folder, ("water boils", "the fox"), 2)
    assert forward != pytest.approx(backward, abs=1e-3)
    matrix = load("nli", Models(nli=str(folder))).matrix(["water boils", "the fox", "the fox"])
    mean = (forward + backward) / 2
    assert matrix == pytest.approx(np.array([[1, mean, mean], [mean, 1, 1], [mean, 1, 1]]), abs=1e-6)


def test_entailment_with_the_question_reads_it_before_both(classifier: Classifier) -> None:
    folder = classifier(_NLI)
    asked = ("What boils? the fox", "What boils? water")
    mean = (_probability(folder, asked, 2) + _probability(folder, asked[::-1], 2)) / 2
    similarity = load("nli_question", Models(nli=str(folder)))
    assert similarity.pairs([("the fox", "water")], question=" What boils? ")[0] == pytest.approx(
        mean, abs=1e-6
    )


def test_equivalence_reads_candidate_reference_and_question(classifier: Classifier) -> None:
    folder = classifier(_EQUIVALENCE)
    one = _probability(folder, ("the fox", "water [SEP] What boils?"), 1)
    other = _probability(folder, ("water", "the fox [SEP] What boils?"), 1)
    similarity = load("answer_equivalence", Models(answer_equivalence=str(folder)))
    value = similarity.pairs([("water", "the fox")], question="What boils?")[0]
    assert value == pytest.approx((one + other) / 2, abs=1e-6)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    read = tokenizer.convert_ids_to_tokens(tokenizer("the fox", "water [SEP] What boils?")["input_ids"])
    assert (read[0], read.count("[SEP]")) == ("[CLS]", 3)


def test_one_logit_is_read_through_the_sigmoid(classifier: Classifier) -> None:
    folder = classifier({0: "LABEL_0"})
    value = load("answer_equivalence", Models(answer_equivalence=str(folder))).pairs(
        [("water", "the fox")], question="What?"
    )
    assert 0 < value[0] < 1


@pytest.mark.parametrize("name", ["nli_question", "answer_equivalence"])
@pytest.mark.parametrize("question", ["", "  "])
def test_what_reads_the_question_wants_one(classifier: Classifier, name: str, question: str) -> None:
    folder = str(classifier({0: "contradiction", 1: "entailment"}))
    similarity = load(name, Models(nli=folder, answer_equivalence=folder))
    with pytest.raises(InvalidInput) as caught:
        similarity.matrix(["a", "b"], question=question)
    assert caught.value.argument == "question"


@pytest.mark.parametrize("labels", [{0: "no", 1: "yes"}, {0: "entailment", 1: "ENTAILMENT"}])
def test_a_classifier_without_one_label_for_entailment_is_refused(
    classifier: Classifier, labels: dict[int, str]
) -> None:
    models = Models(nli=str(classifier(labels)), called={"nli": "THE_NLI"})
    with pytest.raises(MissingModel, match=r"THE_NLI: .* must be 'entailment'"):
        load("nli", models).matrix(["a", "b"])


def test_a_classifier_of_three_is_no_judge_of_equivalence(classifier: Classifier) -> None:
    models = Models(answer_equivalence=str(classifier(_NLI)))
    with pytest.raises(MissingModel, match="3 labels"):
        load("answer_equivalence", models).matrix(["a", "b"], question="which?")


def test_an_encoder_without_a_trained_head_is_refused(tiny_encoder: Path) -> None:
    models = Models(answer_equivalence=str(tiny_encoder))
    with pytest.raises(MissingModel, match=r"no trained classifier: its weights lack classifier\.bias"):
        load("answer_equivalence", models).matrix(["a", "b"], question="which?")


def test_long_and_short_pairs_come_back_in_order(classifier: Classifier) -> None:
    folder = classifier(_NLI)
    judge = PairClassifier("nli", Models(nli=str(folder)), entailment_label)
    pairs = [
        ("water", "fox"),
        ("the fox " * 200, "water"),
        *[(f"fox {'water ' * n}", "oil") for n in range(70)],
    ]
    together = judge.probabilities(pairs)
    alone = [judge.probabilities([pair])[0] for pair in pairs]
    assert together == pytest.approx(alone, abs=1e-5)
    assert len(set(together.round(4).tolist())) > 10

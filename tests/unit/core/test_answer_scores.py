"""Score many answers against many references: as one by one, in linear memory, and stopped on request."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from evenmesh_core import text_metrics
from evenmesh_core.answer_scores import AnswerMetric, best_scores, scoring_ns
from evenmesh_core.errors import InvalidInput

ONE_BY_ONE: dict[AnswerMetric, Callable[[str, list[str]], float]] = {
    "exact_match": text_metrics.exact_match,
    "token_f1": text_metrics.token_f1,
    "rouge1": partial(text_metrics.rouge, variant="rouge1"),
    "rouge2": partial(text_metrics.rouge, variant="rouge2"),
    "rougeL": partial(text_metrics.rouge, variant="rougeL"),
    "accuracy": text_metrics.accuracy,
}


def _texts(seed: int, count: int) -> list[str]:
    draws = random.Random(seed)
    words = ["the", "a", "Rhine", "rhine!", "Main", "flows", "flows", "to", "the sea", "", "É", "7th"]
    return [" ".join(draws.choices(words, k=draws.randrange(0, 90))) for _ in range(count)]


@pytest.mark.parametrize("variant", ["rouge1", "rouge2", "rougeL"])
@pytest.mark.parametrize("stem", [False, True])
def test_rouge_is_that_of_the_package_to_the_last_bit(variant: str, stem: bool) -> None:
    scorer = RougeScorer([variant], use_stemmer=stem)
    references = _texts(1, 12)
    for prediction in _texts(2, 25):
        expected = max(scorer.score(one, prediction)[variant].fmeasure for one in references)
        assert text_metrics.rouge(prediction, references, variant, stem=stem) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", ONE_BY_ONE)
def test_scores_are_those_of_one_answer_at_a_time(metric: AnswerMetric) -> None:
    predictions, references = [*_texts(3, 30), "Rhine", "Rhine"], [*_texts(4, 8), "the rhine", "Rhine"]
    expected = [ONE_BY_ONE[metric](one, references) for one in predictions]
    assert best_scores(predictions, references, metric).tolist() == expected


def test_ratings_are_scored_against_the_nearest() -> None:
    """By hand: 1 − |y − ŷ| / 4; "five" is unreadable and counts as 1 against 4: 1 − 3 / 4."""
    predictions = ["4", " 3 ", "five", "9", "1"]
    assert best_scores(predictions, ["4"], "rating").tolist() == [1, 0.75, 0.25, 0, 0.25]
    assert best_scores(["2"], ["1", "4"], "rating").tolist() == [0.75]
    expected = [text_metrics.rating(one, ["1", "4.5"]) for one in predictions]
    assert best_scores(predictions, ["1", "4.5"], "rating").tolist() == expected
    for reference in ("six", "6", "nan", ""):
        with pytest.raises(InvalidInput, match=r"references\[1\]"):
            best_scores(predictions, ["4", reference], "rating")


def test_normalised_utilities_of_ratings_are_those_of_lamp_3() -> None:
    for answer in ("1", "2.5", "nothing"):
        assert text_metrics.rating(answer, "4") == text_metrics.lamp_utility("LaMP-3", answer, "4") / 4


def test_a_common_subsequence_takes_linear_memory() -> None:
    words = [f"w{i}" for i in range(6000)]
    tracemalloc.start()
    # Every second word is left out: precision 1, recall 1/2, so F is 2/3.
    score = text_metrics.rouge(" ".join(words[::2]), " ".join(words), "rougeL")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert score == pytest.approx(2 / 3)
    assert most < 32 * 2**20  # a table has 18 million cells


@pytest.mark.parametrize("metric", ["token_f1", "rouge1", "rouge2", "rougeL"])
def test_every_text_is_read_once(metric: AnswerMetric, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    normalise, tokenizer = text_metrics.normalize_answer, text_metrics._rouge_tokenizer(False)
    monkeypatch.setattr(
        "evenmesh_core.answer_scores.normalize_answer", lambda text: read.append(text) or normalise(text)
    )
    monkeypatch.setattr(
        text_metrics, "_rouge_tokenizer", lambda _: lambda text: read.append(text) or tokenizer(text)
    )
    best_scores(["a b", "c d", "a b"], ["b", "d", "e"], metric)
    assert sorted(read) == ["a b", "b", "c d", "d", "e"]


@pytest.mark.parametrize("metric", ["token_f1", "rouge2", "rougeL"])
def test_a_check_that_raises_ends_the_scores_soon(metric: AnswerMetric) -> None:
    class GoneError(Exception):
        pass

    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks == 3:
            raise GoneError

    texts = [f"{i} " * 400 for i in range(900)]
    with pytest.raises(GoneError):
        best_scores(texts, texts, metric, check=check)
    assert checks == 3


def test_what_cannot_be_scored_is_refused() -> None:
    for arguments in ([[], ["a"], "token_f1"], [["a"], [], "token_f1"], [["a"], ["a"], "bleu"]):
        with pytest.raises(InvalidInput):
            best_scores(*arguments)  # type: ignore[arg-type]
    assert np.isfinite(best_scores(["", "a"], [""], "rougeL")).all()


def test_words_of_one_letter_are_counted_one_by_one() -> None:
    # 100 characters may be 50 words, and one more where the text ends: 51 and 2 * 51 of two texts.
    given, wanted = (1, 100), (2, 200)
    read = 100 * (100 + 200)
    bags = 500 * (51 + 102)
    pairs = 2 * 600 + 100 * min(51 * 2, 102)
    of_bags: tuple[AnswerMetric, ...] = ("token_f1", "rouge1", "rouge2")
    for metric in of_bags:
        assert scoring_ns(*given, *wanted, metric) == read + bags + pairs
    assert scoring_ns(*given, *wanted, "exact_match") == read

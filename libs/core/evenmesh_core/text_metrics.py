"""Scores of a generated text against reference texts.

Each metric takes one prediction and one or more references, scores the best-matching reference, and returns a
number whose range its docstring states. Means over queries are the caller's.
"""

from __future__ import annotations

import functools
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from evenmesh_core.arrays import FloatArray, count
from evenmesh_core.errors import InvalidInput
from evenmesh_core.token_overlap import Bags, best_of_bags, best_of_subsequences, ngrams, rouge_f
from evenmesh_core.utility import lamp3_utility

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

References = str | Sequence[str]
RougeVariant = Literal["rouge1", "rouge2", "rougeL"]


def normalize_answer(text: str) -> str:
    """Return a text in lower case, without ASCII punctuation and English articles, white space single.

    Source: the SQuAD evaluation script (Rajpurkar et al. 2016), which Salemi & Zamani 2025, §5.1
    uses too.

    Raises:
        InvalidInput: not a text.
    """
    return " ".join(_ARTICLES.sub(" ", _plain(_text("text", text))).split())


def exact_match(prediction: str, references: References) -> float:
    """Return 1.0 if the normalised prediction equals a normalised reference, else 0.0.

    Source: SQuAD (Rajpurkar et al. 2016).

    Raises:
        InvalidInput: no references, or something that is not a text.
    """
    guess = normalize_answer(_text("prediction", prediction))
    return float(any(guess == normalize_answer(reference) for reference in _references(references)))


def token_f1(prediction: str, references: References) -> float:
    """Return F1 of the normalised tokens, as bags, in [0, 1]; 1 if neither text has any, 0 if one has none.

    Source: SQuAD (Rajpurkar et al. 2016; no-answer rule of SQuAD 2.0).

    Raises:
        InvalidInput: no references, or something that is not a text.
    """
    guess = normalize_answer(_text("prediction", prediction)).split()
    return max(_bag_f1(guess, normalize_answer(reference).split()) for reference in _references(references))


def accuracy(prediction: str, references: References) -> float:
    """Return 1.0 if the prediction equals a reference but for outer white space, else 0.0; for class labels.

    Source: LaMP (Salemi et al. 2024), tasks 1 and 2.

    Raises:
        InvalidInput: no references, or something that is not a text.
    """
    guess = _text("prediction", prediction).strip()
    return float(any(guess == reference.strip() for reference in _references(references)))


def parse_rating(prediction: str, reference: float) -> float:
    """Read a rating from a text; a text that is no finite number counts as the worse of 1 and 5.

    Source: LaMP's evaluation of task 3 (Salemi et al. 2024).

    Raises:
        InvalidInput: prediction not a text.
    """
    text = _text("prediction", prediction).strip()
    try:
        rating = float(text)
    except ValueError:
        rating = math.nan
    if math.isfinite(rating):
        return rating
    return 1.0 if abs(1.0 - reference) > abs(5.0 - reference) else 5.0


def absolute_error(prediction: str, reference: str) -> float:
    """Return |y − ŷ| of a predicted rating, from 0; lower is better.

    Source: LaMP (Salemi et al. 2024), task 3; unreadable predictions as :func:`parse_rating`.

    Raises:
        InvalidInput: a reference that is no finite number, or something that is not a text.
    """
    truth = _reference_rating(reference)
    return abs(truth - parse_rating(prediction, truth))


def rating(prediction: str, references: References) -> float:
    """Return 1 − |y − ŷ| / 4 for ratings from 1 to 5, clipped to [0, 1]: LaMP-3's utility over its largest.

    Normalised utilities are the same as those of LaMP-3's own scale, [0, 4]. An unreadable prediction counts
    as :func:`parse_rating` says; the best of several references counts.

    Source: Kim & Diaz 2025, appendix C.3, for LaMP-3.

    Raises:
        InvalidInput: no references, one that is no rating from 1 to 5, or something that is not a text.
    """
    return max(_lamp3(prediction, reference) / 4.0 for reference in _references(references))


def rouge(prediction: str, references: References, variant: RougeVariant, *, stem: bool = False) -> float:
    """Return the ROUGE F-measure in [0, 1] of single words, word pairs, or the longest common subsequence.

    Args:
        prediction: the generated text.
        references: one or more reference texts; the best counts.
        variant: "rouge1", "rouge2" or "rougeL".
        stem: whether words are stemmed (Porter) first; off, as in LaMP.

    Source: Lin 2004. The values are those of the ``rouge_score`` package, whose tokens these are; its table
    for the longest common subsequence would need memory for the product of the lengths.

    Raises:
        InvalidInput: an unknown variant, no references, or something that is not a text.
    """
    if variant not in get_args(RougeVariant):
        raise InvalidInput("variant", variant, "'rouge1', 'rouge2' or 'rougeL'")
    guess, known = _text("prediction", prediction), _references(references)
    return float(rouge_scores([guess], known, variant, stem=stem)[0])


def rouge_scores(
    predictions: Sequence[str],
    references: Sequence[str],
    variant: RougeVariant,
    *,
    stem: bool = False,
    check: Callable[[], None] = lambda: None,
) -> FloatArray:
    """Return :func:`rouge` of each prediction, arguments checked: vector [P]. Reads each text once.

    ``check`` is called every few milliseconds; what it raises ends the computation.
    """
    tokens = _rouge_tokenizer(stem)

    def read(texts: Sequence[str]) -> list[list[str]]:
        words = []
        for text in texts:
            check()
            words.append(tokens(text))
        return words

    said, held = read(predictions), read(references)
    if variant == "rougeL":
        return best_of_subsequences(said, held, check)
    size, bags = int(variant[-1]), Bags()
    given, wanted = ([bags.of(ngrams(one, size)) for one in texts] for texts in (said, held))
    return best_of_bags(given, wanted, rouge_f, check)


@functools.cache
def _rouge_tokenizer(stem: bool) -> Callable[[str], list[str]]:
    if stem:
        from rouge_score.tokenizers import DefaultTokenizer  # half a second to import

        words: Callable[[str], list[str]] = DefaultTokenizer(use_stemmer=True).tokenize
        return words
    from rouge_score.tokenize import tokenize

    return functools.partial(tokenize, stemmer=None)


def contains_answer(passage: str, answer: str) -> bool:
    """Return whether a passage holds an answer as a run of whole words, both normalised.

    An answer made of articles only ("A", "The The") is searched with articles kept.

    Raises:
        InvalidInput: an answer without a letter or digit, or something that is not a text.
    """
    wanted = normalize_answer(_text("answer", answer))
    held = normalize_answer(_text("passage", passage))
    if not wanted:
        wanted = " ".join(_plain(answer).split())
        held = " ".join(_plain(passage).split())
    if not wanted:
        raise InvalidInput("answer", answer, "a text with at least one letter or digit")
    return f" {wanted} " in f" {held} "


def answer_recall(prediction: str, references: References) -> float:
    """Return the share of the references that a prediction holds (:func:`contains_answer`), [0, 1].

    For questions whose answer is a list: each reference is an item of it, not another name of the same.

    Source: STR-EM (Stelmakh et al. 2022, ASQA, section 5.1), with one name for each item.

    Raises:
        InvalidInput: no references, one without a letter or digit, or something that is not a text.
    """
    wanted = _references(references)
    return sum(contains_answer(prediction, one) for one in wanted) / len(wanted)


def answer_recall_at_k(passages: Sequence[str], answers: References, k: int) -> float:
    """Return 1.0 if one of the first k passages holds an answer (:func:`contains_answer`), else 0.0.

    Args:
        passages: retrieved passages, best first; there may be none.
        answers: one or more acceptable answers.
        k: how many passages count, from 1.

    Source: answer recall of open-domain question answering (Karpukhin et al. 2020; Yu et al. 2024, §5).

    Raises:
        InvalidInput: no answers, k below 1, or something that is not a text.
    """
    depth = count("k", k)
    accepted = _references(answers, "answers")
    return float(any(contains_answer(passage, answer) for passage in passages[:depth] for answer in accepted))


def four_gram_recall(chunk: str, answer: str) -> float:
    """Return the share of the answer's 4-grams that a chunk holds, each as often as it occurs, in [0, 1].

    Words are lower-case without ASCII punctuation; articles stay. ``nan`` where the answer has under four
    words.

    Source: Yu et al. 2024, §4.2 and appendix B (above 0.5 is relevant, below 0.1 is not).

    Raises:
        InvalidInput: something that is not a text.
    """
    wanted = Counter(ngrams(_plain(_text("answer", answer)).split(), 4))
    held = Counter(ngrams(_plain(_text("chunk", chunk)).split(), 4))
    total = wanted.total()
    return (wanted & held).total() / total if total else math.nan


@dataclass(frozen=True)
class LampMetric:
    """The metric of one LaMP task."""

    name: str
    """The metric's usual name."""
    utility: Callable[[str, str], float]
    """From prediction and reference to a utility, higher is better."""
    upper: float
    """Largest utility."""


def _lamp3(prediction: str, reference: str) -> float:
    truth = _reference_rating(reference)
    return float(lamp3_utility(truth, parse_rating(prediction, truth)))


def _rouge_l(prediction: str, reference: str) -> float:
    return rouge(prediction, reference, "rougeL")


LAMP_METRICS: Mapping[str, LampMetric] = MappingProxyType(
    {
        "LaMP-1": LampMetric("accuracy", accuracy, 1.0),
        "LaMP-2": LampMetric("accuracy", accuracy, 1.0),
        "LaMP-3": LampMetric("4 - MAE", _lamp3, 4.0),
        "LaMP-4": LampMetric("ROUGE-L", _rouge_l, 1.0),
        "LaMP-5": LampMetric("ROUGE-L", _rouge_l, 1.0),
        "LaMP-6": LampMetric("ROUGE-L", _rouge_l, 1.0),
        "LaMP-7": LampMetric("ROUGE-L", _rouge_l, 1.0),
    }
)
"""Metric of each LaMP task (Salemi et al. 2024; Kim & Diaz 2025, §4), as a utility: LaMP-3's error is turned
around."""


def lamp_utility(task: str, prediction: str, reference: str) -> float:
    """Score a prediction by the metric of its LaMP task (:data:`LAMP_METRICS`), higher is better.

    Raises:
        InvalidInput: an unknown task, a LaMP-3 reference that is no rating from 1 to 5, or something not a
            text.
    """
    metric = LAMP_METRICS.get(task)
    if metric is None:
        raise InvalidInput("task", task, ", ".join(LAMP_METRICS))
    return metric.utility(prediction, reference)


def _text(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(name, value, "a text")
    return value


def _references(references: References, name: str = "references") -> Sequence[str]:
    if isinstance(references, str):
        return [references]
    if len(references) == 0:
        raise InvalidInput(name, references, "at least one text")
    return [_text(f"{name}[{i}]", reference) for i, reference in enumerate(references)]


def _reference_rating(text: str) -> float:
    try:
        rating = float(_text("reference", text))
    except ValueError:
        rating = math.nan
    if not math.isfinite(rating):
        raise InvalidInput("reference", text, "a finite number as text")
    return rating


def _plain(text: str) -> str:
    return text.lower().translate(_NO_PUNCTUATION)


def _bag_f1(left: list[str], right: list[str]) -> float:
    if not left or not right:
        return float(left == right)
    common = (Counter(left) & Counter(right)).total()
    return 2 * common / (len(left) + len(right))

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.text_metrics import (
    LAMP_METRICS,
    absolute_error,
    accuracy,
    answer_recall,
    answer_recall_at_k,
    contains_answer,
    exact_match,
    four_gram_recall,
    lamp_utility,
    normalize_answer,
    rouge,
    token_f1,
)

property_test = settings(derandomize=True, deadline=None, max_examples=50)
texts = st.text(alphabet="ab the.,\n é", max_size=30)


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The Eiffel Tower.", "eiffel tower"),
        ("  a\tcat,  an   owl\n", "cat owl"),
        ("theatre", "theatre"),
        ("U.S.", "us"),
        ("The the", ""),
        ("Émile Zola", "émile zola"),
        ("it's", "its"),
    ],
)
def test_answers_are_normalized_as_in_squad(text, normalized):
    assert normalize_answer(text) == normalized


@property_test
@given(texts)
def test_normalizing_changes_nothing_the_second_time(text):
    assert normalize_answer(normalize_answer(text)) == normalize_answer(text)


def test_exact_match_takes_the_best_reference():
    assert exact_match("The Eiffel Tower", ["Louvre", "eiffel tower!"]) == 1.0
    assert exact_match("Eiffel", "Eiffel Tower") == 0.0


@pytest.mark.parametrize(
    ("prediction", "references", "f1"),
    [
        ("big red dog", "red dog", 2 * (2 / 3) * (2 / 2) / (2 / 3 + 2 / 2)),
        ("dog dog", "dog", 2 * (1 / 2) * 1 / (1 / 2 + 1)),
        ("cat", "dog", 0.0),
        ("", "", 1.0),
        ("", "dog", 0.0),
        ("the", "dog", 0.0),
        ("red dog", ["cat", "dog", "red dog house"], 2 * 1 * (2 / 3) / (1 + 2 / 3)),
        (
            "ha ha ha",
            "ha ha no",
            2 * (2 / 3) * (2 / 3) / (2 / 3 + 2 / 3),
        ),  # a word counts as often as in both
    ],
)
def test_token_f1(prediction, references, f1):
    assert token_f1(prediction, references) == pytest.approx(f1)


@property_test
@given(texts, texts)
def test_f1_is_symmetric_and_1_exactly_on_equal_bags(left, right):
    assert token_f1(left, right) == token_f1(right, left)
    equal = sorted(normalize_answer(left).split()) == sorted(normalize_answer(right).split())
    assert (token_f1(left, right) == 1.0) == equal
    assert exact_match(left, right) <= token_f1(left, right)


def test_accuracy_compares_labels_to_the_letter():
    assert accuracy(" [1] ", "[1]") == 1.0
    assert accuracy("comedy", "Comedy") == 0.0


@pytest.mark.parametrize(
    ("prediction", "reference", "error"),
    [
        ("4", "5", 1),
        ("2.5", "1", 1.5),
        ("five", "4", 4 - 1),
        ("?", "2", 5 - 2),
        ("nan", "5", 5 - 1),
        ("", "3", 5 - 3),
    ],
)
def test_a_rating_that_cannot_be_read_counts_as_the_worst(prediction, reference, error):
    assert absolute_error(prediction, reference) == error


@pytest.mark.parametrize(
    ("variant", "score"),
    [
        # prediction "the cat sat", reference "the cat ran off"
        ("rouge1", 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)),
        ("rouge2", 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3)),
        ("rougeL", 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)),
    ],
)
def test_rouge_is_the_f_measure(variant, score):
    assert rouge("the cat sat", "the cat ran off", variant) == pytest.approx(score)


def test_rouge_takes_the_best_reference_and_stems_on_request():
    assert rouge("a dog", ["a cat", "a dog"], "rougeL") == 1.0
    assert rouge("running", "runs", "rouge1") == 0.0
    assert rouge("running", "runs", "rouge1", stem=True) == 1.0


@pytest.mark.parametrize(
    ("passage", "answer", "held"),
    [
        ("It was built by Gustave Eiffel.", "Eiffel", True),
        ("It was built by Gustave Eiffel.", "gustave  eiffel", True),
        ("Eiffelturm", "Eiffel", False),
        ("He scored 120 points", "20", False),
        ("vitamin a is fat-soluble", "A", True),
        ("vitamin C", "A", False),
    ],
)
def test_a_passage_holds_an_answer_as_whole_words(passage, answer, held):
    assert contains_answer(passage, answer) is held


def test_answer_recall_is_the_share_of_items_that_are_named() -> None:
    said = "Boats are made of oak, and of steel."
    assert answer_recall(said, ["Oak", "steel", "tin"]) == pytest.approx(2 / 3)
    assert answer_recall(said, "steel") == 1.0
    assert answer_recall(said, ["tee"]) == 0.0  # whole words only
    assert answer_recall("", ["oak"]) == 0.0


def test_answer_recall_looks_at_the_first_k():
    passages = ["nothing here", "Paris is nice", "Lyon"]
    assert answer_recall_at_k(passages, ["paris"], 1) == 0.0
    assert answer_recall_at_k(passages, ["paris"], 2) == 1.0
    assert answer_recall_at_k(passages, ["Rome", "Lyon"], 5) == 1.0
    assert answer_recall_at_k([], "Paris", 5) == 0.0


@pytest.mark.parametrize(
    ("chunk", "answer", "recall"),
    [
        ("a b c d e", "b c d e", 1.0),
        ("A b, c d!", "a b c d e", 1 / 2),
        ("x y z", "a b c d", 0.0),
        ("a b c d", "a b c d a b c d", 1 / 5),  # held once, wanted twice; 5 four-grams
        ("a b c d a b c d", "a b c d a b c d", 5 / 5),  # held twice, wanted twice
        ("the cat sat on the mat", "cat sat on the", 1.0),
    ],
)
def test_four_gram_recall(chunk, answer, recall):
    assert four_gram_recall(chunk, answer) == pytest.approx(recall)


def test_four_gram_recall_of_a_short_answer_is_undefined():
    assert math.isnan(four_gram_recall("one two three four", "one two three"))


def test_the_metric_of_each_lamp_task():
    assert {task: metric.name for task, metric in LAMP_METRICS.items()} == {
        "LaMP-1": "accuracy",
        "LaMP-2": "accuracy",
        "LaMP-3": "4 - MAE",
        "LaMP-4": "ROUGE-L",
        "LaMP-5": "ROUGE-L",
        "LaMP-6": "ROUGE-L",
        "LaMP-7": "ROUGE-L",
    }
    assert lamp_utility("LaMP-1", "[2]", "[2]") == 1.0
    assert lamp_utility("LaMP-3", "2", "5") == 4 - (5 - 2)
    assert lamp_utility("LaMP-3", "great", "5") == 0.0
    assert lamp_utility("LaMP-4", "the cat sat", "the cat ran off") == pytest.approx(4 / 7)
    assert all(metric.utility("3", "3") == metric.upper for metric in LAMP_METRICS.values())


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: exact_match("x", []), "references is .*at least one"),
        (lambda: exact_match(3, "x"), "prediction is 3; allowed: a text"),
        (lambda: token_f1("x", ["y", None]), r"references\[1\] is None"),
        (lambda: normalize_answer(None), "text is None"),
        (lambda: accuracy(b"x", "x"), "prediction is b'x'"),
        (lambda: absolute_error("3", "good"), "reference is 'good'; allowed: a finite number"),
        (lambda: rouge("x", "y", "rouge3"), "variant is 'rouge3'"),
        (lambda: answer_recall("x", []), "references is"),
        (lambda: answer_recall_at_k(["x"], "y", 0), "k is 0"),
        (lambda: answer_recall_at_k(["x"], [], 1), "answers is"),
        (lambda: contains_answer("x", "?!"), "answer is .*at least one letter or digit"),
        (lambda: four_gram_recall("x", 4), "answer is 4"),
        (lambda: lamp_utility("LaMP-8", "x", "y"), "task is 'LaMP-8'; allowed: LaMP-1, "),
        (lambda: lamp_utility("LaMP-3", "x", "7"), "reference is 7"),
    ],
)
def test_bad_input_is_refused(call, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        call()

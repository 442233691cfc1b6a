"""The model that ships answers and ranks."""

import pytest

from services.generator.pointer import artifact
from services.generator.pointer.grounding import Place
from services.generator.pointer.reader import Answer, PointerReader

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
def test_it_finds_ranks_and_cites_the_answer(
    reader: PointerReader, question: str, passage: int, answer: str
) -> None:
    encodings = reader.encode(question, PASSAGES)
    relevance = reader.verdicts([encodings])[0]
    assert relevance.index(max(relevance)) == passage
    found = reader.answer(encodings)
    assert answer in found.text
    assert [place.passage for place in found.citations] == [passage]
    assert found.citations[0] == Place(passage, *_span(PASSAGES[passage][1], found.text))
    *_, streamed = reader.answer_stream(encodings)
    assert isinstance(streamed, Answer)
    assert streamed.text == found.text


def test_the_card_tells_its_measurements_and_limits() -> None:
    card = (artifact.bundled() / "MODEL_CARD.md").read_text(encoding="utf-8")
    for part in (
        "exact match, gold passage",
        "recall@5",
        "CC BY-SA",
        "Apache-2.0",
        "## Limits",
        "95 % interval",
    ):
        assert part in card


def _span(passage: str, part: str) -> tuple[int, int]:
    begin = passage.index(part)
    return begin, begin + len(part)

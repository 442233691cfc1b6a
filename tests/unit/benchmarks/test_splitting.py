"""The comparison of splittings: what counts as answered, and what windows are."""

from __future__ import annotations

import pytest

from benchmarks import splitting
from benchmarks.mtrag_pages import Place
from evenmesh_documents import Block, Document, Kind, Splitting


def page(address: str, *paragraphs: str) -> Document:
    return Document(address, tuple(Block(Kind.PARAGRAPH, one) for one in paragraphs), title="Care")


def test_windows_have_every_word_once_and_in_order() -> None:
    one = page("a", "one two three", "four five")
    found = list(splitting.windows(one, 2))
    assert [piece.text for piece in found] == ["one two", "three four", "five"]
    assert {(piece.page, piece.title) for piece in found} == {("a", "Care")}


def test_our_passages_are_those_of_the_splitter() -> None:
    (one,) = splitting.passages(page("a", "Oil the chain.", "Wipe it."), Splitting())
    assert one == splitting.Piece("a", "Care", "Oil the chain.\n\nWipe it.")


@pytest.mark.parametrize(
    ("answer", "gold", "recall"),
    [
        ("every 200 km", "a", 1.0),
        ("every 200 km", "b", 0.0),
        ("chain Brakes", "a", 0.0),
        ("every  200\nkm", "a", 1.0),
    ],
)
def test_an_answer_counts_whole_and_on_its_page_alone(answer: str, gold: str, recall: float) -> None:
    pytest.importorskip("evenmesh_models")
    pages = [page("a", "Oil the chain every 200\nkm."), page("b", "Brakes wear.")]
    turn = {
        "conversation_id": "c",
        "history": [{"text": "hello"}, {"text": "How often to oil a chain?"}],
        "answers": [answer],
        "gold_passage_ids": [gold],
    }
    measured = splitting.measure(pages, [turn], history=False)
    assert [one.recall.tolist() for one in measured] == [[recall]] * len(measured)
    assert measured[0].passages == 2


def test_conversations_are_averaged_and_compared_with_the_windows() -> None:
    import numpy as np

    rows = [
        splitting.Row("windows", 2, 100.0, np.array([0.0, 0.5, 1.0, 0.0])),
        splitting.Row("ours", 3, 90.0, np.array([0.5, 1.0, 1.0, 0.5])),
    ]
    _, _, first, second = splitting.table(rows).splitlines()
    assert first.startswith("| windows | 2 | 100 | 37.5 (")
    assert second.startswith("| ours | 3 | 90 | 75.0 (")
    assert "| +37.5 (" in second


def test_a_passage_of_the_data_set_is_found_by_one_that_lies_mostly_in_it() -> None:
    judge = splitting.within({"x": Place("a", 4, 10), "y": Place("b", 0, 4)})
    question = {"gold_passage_ids": ["x", "y"]}
    mostly = splitting.Piece("a", "", "one two three four five", 1)
    recall, held = judge(question, [mostly])
    assert (recall, held) == (0.0, 2 / 10)
    recall, held = judge(question, [splitting.Piece("a", "", "two three four five six", 2), mostly])
    assert (recall, held) == (0.5, 3 / 10)
    assert judge(question, [splitting.Piece("c", "", "one two", 0)]) == (0.0, 0.0)


def test_our_passages_know_their_first_word() -> None:
    found = list(splitting.passages(page("a", "One two three. " * 9, "Four five."), Splitting(16)))
    words = page("a", "One two three. " * 9, "Four five.").text.split()
    assert len(found) > 1
    for one in found:
        said = one.text.split()
        assert words[one.start : one.start + len(said)] == said


def test_the_table_shows_the_words_that_are_held_where_they_are_known() -> None:
    import numpy as np

    ones = np.array([1.0, 0.5, 0.0])
    lines = splitting.table([splitting.Row("windows", 2, 100.0, ones, np.array([0.25, 0.25, 0.25]))])
    assert lines.splitlines()[0].endswith("| words held, % |")
    assert lines.splitlines()[-1].endswith("| 25.0 |")

"""The leakage check."""

from evenmesh_generator.domain import Passage, Turn
from evenmesh_training.rankrag.data.datasets import Dataset, Item
from evenmesh_training.rankrag.data.leakage import WORDS, Guard, grams

LONG = " ".join(f"w{n}" for n in range(20))


def dataset(items: list[Item], texts: list[str] = []) -> Dataset:  # noqa: B006
    return Dataset("x", "train", [Passage(str(n), "", text) for n, text in enumerate(texts)], items)


def test_runs_have_thirteen_words_and_ignore_case_and_punctuation() -> None:
    assert WORDS == 13
    assert len(list(grams(LONG))) == 20 - 13 + 1
    assert list(grams("Who, is IT?")) == ["who is it"]
    assert list(grams("?!")) == []


def test_a_question_with_thirteen_words_in_common_goes() -> None:
    guard = Guard()
    guard.protect(dataset([Item("e", LONG, ("a",))]), passages=False)
    overlapping = "before " + " ".join(f"W{n}" for n in range(3, 16)) + " after"
    short_of_it = "before " + " ".join(f"w{n}" for n in range(3, 15)) + " after and more words than thirteen"
    kept, found = guard.cleaned(dataset([Item("a", overlapping, ("a",)), Item("b", short_of_it, ("a",))]))
    assert [item.id for item in kept.items] == ["b"]
    assert (found.questions, found.orphans, found.passages) == (1, 0, 0)


def test_a_short_question_goes_if_it_is_the_same() -> None:
    guard = Guard()
    guard.protect(dataset([Item("e", "Who is it?", ("a",))]), passages=False)
    kept, _ = guard.cleaned(dataset([Item("a", "who is it", ("a",)), Item("b", "who is it not", ("a",))]))
    assert [item.id for item in kept.items] == ["b"]


def test_a_turn_is_compared_with_what_was_asked_before_it() -> None:
    guard = Guard()
    guard.protect(
        dataset([Item("e", "When was it made?", ("a",), turns=(Turn("Who made the film Heat?", "x"),))]),
        passages=False,
    )
    same = Item("a", "When was it made?", ("a",), turns=(Turn("who made the film heat", "y"),))
    other = Item("b", "When was it made?", ("a",), turns=(Turn("Who made the film Cold?", "y"),))
    kept, _ = guard.cleaned(dataset([same, other]))
    assert [item.id for item in kept.items] == ["b"]


def test_passages_that_overlap_are_blanked_and_their_questions_go() -> None:
    guard = Guard()
    guard.protect(dataset([Item("e", "q", ("a",), gold=(0,))], [LONG, "free text"]), passages=True)
    train = dataset(
        [Item("a", "x", ("a",), gold=(0,)), Item("b", "y", ("a",), gold=(1,), irrelevant=(0, 2))],
        [f"so {LONG} on", "another text", "third"],
    )
    kept, found = guard.cleaned(train)
    assert [p.text for p in kept.passages] == ["", "another text", "third"]
    assert [(item.id, item.irrelevant) for item in kept.items] == [("b", (2,))]
    assert (found.questions, found.orphans, found.passages) == (0, 1, 1)


def test_passages_are_left_alone_where_only_questions_are_protected() -> None:
    guard = Guard()
    guard.protect(dataset([Item("e", "q", ("a",), gold=(0,))], [LONG]), passages=False)
    kept, found = guard.cleaned(dataset([Item("a", "x", ("a",), gold=(0,))], [LONG]))
    assert len(kept.items) == 1
    assert found.passages == 0

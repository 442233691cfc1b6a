"""A pair is laid out as the base model's own tokenizer would, and cut where asked."""

import pytest
from transformers import AutoTokenizer

import evenmesh_models
from evenmesh_generator.pointer.tokenization import CLS, MAX_QUESTION, SEP, PairTokenizer, pair, room

QUESTION = "Who wrote the Mabinogion's first branch?"
TITLE = "Welsh tales"
TEXT = "The Four Branches (c. 1060–1120) were set down by an unknown hand; naïveté isn't theirs."


def test_a_pair_is_what_the_base_tokenizer_makes_of_the_same_strings(tokenizer: PairTokenizer) -> None:
    official = AutoTokenizer.from_pretrained(evenmesh_models.minilm())(QUESTION, f"{TITLE}: {TEXT}")
    made = pair(tokenizer.ids(QUESTION), tokenizer.title_ids(TITLE), tokenizer.ids(TEXT), limit=256)
    assert list(made.ids) == official["input_ids"]
    assert [0] * made.boundary + [1] * (len(made.ids) - made.boundary) == official["token_type_ids"]
    assert made.ids[made.text_start : -1] == tokenizer.ids(TEXT)


def test_offsets_cut_the_original_letters(tokenizer: PairTokenizer) -> None:
    text = tokenizer.text(TEXT)
    pieces = [TEXT[begin:end] for begin, end in text.offsets]
    assert pieces[:3] == ["The", "Four", "Branches"]
    assert "".join(pieces) == TEXT.replace(" ", "")


@pytest.mark.parametrize("mark", ["\u0301", "\u0941", "\u0e35\u0e48", "\ufe0f"])
def test_a_mark_on_the_last_letter_of_a_word_belongs_to_it(tokenizer: PairTokenizer, mark: str) -> None:
    """A decomposed accent, a vowel of Hindi, two signs of Thai, and the sign that colours a heart."""
    assert tokenizer.ids(f"a{mark}") == tokenizer.ids("a")  # the tokenizer drops them
    words = [f"Pele{mark}", ",", f"a{mark}b", f"c{mark}"]
    for text in (" ".join(words), f"**{words[0]}** {' '.join(words[1:])}"):
        found = tokenizer.text(text)
        begun = [at for at, token in enumerate(found.ids) if not tokenizer.piece(token).startswith("##")]
        ends = [*(at - 1 for at in begun[1:]), len(found.ids) - 1]
        pairs = zip(begun, ends, strict=True)
        assert [text[found.offsets[at][0] : found.offsets[end][1]] for at, end in pairs] == words


def test_a_window_fills_the_pair_to_its_limit(tokenizer: PairTokenizer) -> None:
    question, title, text = tokenizer.ids(QUESTION), tokenizer.title_ids(TITLE), tokenizer.ids(TEXT)
    made = pair(question, title, text, limit=24, start=4)
    size = room(question, title, 24)
    assert len(made.ids) == 24
    assert made.ids[0] == CLS
    assert made.ids[-1] == SEP
    assert made.ids[made.text_start : -1] == text[4 : 4 + size]


def test_a_long_question_is_cut(tokenizer: PairTokenizer) -> None:
    question = tokenizer.question("why " * 100)
    assert question == tokenizer.ids("why " * MAX_QUESTION)
    made = pair(question, (), tokenizer.ids(TEXT), limit=256)
    assert made.boundary == MAX_QUESTION + 2
    assert made.ids[made.boundary : -1] == tokenizer.ids(TEXT)


@pytest.mark.parametrize("times", [1, 20])
def test_what_asks_is_read_first(tokenizer: PairTokenizer, times: int) -> None:
    story = "I read old tales. " * times
    assert tokenizer.question(f"{story}{QUESTION}") == tokenizer.ids(f"{QUESTION} read old")
    assert tokenizer.question(f"{story}Why?") == tokenizer.ids("Why? read old tales")


def test_an_empty_title_leaves_no_colon(tokenizer: PairTokenizer) -> None:
    assert tokenizer.title_ids("") == ()
    assert tokenizer.title_ids("Tales")[-1:] == tokenizer.ids(":")


def test_special_tokens_have_no_text(tokenizer: PairTokenizer) -> None:
    assert tokenizer.piece(SEP) == ""
    assert tokenizer.piece(tokenizer.ids("[")[0]) == "["
    assert tokenizer.piece(tokenizer.ids("naivete")[-1]).startswith("##")
    assert tokenizer.decode([CLS, *tokenizer.ids("Old mill"), SEP]) == "old mill"

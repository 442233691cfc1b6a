"""A pair is laid out as the base model's own tokenizer would, and cut where asked."""

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


def test_a_window_fills_the_pair_to_its_limit(tokenizer: PairTokenizer) -> None:
    question, title, text = tokenizer.ids(QUESTION), tokenizer.title_ids(TITLE), tokenizer.ids(TEXT)
    made = pair(question, title, text, limit=24, start=4)
    size = room(question, title, 24)
    assert len(made.ids) == 24
    assert made.ids[0] == CLS
    assert made.ids[-1] == SEP
    assert made.ids[made.text_start : -1] == text[4 : 4 + size]


def test_a_long_question_is_cut(tokenizer: PairTokenizer) -> None:
    question = tokenizer.ids("why " * 100)
    made = pair(question, (), tokenizer.ids(TEXT), limit=256)
    assert made.boundary == MAX_QUESTION + 2
    assert made.ids[made.boundary : -1] == tokenizer.ids(TEXT)


def test_an_empty_title_leaves_no_colon(tokenizer: PairTokenizer) -> None:
    assert tokenizer.title_ids("") == ()
    assert tokenizer.title_ids("Tales")[-1:] == tokenizer.ids(":")


def test_special_tokens_have_no_text(tokenizer: PairTokenizer) -> None:
    assert tokenizer.piece(SEP) == ""
    assert tokenizer.piece(tokenizer.ids("[")[0]) == "["
    assert tokenizer.piece(tokenizer.ids("naivete")[-1]).startswith("##")
    assert tokenizer.decode([CLS, *tokenizer.ids("Old mill"), SEP]) == "old mill"

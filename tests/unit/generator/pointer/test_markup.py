"""Markdown is read as text, and every character keeps its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_generator.pointer.markup import BREAK, CELL, heads_of_cells, readable
from evenmesh_generator.pointer.spans import Spans, SpanTranscript
from evenmesh_generator.pointer.tokenization import OVERLAP, PairTokenizer, Text, as_read, pieces


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Some **bold** and *fine* words", "Some bold and fine words"),
        ("It is _so_, and __very__ so", "It is so , and very so"),
        ("call `f(*args)` now", "call f(*args) now"),
        ("see [the guide](guide.md#a) for it", "see the guide / for it"),
        ("![a plan](plan.png)", "a plan /"),
        ("## Vectors", "/ Vectors"),
        ("- red\n* green\n> blue", "/ red / green / blue"),
        ("| port | use |\n|---|:-:|\n| 7070 | asks |", "; port ; use ; / ; 7070 ; asks ;"),
        ("a | b\n--|--\n1 | 2\n\nx | y", "a ; b / 1 ; 2 x | y"),
        ("```sh\n# a | *b*\n```", "/ # a | *b* /"),
        ("Title\n=====\ntext", "Title / text"),
        ("~~old~~ new", "old new"),
    ],
)
def test_signs_of_markdown_are_not_read(text: str, read: str) -> None:
    found = readable(text)
    assert len(found) == len(text)
    shown = found
    while BREAK * 2 in shown:
        shown = shown.replace(BREAK * 2, BREAK)
    assert " ".join(shown.replace(BREAK, " / ").replace(CELL, " ; ").split()) == read


@pytest.mark.parametrize(
    "text",
    [
        "Plain words, and no sign.",
        "5 * 3 = 15 and 2*3*4",
        "snake_case_name and EVENMESH_<SERVICE>_QUEUE_S",
        "C# is a language; #5 is a number",
        "a footnote* and an open ` quote",
        "either|or, half-open [0, 1)",
        "",
    ],
)
def test_text_without_markdown_is_read_as_it_is(text: str) -> None:
    assert readable(text) == text


@given(st.text(alphabet="ab `*_#|>[]()~-+=!\\\n", max_size=60))
def test_no_text_changes_its_length_or_gains_a_letter(text: str) -> None:
    found = readable(text)
    assert len(found) == len(text)
    assert all(new == old or new in {" ", BREAK, CELL} for new, old in zip(found, text, strict=True))


def test_tokens_lie_in_the_markdown_and_cells_are_apart(tokenizer: PairTokenizer) -> None:
    table = "| **port** | use |\n|---|---|\n| 7070 | `asks` |"
    text = tokenizer.text(table)
    letters = [table[begin:end] for begin, end in text.offsets if begin < end]
    assert letters == ["|", "port", "|", "use", "|", "|", "70", "70", "|", "asks", "|"]
    assert [tokenizer.decode(block.ids) for block in text.blocks(len(text.ids)) if block.ids] == [
        *("port", "use", "7070", "asks"),
    ]
    assert [tokenizer.decode(block.ids) for block in text.blocks(4) if block.ids] == ["port", "use"]


def test_every_cell_is_read_with_the_head_of_its_column(tokenizer: PairTokenizer) -> None:
    table = "Ports:\n\n| **name** | `port` |\n|---|---|\n| reader | 7070 |\n|  | none |\n\na | b"
    assert tokenizer.decode(tokenizer.text(table).ids) == (
        "ports :, name, port,, name : reader, port : 7070,,, port : none, a | b"
    )
    assert tokenizer.text(table).ids == tokenizer.ids(as_read(table))
    assert heads_of_cells(readable("| a | b |\n| c | d |\n\n| e |\n|---|\n```\nf | g\n```")) == []


def test_a_head_is_in_no_answer_and_has_no_characters(tokenizer: PairTokenizer) -> None:
    table = "| name | port |\n|---|---|\n| reader | 7070 |"
    text = tokenizer.text(table)
    heads = [at for at, (begin, end) in enumerate(text.offsets) if begin == end]
    assert tokenizer.decode([text.ids[at] for at in heads]) == "name : port :"
    assert set(heads) <= text.bars <= text.breaks
    assert table[text.offsets[heads[0]][0] :].startswith("reader")
    blocks = [tokenizer.decode(block.ids) for block in text.blocks(len(text.ids)) if block.ids]
    assert blocks == ["name", "port", "reader", "7070"]


def test_heads_have_no_more_characters_than_the_text() -> None:
    long, most = "h" * 41, "h" * 38
    assert heads_of_cells(readable(f"|{long}|b|\n|-|-|\n|1|2|")) == [(len(long) + 14, "b: ")]
    table = f"|{most}|\n|-|\n" + "|1|\n" * 100
    heads = heads_of_cells(readable(table))
    assert 1 < len(heads) < 100
    assert sum(len(head) for _, head in heads) <= len(table)


@given(st.text(alphabet="ab1 |-`\n\\", max_size=80))
def test_what_is_read_of_a_table_lies_in_it(tokenizer: PairTokenizer, text: str) -> None:
    found = tokenizer.text(text)
    begins = [begin for begin, _ in found.offsets]
    assert begins == sorted(begins)
    own = [at for at, (begin, end) in enumerate(found.offsets) if begin < end]
    assert tuple(found.ids[at] for at in own) == tokenizer.ids(readable(text).replace(CELL, ","))


def test_an_answer_from_markdown_is_its_own_letters_and_ends_with_the_cell(tokenizer: PairTokenizer) -> None:
    table = "| port | use |\n|---|---|\n| 7070 | **two** `asks` |"
    text = tokenizer.text(table)
    spans = Spans([*text.blocks(len(text.ids))])
    said = SpanTranscript([table], [text], [len(text.ids)], tokenizer)
    comma, two, asks = tokenizer.ids(", two asks")
    assert comma not in spans.beginnings
    assert spans.following(spans.begun(asks)) == (set(), True)
    for token in (two, asks):
        said.push(token)
    said.finish()
    assert said.text == "two** `asks"
    assert said.place == (0, table.index("two"), table.index("asks") + 4)


@pytest.mark.parametrize(
    "signs",
    ["-", "- ", "|-", "*", "* ", "**a ", "_", "_ ", "~~", "[", "[a](", "![", "#", "> ", "`", "|", "="],
)
def test_a_mebibyte_of_signs_is_read_in_linear_time(signs: str) -> None:
    """In quadratic time it would take an hour, in which the process does nothing else: ``re`` keeps its lock."""
    text = "a|b\n|" + signs * (2**20 // len(signs)) + "x"
    assert len(readable(text)) == len(text)


def test_a_long_text_is_read_in_pieces_that_overlap() -> None:
    text = Text(tuple(range(300)), tuple((at, at + 1) for at in range(300)))
    assert pieces(text, 300, 9) == [0]
    assert pieces(text, 100, 9) == [0, 52, 104, 156, 208]  # 208 + 100 reaches 300
    assert pieces(text, 100, 2) == [0, 52]
    assert pieces(text, 100, 1) == [0]
    assert pieces(text, OVERLAP, 3) == [0, 1, 2]

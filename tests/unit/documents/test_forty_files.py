"""Forty-eight files of twelve kinds: each planted sentence is whole in one passage, with file, page and heading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from evenmesh.types.passage import Passage
from evenmesh_documents import Parsers, Splitting
from evenmesh_documents.attribution import Attribution
from evenmesh_documents.gathering import Spool, gather
from evenmesh_documents.origins.found import find
from tests.support import document_files as files

SIZE = 60
FILLER = "Nothing of interest stands in this sentence, which only takes room among others of its kind."
PROVIDERS = ("acme", "zeta", "club", "press")
CELLS = ("kind", "price", "remark")


@dataclass(frozen=True)
class Planted:
    """A sentence, and where it was put."""

    sentence: str
    address: str
    heading: str
    page: str = ""


def sentence(kind: str, at: int, which: str) -> str:
    return f"The {which} chain number {at} of the {kind} corpus is oiled every {at + 200} kilometres by its rider."


def plant(kind: str, at: int) -> tuple[bytes, list[tuple[str, str, str]]]:
    """A file of a kind, with the sentences in it: each with its heading and page."""
    one, two = sentence(kind, at, "first"), sentence(kind, at, "second")
    long = f"{FILLER} {FILLER} {FILLER} {FILLER} {two} {FILLER} {FILLER}"
    care, tools = f"Care {at}", f"Tools {at}"
    sections = [(one, care, ""), (two, f"{care} › {tools}", "")]
    row = [f"thin {at}", f"{at} EUR", one]
    rows = [list(CELLS), *([f"filler {line}", "1 EUR", FILLER] for line in range(9)), row]
    html = f"<h1>{care}</h1><p>{one}</p><h2>{tools}</h2><p>{long}</p>"
    match kind:
        case "md":
            return f"# {care}\n\n{one}\n\n## {tools}\n\n{long}\n".encode(), sections
        case "txt":
            return f"{one}\n\n{FILLER}\n\n{long}\n".encode(), [(one, "", ""), (two, "", "")]
        case "html" | "xhtml":
            page = f"<html><head><title>Page</title></head><body><nav>Home</nav>{html}</body></html>"
            return page.encode(), sections
        case "pdf":
            words, lines = long.split(), []
            for start in range(0, len(words), 9):
                lines.append((11.0, " ".join(words[start : start + 9])))
            first = [(18.0, care), (11.0, one)]
            return files.pdf([first, [(14.0, tools), *lines]]), [
                (one, care, "1"),
                (two, f"{care} › {tools}", "2"),
            ]
        case "docx":
            parts = [("Heading 1", care), ("Normal", one), ("Heading 2", tools), ("Normal", long)]
            return files.word(parts, title="Report"), sections
        case "pptx":
            slides = [(care, [one], ""), (tools, [FILLER, two], "")]
            return files.presentation(slides), [(one, care, "1"), (two, tools, "2")]
        case "xlsx":
            return files.workbook({care: rows}), [(one, care, "")]
        case "csv" | "tsv":
            mark = "," if kind == "csv" else "\t"
            text = "\n".join(mark.join(f'"{cell}"' for cell in cells) for cells in rows)
            return text.encode(), [(one, "", "")]
        case "epub":
            chapters = {
                "1.xhtml": f"<html><body>{html}</body></html>",
                "2.xhtml": "<html><body><p>End.</p></body></html>",
            }
            return files.epub(chapters, title="Book"), sections
        case _:
            return files.mail("Subject", f"{one}\n\n{long}"), [(one, "", ""), (two, "", "")]


KINDS = ("md", "txt", "html", "xhtml", "pdf", "docx", "pptx", "xlsx", "csv", "tsv", "epub", "eml")


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Planted], list[Passage]]:
    """What was planted, and the passages."""
    base = tmp_path_factory.mktemp("files")
    planted = []
    for kind in KINDS:
        for at, provider in enumerate(PROVIDERS):
            data, sentences = plant(kind, at)
            address = f"{provider}/{kind}/file {at}.{kind}"
            path = base / address
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            planted += [Planted(said, address, heading, page) for said, heading, page in sentences]
    found = list(find([str(base)]))
    assert len(found) == 48
    with Parsers(2) as parsers, Spool() as spool:
        done = gather(found, parsers, spool, splitting=Splitting(SIZE), attribution=Attribution())
        passages = list(spool)
    assert (done.files, list(done.skipped), list(done.notes), list(done.empty)) == (48, [], [], [])
    assert set(done.providers) == set(PROVIDERS)
    return planted, passages


def test_every_planted_sentence_is_whole_in_one_passage_with_its_place(
    gathered: tuple[list[Planted], list[Passage]],
) -> None:
    planted, passages = gathered
    assert len(planted) >= 80
    for one in planted:
        holding = [passage for passage in passages if one.sentence in passage.text]
        assert len(holding) == 1, one
        attributes = holding[0].attributes
        assert attributes["document"] == one.address
        assert attributes["provider"] == Path(one.address).parts[0]
        assert attributes.get("heading", "") == one.heading
        assert attributes.get("page", "") == one.page


def test_parts_of_tables_answer_questions_about_cells(gathered: tuple[list[Planted], list[Passage]]) -> None:
    _, passages = gathered
    of_tables = [
        one for one in passages if Path(one.attributes["document"]).suffix in (".xlsx", ".csv", ".tsv")
    ]
    assert len(of_tables) > 12
    for one in of_tables:
        assert one.text.startswith("| kind | price | remark |\n| --- | --- | --- |\n")


def test_no_passage_is_longer_than_asked_for(gathered: tuple[list[Planted], list[Passage]]) -> None:
    _, passages = gathered
    assert max(len(f"{one.title} {one.text}".split()) for one in passages) <= SIZE

"""Citations say the place of a passage in its document, where its attributes have it."""

from __future__ import annotations

import pytest

from evenmesh.commands.screen import Screen
from evenmesh.commands.views import place, show_citations
from evenmesh.types.events import Citation, Retrieved
from evenmesh.types.passage import Passage


@pytest.mark.parametrize(
    ("attributes", "shown"),
    [
        ({"document": "a/guide.pdf", "page": "3"}, "a/guide.pdf, page 3"),
        ({"document": "a/guide.pdf", "page": "3-4"}, "a/guide.pdf, page 3-4"),
        ({"document": "a/guide.md"}, "a/guide.md"),
        ({"page": "3"}, ""),
        ({}, ""),
    ],
)
def test_a_place_is_the_document_and_the_page(attributes: dict[str, str], shown: str) -> None:
    assert place(attributes) == shown


def test_a_citation_shows_title_provider_place_and_id(capsys: pytest.CaptureFixture[str]) -> None:
    attributes = {"document": "a/g\x1b.pdf", "page": "3", "provider": "acme"}
    found = Retrieved(
        (Passage("a/g.pdf#1", "Oil it.", "Care", attributes), Passage("p2", "x")), (2.0, 1.0), "bm25", "v"
    )
    citations = [
        Citation("a/g.pdf#1", "acme", 1, 0, 3),
        Citation("p2", "", 2, None, None),
    ]
    show_citations(Screen(), citations, found)
    assert capsys.readouterr().out.splitlines() == [
        "",
        "  [1] Care  acme  a/g�.pdf, page 3  a/g.pdf#1",
        "  [2] p2  (unknown)",
    ]

"""What readers are compared with: the same text, of the same bytes."""

from __future__ import annotations

import pytest

from benchmarks import reading
from benchmarks.reading import Cost, Measured
from evenmesh_documents import Source, read


@pytest.mark.parametrize("kind", reading.KINDS)
def test_both_sides_find_the_whole_text(kind: str) -> None:
    ending, maker, bare = reading.KINDS[kind]
    content = reading.contents(2, 7)
    data = maker(content)
    sentences = [one for _, paragraphs in content for one in paragraphs]
    document = read(Source(f"a{ending}", data))
    text = " ".join(document.text.split())
    assert all(sentence in text for sentence in sentences)
    assert bare(data) >= sum(map(len, sentences))


def test_pages_are_others_for_every_document_and_the_same_for_every_run() -> None:
    first, again, other = reading.contents(1, 1), reading.contents(1, 1), reading.contents(1, 2)
    assert first == again
    assert first != other
    assert len(" ".join(first[0][1]).split()) == 350


def test_the_section_has_the_medians_of_ratios_and_the_memory_by_pages() -> None:
    kinds = {"PDF": [[Cost(1, 9), Cost(2, 9), Cost(3, 9)], [Cost(2, 9)] * 3, [Cost(4, 9)] * 3]}
    grown = {1_000: [Cost(5, 9), Cost(10, 9), Cost(20, 90.4, 70.2, 5_000)]}
    lines = reading.section(Measured(kinds, grown, 500)).splitlines()
    assert "| PDF | 250 | 250 | 1.00 | 125 | 0.50 |" in lines
    assert "| all, 1,000 pages | 200 | 100 | 0.50 | 50 | 0.25 |" in lines
    assert "| 1,000 | 5,000 | 20 | 90 MiB | 70 MiB |" in lines

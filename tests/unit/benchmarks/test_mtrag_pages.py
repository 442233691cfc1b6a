"""Pages of mtrag, put together from its passages."""

from __future__ import annotations

import pytest

from benchmarks.mtrag_pages import Place, rebuilt

PAGE = "Oil the chain.\n\nWipe it with a cloth. Then ride."


def cut(start: int, end: int, before: str = "") -> dict[str, str]:
    return {"id": f"govt:a-{start}-{end}", "text": before + PAGE[start:end]}


def test_passages_that_overlap_or_touch_are_one_part_with_their_places() -> None:
    passages = [cut(37, len(PAGE)), cut(0, 24, "Care\r\n\n"), cut(16, 37, "Care\r\n\n")]
    (part,), places = rebuilt(passages)
    assert (part.address, part.title, part.text) == ("0", "Care", PAGE)
    assert places == {
        f"govt:a-37-{len(PAGE)}": Place("0", 8, 10),
        "govt:a-0-24": Place("0", 0, 5),
        "govt:a-16-37": Place("0", 3, 8),
    }
    assert PAGE.split()[3:8] == ["Wipe", "it", "with", "a", "cloth."]


def test_a_gap_another_page_and_another_text_begin_a_part() -> None:
    gap = [cut(0, 14), cut(16, 37)]
    assert [one.text for one in rebuilt(gap)[0]] == [PAGE[:14], PAGE[16:37]]
    other = [cut(0, 24), {"id": "govt:b-16-37", "text": PAGE[16:37]}]
    assert [one.text for one in rebuilt(other)[0]] == [PAGE[:24].strip(), PAGE[16:37]]
    differs = [cut(0, 24), {"id": "govt:a-16-37", "text": PAGE[16:37].swapcase()}]
    assert len(rebuilt(differs)[0]) == 2


def test_a_passage_within_another_adds_nothing() -> None:
    (part,), places = rebuilt([cut(0, 37), cut(4, 13)])
    assert part.text == PAGE[:37]
    assert places["govt:a-4-13"] == Place("0", 1, 3)


def test_an_id_without_characters_is_refused() -> None:
    with pytest.raises(ValueError, match="does not end in its first and last character"):
        rebuilt([{"id": "govt:a", "text": "x"}])

"""Passages as rows and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.wire.errors import InvalidField
from evenmesh_retriever.backends.milvus.expressions import LARGEST, NUMBERS
from evenmesh_retriever.backends.milvus.rows import MAX_BYTES, bytes_of, check, passage_of, row_of
from evenmesh_retriever.domain import Passage


@given(st.text(min_size=1), st.text(), st.text(), st.dictionaries(st.text(), st.text(), max_size=3))
def test_a_row_holds_all_of_a_passage(one: str, title: str, text: str, attributes: dict[str, str]) -> None:
    passage = Passage(one, title, text, attributes)
    assert passage_of(row_of(passage)) == passage


def test_numbers_are_what_filters_take_for_numbers() -> None:
    attributes = {"a": "1e3", "b": " 2 ", "c": "inf", "d": "-inf", "e": "nan", "f": "x", "g": ""}
    numbers = row_of(Passage("a", "", "x", attributes))[NUMBERS]
    assert numbers == {"a": 1000.0, "b": 2.0, "c": LARGEST, "d": -LARGEST}


def test_what_is_too_large_for_milvus_is_refused_by_name() -> None:
    check("p", Passage("a", "t", "x" * (MAX_BYTES - 2)))
    with pytest.raises(
        InvalidField, match="at most 65535 bytes with the title in Milvus, has 65536"
    ) as refused:
        check("p", Passage("a", "t", "x" * (MAX_BYTES - 1)))
    assert refused.value.field == "p.text"
    with pytest.raises(InvalidField, match="as JSON") as refused:
        check("p", Passage("a", "", "x", {str(n): "y" * 1020 for n in range(64)}))
    assert refused.value.field == "p.attributes"


def test_size_is_that_of_its_texts() -> None:
    assert bytes_of(Passage("ü", "ab", "cde", {"k": "vw"})) == 2 + 2 + 3 + 1 + 2

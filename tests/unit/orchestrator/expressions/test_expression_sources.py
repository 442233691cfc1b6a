"""Sources of the settings: which can be used, and what an expression over them needs."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from evenmesh_orchestrator.expressions.notation import Group, ParametricKnowledge, Selection, Source
from evenmesh_orchestrator.expressions.parser import ExpressionError
from evenmesh_orchestrator.expressions.sources import Place, SourceCatalogue, SourceDefinition
from tests.unit.orchestrator.fakes import SOURCES


def _catalogue(**definitions: dict[str, Any]) -> SourceCatalogue:
    return SourceCatalogue({name: SourceDefinition(**one) for name, one in definitions.items()})


def test_names_are_the_sources_and_what_is_always_there() -> None:
    assert SOURCES.names == ("HB", "News", "SE", "Wiki", "WikiDense", "PK", "ReFree")
    assert SourceCatalogue().names == ("PK", "ReFree")


def test_places_are_in_the_order_in_which_they_are_named() -> None:
    resolved = SOURCES.read(" SE@RR@5 & Wiki@5 ")
    assert resolved.text == "SE@RR@5&Wiki@5"
    assert list(resolved.places.values()) == [
        Place("SE", "", "searx", "", 100),
        Place("Wiki", "wiki", "", "", 20),
    ]
    assert [one.prefix for one in resolved.places.values()] == ["web:searx/", "wiki/"]
    assert (resolved.max_passages, resolved.reranks, resolved.uses_knowledge) == (5 + 5, True, False)


def test_a_concatenation_by_name_is_what_it_stands_for() -> None:
    resolved = SOURCES.read("HB@RR@10")
    hybrid = Group(
        (Selection(Source("Wiki"), keep=2), Selection(Source("SE")), Selection(ParametricKnowledge()))
    )
    assert resolved.parsed.parts == (Selection(hybrid, True, 10),)
    assert (resolved.text, resolved.uses_knowledge, list(resolved.places)) == (
        "HB@RR@10",
        True,
        ["Wiki", "SE"],
    )


def test_depth_is_the_asks_or_the_sources_own_and_never_less_than_is_kept() -> None:
    assert [one.depth for one in SOURCES.read("News&Wiki").places.values()] == [4, 20]
    assert [one.depth for one in SOURCES.read("News@7&Wiki@RR@30&Wiki@3").places.values()] == [7, 30]
    assert [one.depth for one in SOURCES.read("News&Wiki@30", depth=10).places.values()] == [10, 30]


def test_what_can_be_sampled_has_one_kind_of_score() -> None:
    assert SOURCES.read("Wiki@10").sampled_part == Selection(Source("Wiki"), keep=10)
    assert SOURCES.read("(SE@5&Wiki)@RR@10@CP").sampled_part is not None
    for text in ("SE@5&Wiki@5", "(SE@5&Wiki@5)@3", "ReFree", "PK@2"):
        assert SOURCES.read(text).sampled_part is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "SE@5&Wikipedia@5",
            "column 6: there is no source 'Wikipedia'; there are HB, News, SE, Wiki, WikiDense, PK, ReFree",
        ),
        ("(SE@5&wiki@5)@RR@2", "column 7: there is no source 'wiki'"),
        ("SE&Wiki@5", "column 1: may give the generator 105 passages, at most 100"),
        ("Wiki@1000&SE@RR@5", "column 1: its sources return 1100 passages, at most 1000"),
        ("Wiki@", "column 5: expected"),
    ],
)
def test_what_cannot_be_run(text: str, words: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        SOURCES.read(text)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("definitions", "words"),
    [
        ({"PK": {"collection": "a"}}, "source 'PK': a name is"),
        ({"a b": {"collection": "a"}}, "source 'a b': a name is"),
        ({"A": {"all": ["B"]}}, "source A: there is no source 'B'; there are A, PK, ReFree"),
        ({"A": {"all": ["A"]}}, "source A is part of itself: A in A"),
        ({"A": {"all": ["B@3"]}, "B": {"all": ["C", "A"]}, "C": {"web": "c"}}, "source A is part of itself"),
        ({"A": {"all": ["C@0"]}, "C": {"web": "c"}}, "source A: 'C@0': column 2: @k keeps"),
        ({"A": {"all": ["C@CP"]}, "C": {"web": "c"}}, "source A: 'C@CP': column 2: expected"),
        ({"A": {"all": ["ReFree"]}}, "source A: 'ReFree': column 1: ReFree has no"),
        (
            {f"S{level}": {"all": [f"S{level - 1}@1"] * 16} for level in range(1, 8)} | {"S0": {"web": "c"}},
            "source S3: has 4096 lists with those of its parts, at most 256",
        ),
    ],
)
def test_sources_that_cannot_be_used(definitions: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"^{words}"):
        _catalogue(**definitions)


def test_lists_of_named_concatenations_count() -> None:
    sources = _catalogue(A={"web": "c", "depth": 1}, B={"all": ["A"] * 16}, C={"all": ["B@1"] * 8})
    assert sources.read("C@1&C@1").max_passages == 2  # of 128 lists each
    with pytest.raises(ExpressionError, match=r"^column 1: has 258 lists with those of its sources"):
        sources.read("C@1&(C@1&A)@1")


@pytest.mark.parametrize(
    "definition",
    [
        {},
        {"collection": "a", "web": "b"},
        {"all": []},
        {"all": ["A"], "depth": 3},
        {"all": ["A"], "retriever": "bm25"},
        {"collection": "No Such"},
        {"collection": "a", "depth": 0},
        {"collection": "a", "depth": 1001},
        {"colection": "a"},
    ],
)
def test_definitions_that_say_nothing_or_too_much(definition: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SourceDefinition(**definition)

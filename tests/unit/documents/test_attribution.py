"""Who provides a passage, and its other attributes."""

from __future__ import annotations

import pytest

from evenmesh.types.passage import Passage
from evenmesh.wire import checks
from evenmesh_documents import Block, Document, Kind, Splitting, split, tables
from evenmesh_documents.attribution import Attribution, Rule


def document(address: str = "acme/2026/chains.md", **stated: str) -> Document:
    block = Block(Kind.PARAGRAPH, "Oil the chain.", ("Chains", "Care"), 3, 4)
    return Document(address, (block,), author="A. Rider", date="2026-11-02", attributes=stated)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("folder", "acme"),
        ("domain", "shop.example"),
        ("field:publisher", "Press"),
        ("field:author", "A. Rider"),
        ("field:none", ""),
        (r"pattern:/(\d{4})/", "2026"),
        ("pattern:(x)", ""),
        ("value:handbook: one", "handbook: one"),
    ],
)
def test_a_rule_finds_its_value(rule: str, value: str) -> None:
    one = document(url="https://www.shop.example/chains", publisher="Press")
    (chunk,) = split(one)
    assert Rule.parse(rule).value(one, chunk) == value
    assert str(Rule.parse(rule)) == rule


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("nonsense", "must be folder, domain, field:NAME"),
        ("field", "must be folder"),
        ("folder:x", "must be folder"),
        ("pattern:(", "is not a regular expression"),
        ("pattern:x", "must have one group, has 0"),
    ],
)
def test_what_is_no_rule_is_refused(rule: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        Rule.parse(rule)


@pytest.mark.parametrize(
    ("stated", "address", "provider", "rule"),
    [
        ({"provider": "Own", "url": "https://shop.example/"}, "acme/a.md", "Own", "field:provider"),
        ({"url": "https://shop.example/"}, "acme/a.md", "shop.example", "domain"),
        ({}, "https://www.site.example/a.md", "site.example", "domain"),
        ({"url": "http://[bad"}, "acme/a.md", "acme", "folder"),
        ({}, "all.zip/acme/a.md", "acme", "folder"),
        ({}, "acme/all.zip/zeta/a.md", "acme", "folder"),
        ({}, "all.zip/a.md", "", ""),
        ({}, "a.md", "", ""),
    ],
)
def test_the_front_matter_counts_before_the_site_and_the_site_before_the_folder(
    stated: dict[str, str], address: str, provider: str, rule: str
) -> None:
    one = document(address, **stated)
    assert Attribution().provider_of(one, split(one)[0]) == (provider, rule)


def test_attributes_say_the_place_the_provider_and_what_the_document_states() -> None:
    one = document(**{"tags": "a", "page": "never", "author": "never"})
    attribution = Attribution(
        others=(("year", Rule.parse(r"pattern:/(\d{4})/")),), base_url="https://d.example/"
    )
    assert attribution.attributes(one, split(one)[0], "acme") == {
        "document": "https://d.example/acme/2026/chains.md",
        "page": "3-4",
        "heading": "Chains › Care",
        "span": "0-14",
        "provider": "acme",
        "year": "2026",
        "author": "A. Rider",
        "date": "2026-11-02",
        "tags": "a",
    }


def test_attributes_are_within_the_bounds_of_a_mesh() -> None:
    stated = {f"n{at}\n": "ä\x00" * 2_000 for at in range(100)} | {"x" * 1_024: "long name"}
    one = document("ü" * 2_000 + ".md", **stated)
    (chunk,) = split(one)
    attributes = Attribution().attributes(one, chunk, "")
    checks.passage("passage", Passage(chunk.id, chunk.text, chunk.title, attributes))
    assert len(attributes) == 64


def test_a_column_names_the_provider_of_each_row() -> None:
    text = tables.markdown([["shop", "price"], ["Acme", "1"], ["Zeta", "2"], ["", "3"]])
    one = Document("prices.csv", (Block(Kind.TABLE, text),))
    attribution = Attribution((Rule.parse("column:shop"),))
    chunks = split(one, Splitting(apart=attribution.column))
    assert [attribution.provider_of(one, chunk)[0] for chunk in chunks] == ["Acme", "Zeta", ""]


def test_rules_that_contradict_each_other_are_refused() -> None:
    columns = (Rule.parse("column:a"),), (("x", Rule.parse("column:b")),)
    with pytest.raises(ValueError, match="one column, not by a, b"):
        Attribution(*columns)
    with pytest.raises(ValueError, match="'span' is set already"):
        Attribution(others=(("span", Rule.parse("folder")),))

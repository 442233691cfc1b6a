"""The documented rules of the analyzers, one by one."""

import random
import sys
import tracemalloc
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest

from evenmesh.wire.errors import InvalidField
from evenmesh_retriever.analyzer import (
    ANALYZERS,
    EnglishAnalyzer,
    UnicodeWordAnalyzer,
    WhitespaceAnalyzer,
    analyzer,
)

ANALYZER = UnicodeWordAnalyzer()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The cat, the CAT!", ["the", "cat", "the", "cat"]),
        ("don't stop_me now-or-never", ["don", "t", "stop", "me", "now", "or", "never"]),
        ("B12 and 3.14", ["b12", "and", "3", "14"]),
        ("", []),
        (" \t\n…!?", []),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("ﬁne FINE", ["fine", "fine"]),
        ("x² ½", ["x2", "1", "2"]),
        ("naïve nai\u0308ve", ["naïve", "naïve"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("東京タワー へ", ["東京タワー", "へ"]),
        ("ＡＢＣ snake_case", ["abc", "snake", "case"]),
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert ANALYZER.tokens(text) == tokens


ACUTE, GRAVE_BELOW = "\u0301", "\u0316"
"""Marks of which normalization puts the second, if there are both, before the first."""


def moves(text: str) -> int:
    """Return how many times normalization of a text exchanges two marks: it inserts them one by one."""
    made, row = 0, list[int]()
    for one in "".join(unicodedata.normalize("NFKD", one) for one in text):
        if mark := unicodedata.combining(one):
            made += sum(other > mark for other in row)
            row.append(mark)
        else:
            row.clear()
    return made


@pytest.mark.parametrize(
    "text",
    [
        "a" + ACUTE * 200 + GRAVE_BELOW * 200,
        "\u0f73" * 200,  # no mark itself, but two marks of different classes
        "\uff9e" + (ACUTE + GRAVE_BELOW) * 200,
        GRAVE_BELOW * 200 + "\U0001d165" * 200,
        ("\U0001f600" + ACUTE * 300 + GRAVE_BELOW * 300) * 3,
    ],
    ids=["marks", "two marks in one", "marks in disguise", "marks beyond 16 bits", "several rows"],
)
def test_the_time_of_marks_in_disorder_is_linear(text: str) -> None:
    assert moves(text) > 40 * len(text)
    assert moves(ANALYZER.with_marks_in_order(text)) <= 40 * len(text)


def test_marks_in_any_order_give_the_tokens_of_unicode_s_normalization() -> None:
    draw = random.Random(20_261_202)
    signs = [chr(code) for code in range(sys.maxunicode + 1)]
    marks = [one for one in signs if unicodedata.combining(one)] + ["\u0f73", "\uff9e"]
    others = [one for one in signs if unicodedata.decomposition(one)]
    for _ in range(500):
        kinds = draw.choice([marks, others, marks + 200 * ["a", "é", "\u1f82", "\U0001f600", " "]])
        text = "".join(draw.choices(kinds, k=draw.choice([3, 33, 34, 200])))
        normal = unicodedata.normalize("NFKC", ANALYZER.with_marks_in_order(text))
        assert normal == unicodedata.normalize("NFKC", text)


def test_stems_of_long_words_are_not_kept() -> None:
    """A thread keeps stems of 1,000 words: of 64 KiB each they would take 128 MB."""
    stemmed = EnglishAnalyzer()
    assert stemmed.tokens("running " + "a" * 50_000 + "ing") == ["run", "a" * 50_000]
    tracemalloc.start()
    try:
        for number in range(200):
            stemmed.tokens(f"{number}" + "z" * 50_000)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


def test_ascii_takes_the_same_path_in_the_end() -> None:
    text = "Plain ASCII_text, with 2 numbers: 10x."
    assert ANALYZER.tokens(text + " é")[:-1] == ANALYZER.tokens(text)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The cat, the CAT!", ["The", "cat,", "the", "CAT!"]),
        ("  two\t\nlines  ", ["two", "lines"]),
        ("non\u00a0breaking", ["non", "breaking"]),
        ("", []),
    ],
)
def test_whitespace_changes_nothing(text: str, tokens: list[str]) -> None:
    assert WhitespaceAnalyzer().tokens(text) == tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Running RUNS ran", ["run", "run", "ran"]),
        ("the generalization of generators", ["the", "general", "of", "generat"]),
        ("naïve cafés, 12 ponies", ["naïv", "café", "12", "poni"]),
        ("東京 хлеб", ["東京", "хлеб"]),
        ("", []),
    ],
)
def test_english_stems_and_stops_nothing(text: str, tokens: list[str]) -> None:
    assert EnglishAnalyzer().tokens(text) == tokens


@pytest.mark.slow
def test_threads_stem_alike() -> None:
    english = EnglishAnalyzer()
    texts = [f"walking {word}ing talks{number}" for number in range(200) for word in ("jump", "row")]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(english.tokens, texts)) == [EnglishAnalyzer().tokens(text) for text in texts]


def test_analyzers_by_the_names_people_give_and_manifests_record() -> None:
    recorded = {name: analyzer(name).name for name in ANALYZERS}
    assert recorded == {
        "unicode": "unicode-word-1",
        "whitespace": "whitespace-1",
        "english": "english-snowball-1",
    }
    assert {analyzer(name).name for name in recorded.values()} == set(recorded.values())
    assert analyzer("").name == recorded["english"]
    with pytest.raises(InvalidField, match="must be one of unicode, whitespace, english, got 'german'") as no:
        analyzer("german", "lexical.analyzer")
    assert no.value.field == "lexical.analyzer"

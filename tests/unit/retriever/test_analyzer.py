"""The documented rules of the analyzers, one by one."""

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

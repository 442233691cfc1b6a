"""The documented rules of the analyzer, one by one."""

import pytest

from services.retriever.analyzer import UnicodeWordAnalyzer

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


def test_the_name_is_what_manifests_record() -> None:
    assert ANALYZER.name == "unicode-word-1"

"""The examples of docs/science/metrics.md give what the page says, section by section."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "science" / "metrics.md"
# Fences would count as expected output; blank lines in their place keep the line numbers.
TEXT = re.sub(r"^```\w*$", "", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
STARTS = [match.start() for match in re.finditer(r"^## ", TEXT, flags=re.MULTILINE)]
SECTIONS = {
    TEXT[start:].split("\n", 1)[0].removeprefix("## "): (TEXT.count("\n", 0, start), TEXT[start:end])
    for start, end in zip(STARTS, [*STARTS[1:], len(TEXT)], strict=True)
}
TESTED = "How the tests were tested"
METRICS = [name for name in SECTIONS if name != TESTED]


@pytest.mark.parametrize("name", METRICS)
def test_a_section_computes_what_it_says(name):
    line, text = SECTIONS[name]
    section = doctest.DocTestParser().get_doctest(text, {}, name, str(PAGE), line)
    assert section.examples, "a metric without a worked example"
    said: list[str] = []
    outcome = doctest.DocTestRunner().run(section, out=said.append)
    assert outcome.failed == 0, "".join(said)


@pytest.mark.parametrize("name", METRICS)
def test_a_section_says_where_it_comes_from_and_what_was_chosen(name):
    _, text = SECTIONS[name]
    for part in ("*Source:*", "*Choice:*", "*Pitfall:*"):
        assert part in text


def test_the_tests_named_in_the_mutation_table_exist():
    named = set(re.findall(r"\| `(test_\w+)` \|$", SECTIONS[TESTED][1], flags=re.MULTILINE))
    sources = (ROOT / "tests" / "unit" / "core").rglob("test_*.py")
    written = {
        name for path in sources for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.M)
    }
    assert named
    assert named <= written

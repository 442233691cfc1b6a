"""What a passage, a question or a turn says is put into a prompt, and never becomes a part of the template."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_generator.domain import Passage, Turn
from evenmesh_generator.prompts import Scope, Template, TemplateLibrary

LIBRARY = TemplateLibrary.bundled()
SYNTAX = (
    "{{ 7 * 7 }}",
    "{% for x in range(9) %}x{% endfor %}",
    "{# gone #}",
    "{{ documents }}{{ question.__class__.__mro__ }}",
    "{% include 'a' %}{% raw %}",
    "# for x in y",
    "${7 * 7} <%= 7 %> %(question)s {question} {0}",
)
# One character each that no text of the papers holds.
QUESTION, TITLE, TEXT, ASKED, SAID = "\ue000\ue001\ue002\ue003\ue004"


def rendered(template: Template, question: str, title: str, text: str, asked: str, said: str) -> str:
    return template.render(question, [Passage("p", title, text)], [Turn(asked, said)])


def expected(template: Template, question: str, title: str, text: str, asked: str, said: str) -> str:
    """The prompt of marks, each then exchanged for what it stands for."""
    shown = rendered(template, QUESTION, TITLE, TEXT, ASKED, SAID)
    reported = {QUESTION: question, TITLE: title, TEXT: text, ASKED: asked, SAID: said}
    return "".join(reported.get(character, character) for character in shown)


# LaMP-1's looks for the word "title" in the question, behind which its authors put the profile.
NAMES = [name for name in LIBRARY.names if not name.startswith("lamp-1")]


@pytest.mark.parametrize("name", NAMES)
def test_template_syntax_stays_as_it_was_written(name: str) -> None:
    template = LIBRARY.get(name)
    for syntax in SYNTAX:
        said = [f"{place} {syntax}" for place in ("q", "t", "x", "a", "s")]
        prompt = rendered(template, *said)
        assert prompt == expected(template, *said)
        assert syntax in prompt


def test_that_of_lamp_1_too() -> None:
    template = LIBRARY.get("lamp-1")
    for syntax in SYNTAX:
        prompt = template.render(f"which {syntax}", [Passage("p", f"t {syntax}", "x")])
        assert prompt == f'"t {syntax}". which {syntax}'


@given(*(st.text(min_size=1) for _ in range(5)))
def test_any_text_is_put_in_as_it_is(question: str, title: str, text: str, asked: str, said: str) -> None:
    for name in NAMES:
        template = LIBRARY.get(name)
        assert rendered(template, question, title, text, asked, said) == expected(
            template, question, title, text, asked, said
        )


def test_a_passage_has_no_place_in_a_prompt_that_holds_none() -> None:
    for name in LIBRARY.names:
        template = LIBRARY.get(name)
        shown = rendered(template, QUESTION, TITLE, TEXT, ASKED, SAID)
        assert (TEXT in shown or TITLE in shown) is (template.scope is not Scope.NO_PASSAGE)
        assert (ASKED in shown) is template.shows_turns

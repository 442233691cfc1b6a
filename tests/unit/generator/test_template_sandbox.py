"""Templates that attack the process, or its memory and time."""

from __future__ import annotations

import pytest

from evenmesh.wire.errors import InvalidField
from evenmesh_generator import template_sandbox
from evenmesh_generator.domain import Passage
from evenmesh_generator.prompts import TemplateError, TemplateLibrary


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }} {{ question }}",
        "{{ question.__class__ }}",
        "{{ question.__init__.__globals__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ document.__init__.__globals__['enum'] }}",
        "{{ '{0.__class__}'.format(question) }}",
        "{{ turns.append(1) }} {{ question }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{% for a in range(100000000) %}x{% endfor %}{{ question }}",
        "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in turns recursive %}{{ loop(turns) }}{% endfor %}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'x' * 1000000000 }}",
        "{{ [0] * 1000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 'x'|center(1000000000) }}",
        "{{ lipsum(n=1000000) }}",
        "{% include 'other' %}",
        "{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}{{ question }}",
        "{% set a %}{{ question }}{% endset %}{{ a }}",
        "{% set a = [question, question] %}{{ a }}",
        "{{ {'a': question} }}",
        "{% set a = 'x' %}" + "{% set a = a ~ a %}" * 60 + "{{ question }}",
        "{% set a = 'x' %}" + "{% set a = a + a %}" * 60 + "{{ question }}",
    ],
)
def test_an_attack_is_refused_when_templates_are_read(text: str) -> None:
    with pytest.raises(TemplateError, match=r"attack\.v1\.txt"):
        TemplateLibrary({"attack.v1.txt": text})


def test_a_prompt_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "{% for one in documents %}{% for two in documents %}{{ one }}{{ two }}{% endfor %}{% endfor %}"
    template = TemplateLibrary({"square.v1.txt": text}).get("square")
    passages = [Passage(str(at), "", "x" * 10) for at in range(10)]
    assert len(template.render("q", passages)) == 2000
    monkeypatch.setattr(template_sandbox, "MOST_CHARACTERS", 1999)
    with pytest.raises(InvalidField, match="longer than 1999 characters") as refused:
        template.render("q", passages)
    assert refused.value.field == "template"


def test_loops_over_what_is_sent_are_bounded() -> None:
    text = (
        "{{ question }}{% for one in document.text %}{% for two in document.text %}{% endfor %}{% endfor %}"
    )
    template = TemplateLibrary({"square.v1.txt": text}).get("square")
    assert template.render("q", [Passage("a", "", "x" * 300)]) == "q"
    with pytest.raises(InvalidField, match="loops have more than 100000 steps") as refused:
        template.render("q", [Passage("a", "", "x" * 320)])  # 320 and 320 x 320
    assert refused.value.field == "template"
    assert template.render("q", [Passage("a", "", "x" * 300)]) == "q"  # each prompt has its own


def test_what_prompts_need_works() -> None:
    text = (
        "{% for one in documents %}[{{ loop.index }}] {{ one.title|upper }} {{ one.text.strip() }}\n{% endfor %}"
        "{{ question|trim }} {{ 2 * documents|length }} {{ 'last' if turns else 'alone' }}"
        "{% set names = documents[0].title ~ ', ' ~ question + '!' %} {{ names }} {{ [1, 2]|join('-') }}"
        "{% for one in documents if one.title %}{{ loop.length }}{% endfor %}"
    )
    template = TemplateLibrary({"fine.v1.txt": text}).get("fine")
    passages = [Passage("a", "t", " one "), Passage("b", "u", "two")]
    assert template.render(" q ", passages) == "[1] T one\n[2] U two\nq 4 alone t,  q ! 1-222"

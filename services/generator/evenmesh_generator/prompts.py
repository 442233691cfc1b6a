"""Prompt templates: Jinja files, one prompt each, versioned by name; a model renders and truncates with them.

A template may use ``question``, ``turns`` (earlier ``question``/``answer`` pairs of a conversation), and
either ``documents`` (all passages in one prompt) or ``document`` (one prompt per passage); a document prints
as its title and text joined by a space, as "the document title is concatenated with each passage" (Salemi and
Zamani, 2025, section 5.1), and has ``title`` and ``text``. docs/guides/prompts.md lists
those of the papers and explains how to write your own.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Self

import jinja2
from jinja2 import meta

from evenmesh.wire.errors import InvalidField, NotFound
from evenmesh_generator.domain import Augmentation, Passage, Turn
from evenmesh_generator.template_sandbox import TemplateSandbox, rendered

_SUFFIX = ".txt"
_FILE = re.compile(r"(?P<name>[a-z0-9][a-z0-9-]*)\.v(?P<version>[0-9]+)\.txt")


class Scope(enum.Enum):
    """What one prompt of a template holds."""

    ALL_PASSAGES = "all passages"
    ONE_PASSAGE = "one passage"
    NO_PASSAGE = "no passage"


SCOPE_OF = {
    Augmentation.IN_PROMPT: Scope.ALL_PASSAGES,
    Augmentation.FUSION_IN_DECODER: Scope.ONE_PASSAGE,
    Augmentation.RETRIEVAL_FREE: Scope.NO_PASSAGE,
}
"""What a prompt of each augmentation holds."""


class TemplateError(ValueError):
    """A template cannot be used; the message is one line that names its file."""


@dataclass(frozen=True, slots=True)
class Document:
    """A passage inside a template."""

    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.title} {self.text}" if self.title and self.text else self.title or self.text


@dataclass(frozen=True)
class Template:
    """A prompt with places for the question and for passages.

    ``name`` without and ``version`` as in its file's name, ``ra-x.v1.txt``; ``shows_turns``: whether earlier
    turns of a conversation have a place in it.
    """

    name: str
    version: int
    scope: Scope
    shows_turns: bool
    _template: jinja2.Template

    def render(self, question: str, passages: Sequence[Passage] = (), turns: Sequence[Turn] = ()) -> str:
        """Return the prompt; a ONE_PASSAGE template takes exactly one passage.

        Raises:
            InvalidField: field ``template``; it needs what the request lacks, such as a first turn, or
                does what a template may not.
        """
        documents = [Document(p.title, p.text) for p in passages]
        values: dict[str, object] = {"question": question, "turns": turns}
        match self.scope:
            case Scope.ALL_PASSAGES:
                values["documents"] = documents
            case Scope.ONE_PASSAGE:
                (values["document"],) = documents
            case Scope.NO_PASSAGE:
                pass
        try:
            return rendered(self._template, values)
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            words = f"{self.name!r} cannot be rendered for this request: {error}"
            raise InvalidField("template", words) from None


class TemplateLibrary:
    """Templates by name: ``ra-x`` is the newest version, ``ra-x.v1`` that one.

    Args:
        sources: text of each template by file name, such as ``ra-x.v1.txt``.

    Raises:
        TemplateError: a name or a template is malformed.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        environment = TemplateSandbox()
        self._templates: dict[str, Template] = {}
        for file_name, text in sources.items():
            template = _compiled(environment, file_name, text)
            self._templates[f"{template.name}.v{template.version}"] = template
            newest = self._templates.get(template.name)
            if newest is None or newest.version < template.version:
                self._templates[template.name] = template

    @classmethod
    def bundled(cls) -> Self:
        """Return the papers' templates, from this package."""
        return cls(_bundled_sources())

    @classmethod
    def with_folder(cls, folder: Path) -> Self:
        """Return the papers' templates and every ``*.txt`` of a folder.

        A higher version of one of the papers' names is what the name without version means from then on, also
        where a model uses it by default.

        Raises:
            TemplateError: the folder cannot be read, a file is no template, or is a version that the papers'
                already are.
        """
        sources = _bundled_sources()
        try:
            files = sorted(path for path in folder.iterdir() if path.suffix == _SUFFIX)
        except OSError as error:
            raise TemplateError(f"{folder}: {error.strerror}") from None
        for path in files:
            if path.name in sources:
                raise TemplateError(f"{path}: there is a {path.name} already; raise the version in its name")
            try:
                sources[path.name] = path.read_text(encoding="utf-8")
            except OSError as error:
                raise TemplateError(f"{path}: {error.strerror}") from None
            except UnicodeDecodeError as error:
                raise TemplateError(f"{path}: not UTF-8 at byte {error.start}") from None
        return cls(sources)

    @property
    def names(self) -> tuple[str, ...]:
        """Return every name that can be asked for, sorted."""
        return tuple(sorted(self._templates))

    def get(self, name: str) -> Template:
        """Return the template of that name.

        Raises:
            NotFound: field ``template``; there is none.
        """
        try:
            return self._templates[name]
        except KeyError:
            raise NotFound("template", f"no template {name!r}; there are {', '.join(self.names)}") from None

    def suiting(self, name: str, augmentation: Augmentation, *, turns: bool = False) -> Template:
        """Return the template of that name, checked for ``augmentation``, and for ``turns`` if there are any.

        Raises:
            NotFound: there is none.
            InvalidField: field ``template`` if it holds other than what the augmentation hands over; field
                ``turns`` if it has no place for them.
        """
        return self._checked(name, SCOPE_OF[augmentation], augmentation.value, turns)

    def judging(self, name: str, *, turns: bool = False) -> Template:
        """Return the template of that name, checked for judging, and for ``turns`` if there are any.

        Raises:
            NotFound: there is none.
            InvalidField: field ``template`` if it does not hold one passage; field ``turns`` if it has no
                place for them.
        """
        return self._checked(name, Scope.ONE_PASSAGE, "a judgement", turns)

    def _checked(self, name: str, wanted: Scope, purpose: str, turns: bool) -> Template:
        template = self.get(name)
        if template.scope is not wanted:
            raise InvalidField(
                "template", f"{name!r} holds {template.scope.value}; {purpose} needs {wanted.value}"
            )
        if turns and not template.shows_turns:
            raise InvalidField("turns", f"template {name!r} has no place for earlier turns")
        return template


def _bundled_sources() -> dict[str, str]:
    folder: Traversable = resources.files("evenmesh_generator") / "templates"
    return {f.name: f.read_text(encoding="utf-8") for f in folder.iterdir() if f.name.endswith(_SUFFIX)}


def _compiled(environment: TemplateSandbox, file_name: str, text: str) -> Template:
    match = _FILE.fullmatch(file_name)
    if match is None:
        raise TemplateError(f"{file_name}: a template's name is like ra-x.v1.txt")
    try:
        used = meta.find_undeclared_variables(environment.parse(text))
        compiled = environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"{file_name}: line {error.lineno}: {error}") from None
    unknown = used - {"question", "turns", "documents", "document"}
    if unknown or {"documents", "document"} <= used:
        raise TemplateError(f"{file_name}: {sorted(unknown) or 'document and documents'} cannot be used")
    scope = Scope.NO_PASSAGE
    if "documents" in used:
        scope = Scope.ALL_PASSAGES
    elif "document" in used:
        scope = Scope.ONE_PASSAGE
    template = Template(match["name"], int(match["version"]), scope, "turns" in used, compiled)
    try:
        template.render("question", [Passage("", "title", "text")], [Turn("question", "answer")])
    except Exception as error:  # a template is a program, and may fail like one
        raise TemplateError(f"{file_name}: {error}") from error
    return template


def most_passages(passages: Sequence[Passage], fits: Callable[[Sequence[Passage]], bool]) -> int:
    """Return how many passages, from the first, fit: the largest n in [0, len] with ``fits(passages[:n])``.

    ``fits`` must not become true again with more passages.
    """
    if fits(passages):
        return len(passages)
    return most(len(passages), lambda count: fits(passages[:count]))


def cut_to_fit(passage: Passage, fits: Callable[[Passage], bool]) -> Passage | None:
    """Return the passage with its text cut after as many words as fit; None if no word fits."""
    ends = [match.end() for match in re.finditer(r"\S+", passage.text)]
    count = most(
        len(ends), lambda words: fits(Passage(passage.id, passage.title, passage.text[: ends[words - 1]]))
    )
    return Passage(passage.id, passage.title, passage.text[: ends[count - 1]]) if count else None


def most(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest count in [0, limit] that fits; ``fits`` must not become true again with more.

    Steps double from 1, then halve: no count above twice the result is tried, however large the limit is,
    except 1.
    """
    low, high = 0, 1  # `low` fits
    while high <= limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)  # `high` does not fit
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low

"""Prompt templates: Jinja files, one prompt each, versioned by name; a model renders and truncates with them.

A template may use ``question``, ``turns`` (earlier ``question``/``answer`` pairs of a conversation), and
either ``documents`` (all passages in one prompt) or ``document`` (one prompt per passage); a document prints
as its title and text joined by a space, as "the document title is concatenated with each passage" (Salemi and
Zamani, iterative utility maximisation, section 5.1), and has ``title`` and ``text``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Self

import jinja2
from jinja2 import meta

from meshkit.errors import InvalidField, NotFound
from services.generator.domain import Augmentation, Passage

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


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier turn of a conversation."""

    question: str
    answer: str


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

    ``name`` without and ``version`` as in its file's name, ``ra-x.v1.txt``.
    """

    name: str
    version: int
    scope: Scope
    _template: jinja2.Template

    def render(self, question: str, passages: Sequence[Passage] = (), turns: Sequence[Turn] = ()) -> str:
        """The prompt; of a ONE_PASSAGE template with exactly one passage."""
        documents = [Document(p.title, p.text) for p in passages]
        values: dict[str, object] = {"question": question, "turns": turns}
        match self.scope:
            case Scope.ALL_PASSAGES:
                values["documents"] = documents
            case Scope.ONE_PASSAGE:
                (values["document"],) = documents
            case Scope.NO_PASSAGE:
                pass
        return self._template.render(values)


class TemplateLibrary:
    """Templates by name: ``ra-x`` is the newest version, ``ra-x.v1`` that one.

    Args:
        sources: text of each template by file name, such as ``ra-x.v1.txt``.

    Raises:
        ValueError: a name or a template is malformed.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        # Prompts are plain text for a model: escaping would change them, and passages are values only.
        environment = jinja2.Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
            autoescape=False,  # noqa: S701
        )
        self._templates: dict[str, Template] = {}
        for file_name, text in sources.items():
            match = _FILE.fullmatch(file_name)
            if match is None:
                raise ValueError(f"{file_name}: a template's name is like ra-x.v1.txt")
            try:
                used = meta.find_undeclared_variables(environment.parse(text))
                compiled = environment.from_string(text)
            except jinja2.TemplateSyntaxError as error:
                raise ValueError(f"{file_name}: {error}") from None
            unknown = used - {"question", "turns", "documents", "document"}
            if unknown or {"documents", "document"} <= used:
                raise ValueError(f"{file_name}: {sorted(unknown) or 'document and documents'} cannot be used")
            scope = (
                Scope.ALL_PASSAGES
                if "documents" in used
                else Scope.ONE_PASSAGE
                if "document" in used
                else Scope.NO_PASSAGE
            )
            name, version = match["name"], int(match["version"])
            template = Template(name, version, scope, compiled)
            self._templates[f"{name}.v{version}"] = template
            newest = self._templates.get(name)
            if newest is None or newest.version < version:
                self._templates[name] = template

    @classmethod
    def bundled(cls) -> Self:
        """The papers' templates, from this package."""
        folder: Traversable = resources.files("services.generator") / "templates"
        return cls(
            {f.name: f.read_text(encoding="utf-8") for f in folder.iterdir() if f.name.endswith(".txt")}
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that can be asked for, sorted."""
        return tuple(sorted(self._templates))

    def get(self, name: str) -> Template:
        """The template of that name.

        Raises:
            NotFound: field ``template``; there is none.
        """
        try:
            return self._templates[name]
        except KeyError:
            raise NotFound("template", f"no template {name!r}; there are {', '.join(self.names)}") from None

    def suiting(self, name: str, augmentation: Augmentation) -> Template:
        """The template of that name, if it can be used for ``augmentation``.

        Raises:
            NotFound: there is none.
            InvalidField: field ``template``; it holds other than what the augmentation hands over.
        """
        template = self.get(name)
        wanted = SCOPE_OF[augmentation]
        if template.scope is not wanted:
            raise InvalidField(
                "template",
                f"{name!r} holds {template.scope.value}; {augmentation.value} needs {wanted.value}",
            )
        return template


def most_passages(passages: Sequence[Passage], fits: Callable[[Sequence[Passage]], bool]) -> int:
    """How many passages, from the first, fit: the largest n in [0, len] with ``fits(passages[:n])``.

    ``fits`` must not become true again with more passages.
    """
    if fits(passages):
        return len(passages)
    low, high = 0, len(passages)  # passages[:low] fits (or is empty), passages[:high] does not
    while high - low > 1:
        middle = (low + high) // 2
        if fits(passages[:middle]):
            low = middle
        else:
            high = middle
    return low


def cut_to_fit(passage: Passage, fits: Callable[[Passage], bool]) -> Passage | None:
    """The passage with its text cut after as many words as fit; None when none of its words do."""
    ends = [match.end() for match in re.finditer(r"\S+", passage.text)]
    low, high = 0, len(ends) + 1  # cutting after `high` words does not fit
    while high - low > 1:
        middle = (low + high) // 2
        if fits(Passage(passage.id, passage.title, passage.text[: ends[middle - 1]])):
            low = middle
        else:
            high = middle
    return Passage(passage.id, passage.title, passage.text[: ends[low - 1]]) if low else None

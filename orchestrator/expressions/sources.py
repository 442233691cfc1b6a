"""The sources that expressions name, as the settings define them, and what an expression needs of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from orchestrator.expressions.notation import (
    RESERVED,
    Expression,
    Group,
    ParametricKnowledge,
    Selection,
    Source,
)
from orchestrator.expressions.parser import ExpressionError, parse, parse_selection

MAX_CONTEXT: Final = 100
"""Most passages that a generator is given."""
MAX_POOL: Final = 1000
"""Most passages that the sources of one expression bring together."""
COLLECTION_DEPTH: Final = 20
"""Passages asked of a collection unless told otherwise: the paper's number for hybrids (appendix C.1)."""
WEB_DEPTH: Final = 100
"""Most passages taken of a web search unless told otherwise."""
KNOWLEDGE_DEPTH: Final = 10
"""Most passages that the document of ``PK`` is cut into."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class SourceDefinition(BaseModel):
    """One source of the settings: a collection, a web search of the retriever, or others concatenated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    collection: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
    """Name of a collection."""
    web: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
    """Name of a web-search source of the retriever."""
    all: tuple[str, ...] | None = Field(default=None, min_length=1, max_length=16)
    """Parts of a concatenation in the notation, such as ``Wiki@20``."""
    retriever: str = Field(default="", max_length=128)
    """Retriever by name; empty for the retriever's default, or for the order of the web search."""
    depth: int | None = Field(default=None, ge=1, le=MAX_POOL)
    """Passages asked of it, [1, 1000]; 20 of a collection and 100 of a web search unless told."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if sum(one is not None for one in (self.collection, self.web, self.all)) != 1:
            raise ValueError("must have exactly one of collection, web and all")
        if self.all is not None and (self.retriever or self.depth is not None):
            raise ValueError("has all, whose parts have retriever and depth of their own")
        return self


@dataclass(frozen=True, slots=True)
class Place:
    """Where the passages of a source come from; either ``collection`` or ``web`` is empty.

    ``depth`` is how many are asked for, [1, 1000].
    """

    source: str
    collection: str
    web: str
    retriever: str
    depth: int

    @property
    def prefix(self) -> str:
        """What stands before the ids of its passages, so that ids of two places never meet."""
        return f"{self.collection}/" if self.collection else f"web:{self.web}/"


@dataclass(frozen=True, slots=True)
class Recipe:
    """An expression and what it is made of.

    Attributes:
        text: the expression as it was meant, without blanks.
        expression: the same with concatenations in the place of their names.
        places: of every source in it, by name, in the order they are first named.
        uses_knowledge: whether ``PK`` is one of its sources.
        most: most passages that it can give the generator, [0, 100].
    """

    text: str
    expression: Expression
    places: Mapping[str, Place]
    uses_knowledge: bool
    most: int

    @property
    def reranks(self) -> bool:
        """Whether anything in it is reranked."""
        return any(selection.reranked for selection in _selections(self.expression.parts))

    @property
    def sampled_part(self) -> Selection | None:
        """The one list with one kind of score, over which rankings can be drawn; None where there is none.

        A concatenation that is not reranked has scores of several kinds, which cannot be compared.
        """
        if len(self.expression.parts) != 1:
            return None
        (part,) = self.expression.parts
        return part if part.reranked or isinstance(part.origin, Source) else None


class Catalogue:
    """The sources there are.

    Args:
        definitions: by name.

    Raises:
        ValueError: a name that cannot be used, a concatenation that names what there is not, itself, or more
            than 1,000 passages. The message names the source.
    """

    def __init__(self, definitions: Mapping[str, SourceDefinition] | None = None) -> None:
        self._places: dict[str, Place] = {}
        self._groups: dict[str, tuple[Selection, ...]] = {}
        for name, definition in (definitions or {}).items():
            if not _NAME.fullmatch(name) or name in RESERVED:
                raise ValueError(
                    f"source {name!r}: a name is 1 to 64 of A-Z, a-z, 0-9, '-' and '_', first a letter, and "
                    f"not {' or '.join(sorted(RESERVED))}"
                )
            if definition.all is None:
                self._places[name] = _place(name, definition)
            else:
                self._groups[name] = tuple(_part(name, text) for text in definition.all)
        for name in self._groups:
            self._check(name, ())

    @property
    def names(self) -> tuple[str, ...]:
        """What an expression can name, ``PK`` and ``ReFree`` last."""
        return (*sorted((*self._places, *self._groups)), *sorted(RESERVED))

    def read(self, text: str, *, depth: int | None = None) -> Recipe:
        """What an expression needs.

        Args:
            text: the expression.
            depth: passages asked of each source, [1, 1000]; None for the source's own number.

        Raises:
            ExpressionError: it is not in the notation, names a source that there is not, or may give more
                than 100 passages to the generator or take more than 1,000 from its sources.
        """
        written = parse(text)
        expression = Expression(tuple(map(self._resolved, written.parts)), written.compressed)
        kept: dict[str, int] = {}
        places: dict[str, Place] = {}
        uses_knowledge = False
        for selection in _selections(expression.parts):
            if isinstance(selection.origin, ParametricKnowledge):
                uses_knowledge = True
            if not isinstance(selection.origin, Source):
                continue
            name = selection.origin.name
            kept[name] = max(kept.get(name, 0), selection.keep or 0)
            place = self._places[name]
            # A source is asked for as many as are wanted, whatever its own number is.
            places[name] = replace(place, depth=max(depth or place.depth, kept[name]))
        recipe = Recipe(str(written), expression, places, uses_knowledge, _most(expression.parts, places))
        taken = sum(place.depth for place in places.values()) + uses_knowledge * KNOWLEDGE_DEPTH
        if taken > MAX_POOL:
            raise ExpressionError(
                1, f"its sources bring {taken} passages, at most {MAX_POOL}: ask with a smaller depth"
            )
        if recipe.most > MAX_CONTEXT:
            raise ExpressionError(
                1, f"may give the generator {recipe.most} passages, at most {MAX_CONTEXT}: truncate with @k"
            )
        return recipe

    def _resolved(self, selection: Selection) -> Selection:
        """The selection with concatenations in the place of their names."""
        origin = selection.origin
        if isinstance(origin, Group):
            return replace(selection, origin=Group(tuple(map(self._resolved, origin.parts))))
        if not isinstance(origin, Source) or origin.name in self._places:
            return selection
        parts = self._groups.get(origin.name)
        if parts is None:
            raise ExpressionError(
                origin.column, f"there is no source {origin.name!r}; there are {', '.join(self.names)}"
            )
        return replace(selection, origin=Group(tuple(map(self._resolved, parts))))

    def _check(self, name: str, above: tuple[str, ...]) -> None:
        """That a concatenation names what there is, and not itself through others."""
        if name in above:
            raise ValueError(f"source {name} is part of itself: {' in '.join((name, *reversed(above)))}")
        for selection in _selections(self._groups.get(name, ())):
            if not isinstance(selection.origin, Source):
                continue
            part = selection.origin.name
            if part not in self._places and part not in self._groups:
                raise ValueError(
                    f"source {name}: there is no source {part!r}; there are {', '.join(self.names)}"
                )
            self._check(part, (*above, name))


def _place(name: str, definition: SourceDefinition) -> Place:
    default = COLLECTION_DEPTH if definition.collection is not None else WEB_DEPTH
    return Place(
        source=name,
        collection=definition.collection or "",
        web=definition.web or "",
        retriever=definition.retriever,
        depth=definition.depth or default,
    )


def _part(name: str, text: str) -> Selection:
    try:
        return parse_selection(text)
    except ExpressionError as error:
        raise ValueError(f"source {name}: {text!r}: {error}") from None


def _selections(parts: tuple[Selection, ...]) -> Iterator[Selection]:
    """Every selection, the outer ones first."""
    for part in parts:
        yield part
        if isinstance(part.origin, Group):
            yield from _selections(part.origin.parts)


def _most(parts: tuple[Selection, ...], places: Mapping[str, Place]) -> int:
    """Most passages that a concatenation can have."""
    total = 0
    for part in parts:
        match part.origin:
            case Source(name):
                has = places[name].depth
            case ParametricKnowledge():
                has = KNOWLEDGE_DEPTH
            case Group(inner):
                has = _most(inner, places)
        total += has if part.keep is None else min(part.keep, has)
    return total

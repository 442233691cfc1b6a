"""The sources that expressions name, as the settings define them, and the searches an expression needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from evenmesh_orchestrator.expressions.notation import (
    RESERVED,
    Expression,
    Group,
    ParametricKnowledge,
    Selection,
    Source,
)
from evenmesh_orchestrator.expressions.parser import ExpressionError, parse, parse_selection

MAX_CONTEXT: Final = 100
"""Most passages in a context."""
MAX_POOL: Final = 1000
"""Most passages that all sources of one expression return together."""
COLLECTION_DEPTH: Final = 20
"""Default number of passages from a collection: the paper's number for hybrids (appendix C.1)."""
WEB_DEPTH: Final = 100
"""Default number of passages from a web search."""
MAX_LISTS: Final = 256
"""Most lists in an expression, those of the concatenations that it names included."""
KNOWLEDGE_DEPTH: Final = 10
"""Most passages that the document of ``PK`` is split into."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class SourceDefinition(BaseModel):
    """One source of the settings: a collection, a web search of the retriever, or a concatenation."""

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
    """Passages to retrieve, [1, 1000]; by default 20 from a collection and 100 from a web search."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if sum(one is not None for one in (self.collection, self.web, self.all)) != 1:
            raise ValueError("must have exactly one of collection, web and all")
        if self.all is not None and (self.retriever or self.depth is not None):
            raise ValueError("has all: give retriever and depth to its parts instead")
        return self


@dataclass(frozen=True, slots=True)
class Place:
    """The search behind a source; either ``collection`` or ``web`` is empty.

    ``depth`` is the number of passages to retrieve, [1, 1000].
    """

    source: str
    collection: str
    web: str
    retriever: str
    depth: int

    @property
    def prefix(self) -> str:
        """Prefix of the ids of its passages, so that ids of two places never collide."""
        return f"{self.collection}/" if self.collection else f"web:{self.web}/"


@dataclass(frozen=True, slots=True)
class ResolvedExpression:
    """An expression with the places of its sources.

    Attributes:
        text: the expression without blanks.
        parsed: the expression with concatenations in place of their names.
        places: of every source in it, by name, in order of first use.
        uses_knowledge: whether ``PK`` is one of its sources.
        max_passages: most passages that it can give the generator, [0, 100].
    """

    text: str
    parsed: Expression
    places: Mapping[str, Place]
    uses_knowledge: bool
    max_passages: int

    @property
    def reranks(self) -> bool:
        """Whether any of its lists is reranked."""
        return any(selection.reranked for selection in _selections(self.parsed.parts))

    @property
    def sampled_part(self) -> Selection | None:
        """The one list with one kind of score, from which rankings can be drawn; None if there is none.

        A concatenation that is not reranked has scores of several kinds, which cannot be compared.
        """
        if len(self.parsed.parts) != 1:
            return None
        (part,) = self.parsed.parts
        return part if part.reranked or isinstance(part.base, Source) else None


class SourceCatalogue:
    """The sources of the settings.

    Args:
        definitions: by name.

    Raises:
        ValueError: a name is invalid, or a concatenation names an unknown source or itself, or is of more
            than :data:`MAX_LISTS` lists. The message names the source.
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
        self._num_lists: dict[str, int] = {}
        for name in self._groups:
            self._count(name, ())

    @property
    def names(self) -> tuple[str, ...]:
        """The names that an expression can use, ``PK`` and ``ReFree`` last."""
        return (*sorted((*self._places, *self._groups)), *sorted(RESERVED))

    def read(self, text: str, *, depth: int | None = None) -> ResolvedExpression:
        """Parse an expression and resolve its sources.

        Args:
            text: the expression.
            depth: passages to retrieve from each source, [1, 1000]; None for the source's own number.

        Raises:
            ExpressionError: it is not in the notation, names an unknown source, has too many lists, or may
                give more than 100 passages to the generator or take more than 1,000 from its sources.
        """
        written = parse(text)
        # Counted first: concatenations of concatenations multiply.
        lists = sum(self._num_lists.get(str(one.base), 1) for one in _selections(written.parts))
        if lists > MAX_LISTS:
            raise ExpressionError(1, f"has {lists} lists with those of its sources, at most {MAX_LISTS}")
        expression = Expression(tuple(map(self._resolved, written.parts)), written.compressed)
        kept: dict[str, int] = {}
        places: dict[str, Place] = {}
        uses_knowledge = False
        for selection in _selections(expression.parts):
            if isinstance(selection.base, ParametricKnowledge):
                uses_knowledge = True
            if not isinstance(selection.base, Source):
                continue
            name = selection.base.name
            kept[name] = max(kept.get(name, 0), selection.keep or 0)
            place = self._places[name]
            # An expression that keeps more passages than the source's depth retrieves as many.
            places[name] = replace(place, depth=max(depth or place.depth, kept[name]))
        resolved = ResolvedExpression(
            str(written), expression, places, uses_knowledge, _max_passages(expression.parts, places)
        )
        taken = sum(place.depth for place in places.values()) + uses_knowledge * KNOWLEDGE_DEPTH
        if taken > MAX_POOL:
            raise ExpressionError(
                1, f"its sources return {taken} passages, at most {MAX_POOL}: ask with a smaller depth"
            )
        if resolved.max_passages > MAX_CONTEXT:
            raise ExpressionError(
                1,
                f"may give the generator {resolved.max_passages} passages, at most {MAX_CONTEXT}: "
                "truncate with @k",
            )
        return resolved

    def _resolved(self, selection: Selection) -> Selection:
        """Return the selection with concatenations in place of their names."""
        base = selection.base
        if isinstance(base, Group):
            return replace(selection, base=Group(tuple(map(self._resolved, base.parts))))
        if not isinstance(base, Source) or base.name in self._places:
            return selection
        parts = self._groups.get(base.name)
        if parts is None:
            raise ExpressionError(
                base.column, f"there is no source {base.name!r}; there are {', '.join(self.names)}"
            )
        return replace(selection, base=Group(tuple(map(self._resolved, parts))))

    def _count(self, name: str, above: tuple[str, ...]) -> int:
        """Return how many lists a concatenation has, with those of the concatenations that it names.

        Raises:
            ValueError: it names an unknown source, or itself through others, or has too many lists.
        """
        if name in above:
            raise ValueError(f"source {name} is part of itself: {' in '.join((name, *reversed(above)))}")
        if name in self._num_lists:
            return self._num_lists[name]
        lists = 0
        for selection in _selections(self._groups[name]):
            part = selection.base.name if isinstance(selection.base, Source) else None
            if part in self._groups:
                lists += self._count(part, (*above, name))
                continue
            if part is not None and part not in self._places:
                raise ValueError(
                    f"source {name}: there is no source {part!r}; there are {', '.join(self.names)}"
                )
            lists += 1
        if lists > MAX_LISTS:
            raise ValueError(f"source {name}: has {lists} lists with those of its parts, at most {MAX_LISTS}")
        self._num_lists[name] = lists
        return lists


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
    """Yield every selection, outer ones first."""
    for part in parts:
        yield part
        if isinstance(part.base, Group):
            yield from _selections(part.base.parts)


def _max_passages(parts: tuple[Selection, ...], places: Mapping[str, Place]) -> int:
    """Return the most passages that a concatenation can have."""
    total = 0
    for part in parts:
        match part.base:
            case Source(name):
                has = places[name].depth
            case ParametricKnowledge():
                has = KNOWLEDGE_DEPTH
            case Group(inner):
                has = _max_passages(inner, places)
        total += has if part.keep is None else min(part.keep, has)
    return total

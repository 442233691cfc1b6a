"""Read a pool of retrievers: expressions over the mesh's sources (docs/guides/expressions.md)."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FEWEST: Final = 2
"""Retrievers of the smallest pool: a vote needs two."""
MOST: Final = 20
"""Retrievers of the largest pool: the limit of an ask, and few enough to enumerate all sub-pools."""
RETRIEVAL_FREE: Final = "ReFree"
"""The retriever that returns nothing."""
KNOWLEDGE: Final = "PK"
"""A document that the model writes from what it knows. On its own it is not searched with."""
_KEYS: Final = frozenset({"members", "reranker"})


@dataclass(frozen=True, slots=True)
class Pool:
    """Retrievers, and what is wrong with them. Ties break in their order.

    Attributes:
        members: expressions, without blanks.
        reranker: what ``@RR`` stands for; None for the mesh's default.
        problems: a line each; empty if there are none.
    """

    members: tuple[str, ...]
    reranker: str | None = None
    problems: tuple[str, ...] = ()


def read_pool(text: str) -> Pool:
    """Read a pool from a TOML file (``*.toml``), or from expressions separated by commas; never fail.

    A file has ``members``, a list of expressions, and optionally ``reranker``, a name.
    """
    if not text.endswith(".toml"):
        members = tuple(_plain(part) for part in text.split(",") if part.strip())
        return Pool(members, None, tuple(_wrong("--pool", members)))
    path = Path(text)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return Pool((), None, (f"{path}: {error.strerror or error}",))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return Pool((), None, (f"{path}: is not TOML: {error}",))
    problems = [
        f"{path}: has the unknown key {key!r}; keys: {', '.join(sorted(_KEYS))}"
        for key in content
        if key not in _KEYS
    ]
    members, reranker = _members(path, content, problems), content.get("reranker")
    if reranker is not None and not (isinstance(reranker, str) and reranker):
        problems.append(f"{path}: reranker is {reranker!r}; allowed: the name of one")
        reranker = None
    return Pool(members, reranker, tuple(problems))


def required_augmentation(member: str) -> str | None:
    """Return the augmentation a member needs of a model beyond answering from passages; None for none."""
    plain = _plain(member)
    if plain == RETRIEVAL_FREE:
        return "retrieval_free"
    if plain.endswith("@CP"):
        return "compression"
    if uses_knowledge(plain):
        return "parametric_knowledge"
    return None


def uses_knowledge(member: str) -> bool:
    """Return whether a member makes the model write a document (``PK``)."""
    names = "".join(one if one.isalnum() or one in "-_@" else " " for one in member).split()
    return any(name.partition("@")[0] == KNOWLEDGE for name in names)


def reports_context(member: str) -> bool:
    """Return whether the mesh reports the text a member's answer was written from.

    It does not report what the model wrote for itself: the document of ``PK`` alone, and summaries.
    """
    plain = _plain(member)
    return not plain.endswith("@CP") and plain != KNOWLEDGE


def _members(path: Path, content: Mapping[str, Any], problems: list[str]) -> tuple[str, ...]:
    given = content.get("members")
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        problems.append(f"{path}: members is {given!r}; allowed: a list of expressions")
        return ()
    members = tuple(_plain(one) for one in given)
    problems.extend(_wrong(f"{path}: members", members))
    return members


def _wrong(where: str, members: tuple[str, ...]) -> Iterator[str]:
    if not FEWEST <= len(members) <= MOST:
        yield f"{where}: has {len(members)} retrievers; allowed: {FEWEST} to {MOST}"
    for place, member in enumerate(members):
        if member in members[:place]:
            yield f"{where}: has {member} twice"


def _plain(text: str) -> str:
    return "".join(text.split())

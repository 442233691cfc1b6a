"""The pool of retrievers that a study asks: expressions over the mesh's sources (docs/expressions.md)."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FEWEST: Final = 2
"""Retrievers of the smallest pool: one has nobody to vote with."""
MOST: Final = 20
"""Retrievers of the largest pool: what an ask of an ensemble takes, and whose sub-pools can all be listed."""
RETRIEVAL_FREE: Final = "ReFree"
"""The retriever that brings nothing."""
KNOWLEDGE: Final = "PK"
"""The document that the model writes of what it knows; alone it is handed to no search."""
_KEYS: Final = frozenset({"members", "reranker"})


@dataclass(frozen=True, slots=True)
class Pool:
    """Retrievers in their order, in which ties break, and what is wrong with them.

    Attributes:
        members: expressions, without blanks.
        reranker: what ``@RR`` stands for; None for the mesh's default.
        problems: a line each; empty if there are none.
    """

    members: tuple[str, ...]
    reranker: str | None = None
    problems: tuple[str, ...] = ()


def read_pool(text: str) -> Pool:
    """A pool from a TOML file (``*.toml``), or from expressions with commas between; never fails.

    A file has ``members``, a list of expressions, and perhaps ``reranker``, the name of one.
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


def reads(member: str) -> str | None:
    """What a model must be able to do for a member beside answering from passages, by the name of the
    augmentation; None for nothing."""
    plain = _plain(member)
    if plain == RETRIEVAL_FREE:
        return "retrieval_free"
    if plain.endswith("@CP"):
        return "compression"
    if uses_knowledge(plain):
        return "parametric_knowledge"
    return None


def uses_knowledge(member: str) -> bool:
    """Whether a member has the model write a document (``PK``)."""
    names = "".join(one if one.isalnum() or one in "-_@" else " " for one in member).split()
    return any(name.partition("@")[0] == KNOWLEDGE for name in names)


def tells_context(member: str) -> bool:
    """Whether the mesh tells what a member's answer was written from: it does not tell documents that the
    model wrote for itself, those of ``PK`` alone and summaries."""
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

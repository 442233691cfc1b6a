"""Sync a source: read it, compare it with the collection, and change what differs."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import islice
from typing import Final, Protocol

from evenmesh.types.collection import Deleted, Ingested, Lexical
from evenmesh.types.passage import Passage
from evenmesh.wire.checks import MAX_ATTRIBUTES
from evenmesh.wire.errors import NotFound
from evenmesh_documents.gathering import Spool
from evenmesh_documents.syncing.naming import file_of, prefix_of
from evenmesh_documents.syncing.planning import Kept, Plan, Read, plan, steps

MISSING_SINCE: Final = "missing_since"
"""Attribute of passages whose file is missing: when it was first missed, ISO 8601 in UTC."""
PART: Final = 2_000
"""Passages of one change; each is durable on its own."""

OnStep = Callable[[int], None]
"""Called with the number of passages that are added, marked or removed by now."""


class Mesh(Protocol):
    """What a sync calls; :class:`evenmesh.Client` is one."""

    def passages(self, name: str, *, prefix: str = "") -> Iterator[Passage]:
        """Yield the passages whose ids begin with ``prefix``, by ascending id. Raises NotFound."""

    def ingest(self, source: list[Passage], collection: str, *, lexical: Lexical | None = None) -> Ingested:
        """Add or replace passages."""

    def delete_passages(self, name: str, passage_ids: Iterable[str]) -> Deleted:
        """Remove passages by id."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a collection differs from its source.

    Attributes:
        plan: what a sync changes.
        wanted: ids of the source, in the order in which they are added.
        had: passages of the source that the collection has.
    """

    plan: Plan
    wanted: Iterable[str]
    had: int


def without_mark(passage: Passage) -> Passage:
    """Return a passage without the attribute that a sync sets."""
    if MISSING_SINCE not in passage.attributes:
        return passage
    kept = {name: value for name, value in passage.attributes.items() if name != MISSING_SINCE}
    return replace(passage, attributes=kept)


def with_mark(passage: Passage, since: datetime) -> Passage:
    """Return a passage that is marked as missing; of 64 attributes it loses the last by name."""
    kept = sorted(without_mark(passage).attributes.items())[: MAX_ATTRIBUTES - 1]
    return replace(passage, attributes={**dict(kept), MISSING_SINCE: stamp(since)})


def stamp(time: datetime) -> str:
    """Return a time as a mark has it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def marked_since(passage: Passage) -> datetime | None:
    """Return the time of a passage's mark; None without one, or where it is no time."""
    try:
        return datetime.strptime(passage.attributes.get(MISSING_SINCE, ""), "%Y-%m-%dT%H:%M:%SZ").replace(
            tzinfo=UTC
        )
    except ValueError:
        return None


def digest(passage: Passage) -> bytes:
    """Return a hash of what a passage says and states, without the mark."""
    attributes = sorted(without_mark(passage).attributes.items())
    said = json.dumps([passage.title, passage.text, attributes], ensure_ascii=False)
    return blake2b(said.encode(), digest_size=16).digest()


def compare(
    mesh: Mesh,
    source: str,
    collection: str,
    read: Read,
    missing: Spool,
    *,
    now: datetime,
    grace: timedelta,
) -> Comparison:
    """Return how a collection differs from what was read of a source.

    Streams the passages of the source from the collection once; memory grows by their ids, not their texts.

    Args:
        mesh: has the collection.
        source: name of the source.
        collection: name of the collection; it need not exist yet.
        read: what was read of the source.
        missing: takes the passages of files that were not read, by ascending id.
        now: the time; parts of a second are left out.
        grace: how long the passages of a missing file stay.
    """
    had = 0

    def kept() -> Iterator[Kept]:
        nonlocal had
        try:
            for one in mesh.passages(collection, prefix=prefix_of(source)):
                had += 1
                file = file_of(source, one.id)
                if one.id not in read.passages and file not in read.files:
                    missing.add(one)
                yield Kept(one.id, file, digest(one), marked_since(one))
        except NotFound:
            return

    made = plan(read, kept(), now=now.replace(microsecond=0), grace=grace)
    return Comparison(made, tuple(read.passages), had)


def apply(
    mesh: Mesh,
    collection: str,
    comparison: Comparison,
    wanted: Iterable[Passage],
    missing: Iterable[Passage],
    *,
    lexical: Lexical | None = None,
    part: int = PART,
    on_step: OnStep | None = None,
) -> None:
    """Change a collection so that it says what its source says.

    Each part is durable once it is done. Whatever ends this in between, the next sync does the rest.

    Args:
        mesh: has the collection.
        collection: name of the collection, which is made if needed.
        comparison: what differs.
        wanted: the passages of the source, as :attr:`Comparison.wanted` orders them.
        missing: the passages that :func:`compare` put aside.
        lexical: how the text of a new collection is indexed.
        part: most passages of one change.
        on_step: called after each.
    """
    made = comparison.plan
    # A file may state the attribute of marks itself.
    add = (without_mark(one) for one in wanted if one.id in made.add)
    mark = (with_mark(one, made.mark[one.id]) for one in missing if one.id in made.mark)
    done = 0
    for step in steps(made, comparison.wanted, part=part):
        if step.add:
            mesh.ingest(list(islice(add, len(step.add))), collection, lexical=lexical)
        elif step.mark:
            mesh.ingest(list(islice(mark, len(step.mark))), collection)
        else:
            mesh.delete_passages(collection, step.delete)
        done += len(step.add) + len(step.mark) + len(step.delete)
        if on_step is not None:
            on_step(done)


def digests(passages: Iterable[Passage]) -> Mapping[str, bytes]:
    """Return the hash of each passage, by id."""
    return {one.id: digest(one) for one in passages}

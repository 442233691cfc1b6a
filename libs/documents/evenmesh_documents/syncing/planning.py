"""Plan a sync: what to add, mark and remove so that a collection says what its source says.

Pure: no mesh, no files, no clock.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from evenmesh_documents.syncing.naming import covering


@dataclass(frozen=True, slots=True)
class Kept:
    """A passage of the source that the collection has.

    Attributes:
        id: its id.
        file: key of the file that it is of.
        digest: hash of title, text and attributes, without the mark.
        missing_since: when its file was first missing, by its mark; None without one.
    """

    id: str
    file: str
    digest: bytes
    missing_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """What was read of the source.

    Attributes:
        passages: hash of title, text and attributes of each passage, by id.
        files: keys of the files that were read, those without passages among them.
        unread: addresses of files, folders and archives that are there and could not be read.
    """

    passages: Mapping[str, bytes]
    files: Collection[str]
    unread: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sync does, in this order.

    Attributes:
        add: ids of passages to add, or to replace because title or attributes differ or they are marked.
        mark: ids of passages whose file is missing, and since when; they are removed after the grace.
        delete: ids of passages to remove: text that changed files no longer have, files that are missing for
            longer than the grace.
        unchanged: passages that are there as they should be.
        waiting: passages that are marked already, in the grace.
        unread: passages that stay because their file could not be read.
        due: when the grace of the first marked passage ends; None where nothing is marked.
    """

    add: Collection[str]
    mark: Mapping[str, datetime]
    delete: Sequence[str]
    unchanged: int
    waiting: int
    unread: int
    due: datetime | None

    @property
    def changes(self) -> int:
        """Return how many passages the sync touches."""
        return len(self.add) + len(self.mark) + len(self.delete)


def plan(read: Read, kept: Iterable[Kept], *, now: datetime, grace: timedelta) -> Plan:
    """Return what makes a collection say what the source says.

    A passage that is there and equal is not touched. Text that a file no longer has is removed at once; all
    of a file that is missing stays, marked, until ``grace`` has passed since it was first missed, and loses
    the mark when the file is back. What is of a file that could not be read stays as it is.

    Args:
        read: what was read of the source.
        kept: what the collection has of it, in any order.
        now: the time.
        grace: how long a missing file keeps its passages; zero removes them at once.
    """
    add = set(read.passages)
    delete: list[str] = []
    missing: dict[str, list[Kept]] = {}
    unchanged = unread = 0
    is_unread = covering(read.unread)
    for one in kept:
        digest = read.passages.get(one.id)
        if digest is not None:
            if digest == one.digest and one.missing_since is None:
                add.discard(one.id)
                unchanged += 1
        elif one.file in read.files:
            delete.append(one.id)
        elif is_unread(one.file):
            unread += 1
        else:
            missing.setdefault(one.file, []).append(one)
    mark: dict[str, datetime] = {}
    waiting = 0
    due: datetime | None = None
    for passages in missing.values():
        # A sync that was cut off has marked some of a file's passages; the others are missing as long.
        since = min([one.missing_since for one in passages if one.missing_since is not None], default=now)
        since = min(since, now)
        if now - since >= grace:
            delete += [one.id for one in passages]
            continue
        ends = since + grace
        due = ends if due is None else min(due, ends)
        for one in passages:
            if one.missing_since == since:
                waiting += 1
            else:
                mark[one.id] = since
    return Plan(add, dict(sorted(mark.items())), tuple(sorted(delete)), unchanged, waiting, unread, due)


@dataclass(frozen=True, slots=True)
class Step:
    """One change of the collection, which is made whole or not at all.

    Attributes:
        add: ids of passages to add or replace.
        mark: ids of passages to mark.
        delete: ids of passages to remove.
    """

    add: Sequence[str] = ()
    mark: Sequence[str] = ()
    delete: Sequence[str] = ()


def steps(made: Plan, order: Iterable[str], *, part: int) -> Iterator[Step]:
    """Yield the changes of a plan, each of at most ``part`` passages.

    New text comes before old text goes, so whoever asks in between finds one of them or both.

    Args:
        made: the plan.
        order: ids of the source in the order in which they are added; others are left out.
        part: most passages of one change.
    """
    yield from _parts((one for one in order if one in made.add), part, lambda ids: Step(add=ids))
    yield from _parts(made.mark, part, lambda ids: Step(mark=ids))
    yield from _parts(made.delete, part, lambda ids: Step(delete=ids))


def _parts(ids: Iterable[str], part: int, step: Callable[[Sequence[str]], Step]) -> Iterator[Step]:
    some: list[str] = []
    for one in ids:
        some.append(one)
        if len(some) == part:
            yield step(tuple(some))
            some = []
    if some:
        yield step(tuple(some))

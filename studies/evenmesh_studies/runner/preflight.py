"""Checks that every study shares. They run before the first unit and report all problems at once."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from evenmesh.addresses import Addresses
from evenmesh.generation import Generation
from evenmesh.inventory import GeneratorModel
from evenmesh.types.collection import Collection
from evenmesh.types.events import Failed
from evenmesh.types.passage import Passage
from evenmesh.types.request import Augmentation, Decoding
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_lab.files import Queries
from evenmesh_studies.runner.shards import same_stems

REFUSALS: Final = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE"})
"""Codes that blame the request, not the mesh."""

_MOST: Final = 10
_ROUNDING_DTYPES: Final = frozenset({"bfloat16", "float16"})
"""Number types in which the order of a sum decides between close tokens."""


@dataclass(slots=True)
class Preflight:
    """What the checks of a study found, a line each.

    Attributes:
        problems: reasons to refuse the run.
        notes: what a reader should know of a run that is not refused.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def noting_refusals(self, of: str) -> Iterator[None]:
        """Add what the mesh refuses within the block to the problems, each line once.

        Raises:
            MeshError: the mesh fails for another reason.
        """
        try:
            yield
        except MeshError as error:
            if error.code.name not in REFUSALS:
                raise
            line = f"{of}: {error}"
            if line not in self.problems:
                self.problems.append(line)


def listed(what: str, names: Sequence[str]) -> Iterator[str]:
    """Yield one line with at most ten of the names; nothing where there are none."""
    if names:
        more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
        yield f"{what}: {', '.join(names[:_MOST])}{more}"


def repeated(what: str, names: Sequence[str]) -> Iterator[str]:
    """Yield one line with the names that occur more than once."""
    yield from listed(f"{what} twice", sorted({one for one in names if names.count(one) > 1}))


def proper_share(option: str, value: float) -> Iterator[str]:
    """Yield a problem unless the value lies strictly between 0 and 1."""
    if not 0 < value < 1:
        yield f"{option} {value:g}: allowed: between 0 and 1"


def queries(asked: Queries, *, called: str = "queries", scored: str = "") -> Iterator[str]:
    """Yield the problems of a file of queries.

    Args:
        asked: as read from the file.
        called: what the file holds.
        scored: problem of queries without references; empty where they need none.
    """
    yield from map(str, asked.problems)
    if not asked.queries and not asked.problems:
        yield f"{asked.path}: has no {called}"
    wrong: dict[str, list[str]] = {}
    for query in asked.queries:
        for name in ("question", "search"):
            if why := _unaskable(name, getattr(query, name, None)):
                wrong.setdefault(why, []).append(query.query_id)
    for why, ids in wrong.items():
        yield from listed(f"{asked.path}: {why}, in these {called}", ids)
    if scored:
        bare = [query.query_id for query in asked.queries if not any(map(str.strip, query.references))]
        yield from listed(f"{asked.path}: these {called} have no {scored}", bare)


def _unaskable(field: str, value: str | None) -> str:
    """Return why the mesh would refuse a text; empty if it would not."""
    if not value:
        return ""
    try:
        checks.text(field, value)
    except InvalidField as error:
        return str(error)
    return ""


def models(asked: Sequence[str], there: Sequence[GeneratorModel]) -> Iterator[str]:
    """Yield the problems of the models of a run.

    Args:
        asked: names.
        there: models of the mesh.
    """
    if not there:
        yield "the mesh's generator has no model"
        return
    yield from repeated("--model: given", asked)
    yield from listed("--model: records of these would share a file", same_stems(asked))
    known = {model.name: model for model in there}
    for name in dict.fromkeys(asked):
        if name not in known:
            yield f"--model {name}: there is no such model; there are {', '.join(known)}"
        elif not known[name].available:
            yield f"--model {name}: is not available now; the generator's log says why"


def rounding(asked: Sequence[str], there: Iterable[GeneratorModel]) -> Iterator[str]:
    """Yield a note for each model whose number type makes answers depend on the batch."""
    for model in there:
        if model.name in asked and model.dtype in _ROUNDING_DTYPES:
            yield (
                f"{model.name} computes in {model.dtype}: a resumed or repeated run may differ in an answer, "
                "as another batch may round to another token; EVENMESH_GENERATOR_DTYPE=float32 avoids this"
            )


def embedding(collections: Iterable[Collection]) -> Iterator[str]:
    """Yield a problem for each collection that is still being embedded: its results change until the end."""
    for one in collections:
        if one.num_passages and one.lacks_vectors:
            yield (
                f"collection {one.name!r}: {one.embedded:.1%} of its passages have vectors; results change "
                "until all have; `evenmesh collections` shows progress"
            )


def searched(collections: Iterable[Collection], versions: Iterable[str]) -> list[Collection]:
    """Return the collections that were searched for results of some versions.

    Args:
        collections: of the mesh.
        versions: of results: of a collection, or of an expression's sources as ``Wiki=v7,News=v2``. One that
            the mesh shortened to a hash may be of any collection.
    """
    known = list(versions)
    parts = {part.rpartition("=")[2] for version in known for part in version.split(",")}
    hashed = any(version.startswith("sha256:") for version in known)
    return [one for one in collections if hashed or one.version in parts]


async def generation_problems(
    names: Sequence[str],
    addresses: Addresses,
    *,
    template: str | None = None,
    augmentation: Augmentation | None = None,
    decoding: Decoding | None = None,
) -> list[str]:
    """Return what models say of prompt and decoding settings that only they can check.

    Each model writes one token from one passage. Call this last: a run that is refused generates nothing.

    Args:
        names: of the models, each known to the mesh.
        addresses: of the mesh.
        template: prompt by name; None for the model's own.
        augmentation: how passages are handed over; None for the model's own.
        decoding: how tokens are chosen; None for one greedy token.

    Raises:
        MeshError: the mesh does not answer.
    """
    found = Preflight()
    async with Generation(addresses) as generation:
        for name in names:
            with found.noting_refusals(name):
                (outcome,) = await generation.answers(
                    "Who?",
                    [[Passage("p", "I.")]],
                    model=name,
                    template=template,
                    augmentation=augmentation,
                    decoding=decoding or Decoding(num_beams=1, max_new_tokens=1),
                    timeout=120,
                )
                if isinstance(outcome, Failed) and outcome.code in REFUSALS:
                    found.problems.append(f"{name}: {outcome.message}")
    return list(dict.fromkeys(found.problems))

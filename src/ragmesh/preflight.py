"""What every long run over a mesh is held against before it begins, so that all problems are told at once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from meshkit.errors import MeshError
from ragmesh.addresses import Addresses
from ragmesh.client import lacks_vectors
from ragmesh.collection import Collection
from ragmesh.events import Failed
from ragmesh.generation import Generation
from ragmesh.inventory import GeneratorModel
from ragmesh.passage import Passage
from ragmesh.request import Augmentation, Decoding
from ragmesh.shards import same_stems

REFUSALS: Final = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE"})
"""Codes by which a mesh says that what is asked of it is at fault, and not the mesh."""

_MOST: Final = 10
_ROUNDS: Final = frozenset({"bfloat16", "float16"})
"""Number types in which the order of a sum decides between close tokens."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong, and what a reader should know all the same; a line each."""

    problems: tuple[str, ...]
    notes: tuple[str, ...]


def listed(what: str, names: Sequence[str]) -> Iterator[str]:
    """A line of what is wrong with some names, the first ten of them; nothing where there are none."""
    if names:
        more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
        yield f"{what}: {', '.join(names[:_MOST])}{more}"


def twice(names: Sequence[str]) -> list[str]:
    """Names that are there more than once, ascending."""
    return sorted({one for one in names if names.count(one) > 1})


def models(asked: Sequence[str], there: Sequence[GeneratorModel]) -> Iterator[str]:
    """What is wrong with the models of a run.

    Args:
        asked: by name.
        there: those of the mesh.
    """
    if not there:
        yield "the mesh's generator has no model"
        return
    yield from listed("--model: these are there twice", twice(asked))
    yield from listed("--model: records of these would go to one file", same_stems(asked))
    known = {model.name: model for model in there}
    for name in dict.fromkeys(asked):
        if name not in known:
            yield f"--model {name}: there is no such model; there are {', '.join(known)}"
        elif not known[name].available:
            yield f"--model {name}: cannot answer now; the generator's log says why"


def rounding(asked: Sequence[str], there: Iterable[GeneratorModel]) -> Iterator[str]:
    """What a reader should know of models that compute in few digits."""
    for model in there:
        if model.name in asked and model.dtype in _ROUNDS:
            yield (
                f"{model.name} computes in {model.dtype}: another batch may round to another token, so a run "
                "that is resumed or repeated may differ in an answer; with RAGMESH_GENERATOR_DTYPE=float32 "
                "it does not"
            )


def embedding(collections: Iterable[Collection]) -> Iterator[str]:
    """What is wrong with collections whose vectors are still being made: results would differ from call to
    call, and so would the versions that results are told with."""
    for one in collections:
        if one.num_passages and lacks_vectors(one):
            yield (
                f"collection {one.name!r}: {one.embedded:.1%} of its passages have vectors by now, and "
                f"results change until all have; `ragmesh collections` shows when"
            )


def searched(collections: Iterable[Collection], versions: Iterable[str]) -> list[Collection]:
    """The collections that were searched for results of some versions.

    Args:
        collections: of the mesh.
        versions: of results: of a collection's, or of an expression's sources as ``Wiki=v7,News=v2``. One
            that is too long to be told may be of any collection.
    """
    told = list(versions)
    parts = {part.rpartition("=")[2] for version in told for part in version.split(",")}
    hashed = any(version.startswith("sha256:") for version in told)
    return [one for one in collections if hashed or one.version in parts]


async def unwritten(
    names: Sequence[str],
    addresses: Addresses,
    *,
    template: str | None = None,
    augmentation: Augmentation | None = None,
    decoding: Decoding | None = None,
) -> list[str]:
    """What models say of how they are to write, which only they know: each writes a word from a passage.

    To be asked when nothing else is wrong, as nothing is generated for a run that is refused.

    Args:
        names: of the models, each there.
        addresses: of the mesh.
        template: prompt by name; None for the model's own.
        augmentation: how passages are handed over; None for the model's own.
        decoding: how tokens are chosen; None for one greedy token.

    Raises:
        MeshError: the mesh does not answer.
    """
    told: dict[str, None] = {}
    async with Generation(addresses) as generation:
        for name in names:
            try:
                (outcome,) = await generation.answers(
                    "Who?",
                    [[Passage("p", "I.")]],
                    model=name,
                    template=template,
                    augmentation=augmentation,
                    decoding=decoding or Decoding(num_beams=1, max_new_tokens=1),
                    timeout=120,
                )
            except MeshError as error:
                if error.code.name not in REFUSALS:
                    raise
                told[f"{name}: {error}"] = None
                continue
            if isinstance(outcome, Failed) and outcome.code in REFUSALS:
                told[f"{name}: {outcome.message}"] = None
    return list(told)

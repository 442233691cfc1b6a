"""Names of pipelines: what OpenAI's clients call models.

``evenmesh`` is the mesh as it is configured. ``evenmesh/COLLECTION/RETRIEVER/RERANKER/MODEL`` names what
answers, from the left as far as it goes; ``-`` leaves a part to the mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, product
from typing import Final

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField, NotFound

DEFAULT: Final = "evenmesh"
RERANKERS: Final = ("cross-encoder", "rankrag", "none")
"""The rerankers that the contract names."""
MAX_LISTED: Final = 1_000
"""Most pipelines that are listed; those that are not can be asked all the same."""
PARTS: Final = ("collection", "retriever", "reranker", "model")
"""What the name of a pipeline names, from the left."""
_ANY: Final = "-"


def name_of(*parts: str) -> str:
    """Return the name of the pipeline with these parts, from the collection on."""
    return "/".join((DEFAULT, *parts))


def names(collections: Iterable[str], retrievers: Iterable[str], models: Iterable[str]) -> list[str]:
    """Return the names of the pipelines that can be made of these parts, the shortest first."""

    def every() -> Iterator[str]:
        here = tuple(collections)
        yield DEFAULT
        yield from (name_of(collection) for collection in here)
        yield from (name_of(*parts) for parts in product(here, retrievers, RERANKERS, models))

    return list(islice(every(), MAX_LISTED))


def made_of(name: str, collections: Iterable[str], retrievers: Iterable[str], models: Iterable[str]) -> bool:
    """Return whether a name is that of a pipeline of these parts, listed or not."""
    request = pb.AskRequest()
    try:
        choose(request, name)
    except NotFound:
        return False
    known = zip(PARTS, (collections, retrievers, RERANKERS, models), strict=True)
    return all(not (part := getattr(request, field)) or part in there for field, there in known)


def choose(request: pb.AskRequest, name: str) -> None:
    """Set the parts of a request that the name of a pipeline says.

    Raises:
        NotFound: it is not the name of a pipeline.
        InvalidField: the request names such a part already.
    """
    head, *parts = name.split("/", len(PARTS))
    if head != DEFAULT or "" in parts:
        raise NotFound("model", f"there is no model {name[:256]!r}; GET /v1/models lists the models")
    for field, value in zip(PARTS, parts, strict=False):
        if value == _ANY:
            continue
        source = request.WhichOneof("source") if field == "collection" else None
        if source or getattr(request, field):
            raise InvalidField(f"evenmesh.{source or field}", f"is named by the model too, as {value!r}")
        setattr(request, field, value)

"""Asking the retriever alone: how, and what it gives."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

from meshkit.checks import PassageLike
from meshkit.errors import InvalidField
from ragmesh.filters import Filter, filter_message
from ragmesh.passage import Passage
from ragmesh.request import passage_message, whole
from ragmesh.retriever.v1 import retriever_service_pb2 as retriever_pb2
from ragmesh.texts import text


@dataclass(frozen=True, slots=True)
class Source:
    """A web-search source of a retriever: its name, and one line on what it searches."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Candidates, once, and rankings of them.

    Attributes:
        passages: the pool, best first; of one deterministic ranking its k, and of a whole collection those
            that some ranking has.
        scores: the retriever's score of each, in its unit.
        rankings: for each ranking places in ``passages``, best first: one, or as many as were drawn.
        log_probabilities: natural logarithm of each drawn ranking's probability; empty if none was drawn.
        inclusion_probabilities: exact probability of each passage to be among the first k; empty if not asked
            for.
        retriever: the retriever that answered.
        index_version: version of the index; empty for passages of the request and of the web.
        note: what the name of the retriever does not say, such as vectors that are still to come.
    """

    passages: tuple[Passage, ...]
    scores: tuple[float, ...]
    rankings: tuple[tuple[int, ...], ...]
    log_probabilities: tuple[float, ...]
    inclusion_probabilities: tuple[float, ...]
    retriever: str
    index_version: str
    note: str = ""


class RetrieveOptions(TypedDict, total=False):
    """What to retrieve from and how; what is left out, or None, is left to the server.

    Attributes:
        collection: name of a collection; this, ``passages`` or ``web`` must be given.
        passages: candidates to rank instead, 1 to 1,000.
        web: name of a web-search source, see :meth:`ragmesh.Client.sources`.
        filter: what attributes of passages that may be found are, see :data:`ragmesh.Filter`.
        retriever: by name.
        depth: size of the candidate pool, 1 to 1,000; 100 without it.
        k: positions of a ranking; 5 without it.
        alpha: fairness dial, 0 (uniform) to 100 (follows the scores); sampled rankings if given.
        samples: rankings to draw, 1 to 1,000; sampled rankings if given.
        seed: seed of the sampling, 0 to 2^63 - 1; 0 without it.
        stream_id: name of this request for its random generator; the query without it.
        whole_collection: draw from every passage of the collection instead of from a pool.
        inclusion: also give each passage's exact probability to be among the first k.
    """

    collection: str | None
    passages: Iterable[PassageLike] | None
    web: str | None
    filter: Filter | None
    retriever: str | None
    depth: int | None
    k: int | None
    alpha: float | None
    samples: int | None
    seed: int
    stream_id: str | None
    whole_collection: bool
    inclusion: bool


def retrieve_request(query: str, options: RetrieveOptions) -> retriever_pb2.RetrieveRequest:
    """The request that asks for ``query`` with ``options``.

    Only what cannot be said on the wire is refused here; ranges are the server's to check.

    Raises:
        InvalidField: a value that does not fit its field, or more than one of collection, passages and web.
        TypeError: an option that does not exist.
    """
    if unknown := options.keys() - RetrieveOptions.__annotations__.keys():
        raise TypeError(f"retrieve() has no option {', '.join(sorted(unknown))}")
    request = retriever_pb2.RetrieveRequest(
        query=text("query", query),
        retriever=text("retriever", options.get("retriever")),
        depth=whole("depth", options.get("depth")),
        k=whole("k", options.get("k")),
        stream_id=text("stream_id", options.get("stream_id")),
        include_inclusion_probabilities=options.get("inclusion", False),
        whole_collection=options.get("whole_collection", False),
    )
    collection, passages, web = (options.get("collection"), options.get("passages"), options.get("web"))
    if sum(source is not None for source in (collection, passages, web)) > 1:
        raise InvalidField("collection", "give a collection, passages or a web source, not several")
    if collection is not None:
        request.collection = text("collection", collection)
    if passages is not None:
        request.candidates.SetInParent()
        request.candidates.passages.extend(passage_message(passage) for passage in passages)
    if web is not None:
        request.web = text("web", web)
    if (wanted := options.get("filter")) is not None:
        request.filter.CopyFrom(filter_message(wanted))
    alpha, samples = options.get("alpha"), options.get("samples")
    if alpha is not None or samples is not None:
        request.sampling.seed = whole("sampling.seed", options.get("seed", 0), bits=64) or 0
    if alpha is not None:
        request.sampling.alpha = alpha
    if samples is not None:
        request.sampling.num_rankings = whole("sampling.num_rankings", samples) or 0
    return request

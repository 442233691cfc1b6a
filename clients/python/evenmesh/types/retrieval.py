"""Retrieval without an answer: its options and its result."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from evenmesh.codec.mapping import encode
from evenmesh.codec.values import flag
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb2
from evenmesh.types.filters import Filter, filter_message
from evenmesh.types.passage import Passage
from evenmesh.types.policy import GroupShare, Policy
from evenmesh.types.request import candidates, same_named, sampling
from evenmesh.wire.checks import PassageLike
from evenmesh.wire.errors import InvalidField


@dataclass(frozen=True, slots=True)
class Source:
    """A web-search source of a retriever: its name, and one line on what it searches."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The vectors of texts, in their order.

    Attributes:
        vectors: of length 1, all of one dimension.
        tokens: number of tokens that the encoder read of each text.
        model: name of the encoder.
        fingerprint: names its weights and settings: only vectors of one fingerprint may be compared.
        max_tokens: most tokens that it reads of a text; the rest is cut off.
    """

    vectors: tuple[tuple[float, ...], ...]
    tokens: tuple[int, ...]
    model: str
    fingerprint: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Retriever:
    """A retriever of the mesh.

    Attributes:
        name: what :attr:`RetrieveOptions.retriever` takes.
        description: one line on formula, engine and model.
        engine: such as ``csr``, ``rank_bm25`` or ``faiss-flat``.
        model: its model; empty if it has none.
        device: where it computes: ``cpu`` or ``cuda:0``.
        is_default: whether it is used when a request names none.
    """

    name: str
    description: str
    engine: str
    model: str
    device: str
    is_default: bool


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
        policy: how rankings were drawn to reach a target; None without one.
        index_as_of: when a read replica last knew ``index_version`` to be the current one, UTC; None from the
            retriever that writes.
        seed: seed of the drawn rankings, given or drawn; None if none was drawn.
    """

    passages: tuple[Passage, ...]
    scores: tuple[float, ...]
    rankings: tuple[tuple[int, ...], ...]
    log_probabilities: tuple[float, ...]
    inclusion_probabilities: tuple[float, ...]
    retriever: str
    index_version: str
    note: str = ""
    policy: Policy | None = None
    index_as_of: datetime | None = None
    seed: int | None = None


class RetrieveOptions(TypedDict, total=False):
    """Options of a retrieval; the server chooses those that are left out or None.

    Attributes:
        collection: name of a collection; this, ``passages`` or ``web`` must be given.
        passages: candidates to rank instead, 1 to 1,000.
        web: name of a web-search source, see :meth:`evenmesh.Client.sources`.
        filter: conditions on the attributes of passages, see :data:`evenmesh.Filter`.
        retriever: by name.
        depth: size of the candidate pool, 1 to 1,000; 100 without it.
        k: positions of a ranking; 5 without it.
        alpha: fairness dial, 0 (uniform) to 100 (follows the scores); sampled rankings if given.
        disparity: instead of ``alpha``, the expected EE-D of its bound to reach, 0 to 1.
        relevance_loss: instead of ``alpha``, the share of relevance that may be given up, 0 to 1.
        shares: instead of ``alpha``, bounds on the shares of groups, at most 16.
        samples: rankings to draw, 1 to 1,000; sampled rankings if given.
        seed: seed of the sampling, 0 to 2^63 - 1; without it one is drawn for each call, see
            :attr:`evenmesh.Retrieval.seed`.
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
    disparity: float | None
    relevance_loss: float | None
    shares: Sequence[GroupShare] | None
    samples: int | None
    seed: int | None
    stream_id: str | None
    whole_collection: bool
    inclusion: bool


def retrieve_request(query: str, options: RetrieveOptions) -> retriever_pb2.RetrieveRequest:
    """Return the request that retrieves for ``query`` with ``options``.

    Raise only for what a message cannot hold; the mesh checks ranges.

    Raises:
        InvalidField: a value does not fit its field, or several of collection, passages and web are given.
        TypeError: an option does not exist.
    """
    if unknown := options.keys() - RetrieveOptions.__annotations__.keys():
        raise TypeError(f"retrieve() has no option {', '.join(sorted(unknown))}")
    passages, wanted = options.get("passages"), options.get("filter")
    if sum(source is not None for source in (options.get("collection"), passages, options.get("web"))) > 1:
        raise InvalidField("collection", "give a collection, passages or a web source, not several")
    values = {
        **same_named(options, retriever_pb2.RetrieveRequest),
        "query": query,
        "candidates": candidates(passages),
        "filter": None if wanted is None else filter_message(wanted),
        "sampling": sampling(options),
        "include_inclusion_probabilities": flag("inclusion", options.get("inclusion")),
    }
    return encode(retriever_pb2.RetrieveRequest, values)

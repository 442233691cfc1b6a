"""Retrieve and rerank through a mesh in pipelines and experiments of PyTerrier (Macdonald & Tonellotto 2020).

Needs the extra ``evenmesh-studies[pyterrier]``, and no Java.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from typing import Any, Final, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
import pandas as pd
import pyterrier as pt

from evenmesh import Agent, Client, Filter, FirstStage, GroupShare, MeshError, Passage

MAX_SAMPLES: Final = 1_000
MAX_PASSAGES: Final = 1_000
"""Most passages that a mesh retrieves or reranks for a query."""
MAX_IN_FLIGHT: Final = 64

_SAMPLE: Final = re.compile(r"/sample=(\d{1,3})\Z")

T = TypeVar("T")
R = TypeVar("R")


class _Wanted(NamedTuple):
    place: int
    """Place among the topics."""
    qid: str
    sample: int


class RankingOptions(TypedDict, total=False):
    """How a mesh ranks what it retrieves; see :class:`evenmesh.RetrieveOptions`.

    Attributes:
        retriever: by name; the default of the mesh without it.
        filter: conditions on the attributes of passages.
        depth: size of the candidate pool, 1 to 1,000; 100, or the number of results, without it.
        alpha: fairness dial, 0 (uniform) to 100 (follows the scores).
        disparity: instead of ``alpha``, the expected EE-D of its bound to reach, 0 to 1.
        relevance_loss: instead of ``alpha``, the share of relevance that may be given up, 0 to 1.
        shares: instead of ``alpha``, bounds on the shares of groups.
        seed: seed of the sampling; 0 without it.
        whole_collection: draw from every passage of the collection instead of from a pool.
    """

    retriever: str
    filter: Filter
    depth: int
    alpha: float
    disparity: float
    relevance_loss: float
    shares: Sequence[GroupShare]
    seed: int
    whole_collection: bool


_RESULTS: Final = 100
"""Passages of each query, unless it is said."""
_SAMPLED: Final = ("alpha", "disparity", "relevance_loss", "shares")


def repeated(frame: pd.DataFrame, samples: int) -> pd.DataFrame:
    """Repeat every query of topics or qrels, once for each sampled ranking.

    The query ``7`` becomes ``7/sample=0``, ``7/sample=1`` and so on, for which a :class:`MeshRetriever` that
    samples returns one drawn ranking each. The mean of a metric over repeated topics and qrels is its
    expectation over the policy. Samples of a query are not independent queries: do not test significance over
    them.

    Args:
        frame: has a column ``qid``.
        samples: rankings of each query, 1 to 1,000.

    Raises:
        ValueError: ``samples`` is out of its range.
    """
    if not 1 <= samples <= MAX_SAMPLES:
        raise ValueError(f"samples is {samples}; allowed: 1 to {MAX_SAMPLES:,}")
    found = frame.loc[frame.index.repeat(samples)].reset_index(drop=True)
    numbers = pd.Series(np.tile(np.arange(samples), len(frame)), dtype="int64")
    return found.assign(qid=found["qid"].astype(str) + "/sample=" + numbers.astype(str))


class MeshRetriever(pt.Transformer):
    """Retrieve passages of a collection for each query: topics in, results out.

    Results have ``docno``, ``score``, ``rank``, ``title``, ``text`` and the attributes that are asked for.
    Scores fall from rank to rank in single precision, by which trec_eval sorts, so that ties keep the mesh's
    order; those of sampled rankings are their negated ranks.

    Args:
        client: a client of the mesh.
        collection: name of the collection.
        num_results: passages of each query, 1 to 1,000, at most the option ``depth``. Default: 100, or
            ``depth`` if that is less.
        attributes: attributes of passages to return as columns, such as ``provider``; empty where unknown.
        in_flight: queries at a time, 1 to 64.
        timeout: seconds for each query; that of the client without it.
        options: how to rank, see :class:`RankingOptions`.

    Raises:
        ValueError: a number is out of its range.
    """

    schematic = {"label": "MeshRetriever"}  # noqa: RUF012 - as PyTerrier's own transformers state it

    def __init__(
        self,
        client: Client,
        collection: str,
        *,
        num_results: int | None = None,
        attributes: Sequence[str] = (),
        in_flight: int = 4,
        timeout: float | None = None,
        **options: Unpack[RankingOptions],
    ) -> None:
        super().__init__()
        depth = options.get("depth", MAX_PASSAGES)
        if num_results is None:
            num_results = min(_RESULTS, depth)
        _within("num_results", num_results, MAX_PASSAGES)
        if num_results > depth:
            raise ValueError(f"num_results is {num_results}; allowed: at most depth, which is {depth}")
        _within("in_flight", in_flight, MAX_IN_FLIGHT)
        if unknown := options.keys() - RankingOptions.__annotations__.keys():
            raise TypeError(f"MeshRetriever has no option {', '.join(sorted(unknown))}")
        self.client = client
        self.collection = collection
        self.num_results = num_results
        self.attributes = tuple(attributes)
        self.in_flight = in_flight
        self.timeout = timeout
        self.options = options

    def __repr__(self) -> str:
        """Return it as it would be written, without the client."""
        stated = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"MeshRetriever({self.collection!r}, num_results={self.num_results}{stated})"

    def fuse_rank_cutoff(self, k: int) -> "MeshRetriever | None":
        """Return the retriever of ``self % k``: fewer results of the same pool."""
        if k >= self.num_results or self.sampled or k < 1:
            return None
        made = copy(self)
        made.options = {**self.options, "depth": self._depth()}
        made.num_results = k
        return made

    @property
    def sampled(self) -> bool:
        """Whether rankings are drawn."""
        return any(self.options.get(name) is not None for name in _SAMPLED)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return the results of each query.

        Raises:
            MeshError: a call fails.
        """
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        wanted: dict[str, list[_Wanted]] = {}
        for place, (qid, query) in enumerate(zip(inp["qid"], inp["query"], strict=True)):
            matched = _SAMPLE.search(str(qid)) if self.sampled else None
            wanted.setdefault(query, []).append(_Wanted(place, str(qid), int(matched[1]) if matched else 0))
        rankings: dict[int, list[dict[str, object]]] = {}
        for rows in _at_once(self._ranked, wanted.items(), self.in_flight):
            rankings.update(rows)
        places = [place for place in range(len(inp)) for _ in rankings[place]]
        found = pd.DataFrame(
            [row for place in range(len(inp)) for row in rankings[place]], columns=self._columns()
        )
        found = found.astype({"score": "float64", "rank": "int64"})
        return pd.concat([inp.iloc[places].reset_index(drop=True), found], axis="columns")

    def _columns(self) -> list[str]:
        return ["docno", "score", "rank", "title", "text", *self.attributes]

    def _depth(self) -> int:
        return self.options.get("depth", max(100, self.num_results))

    def _ranked(self, one: tuple[str, list[_Wanted]]) -> dict[int, list[dict[str, object]]]:
        """Return the rows of each topic that asks this query, by its place among the topics."""
        query, wanted = one
        options: dict[str, Any] = dict(self.options)
        if not options.get("whole_collection"):
            options["depth"] = self._depth()
        if self.sampled:
            options["samples"] = max(topic.sample for topic in wanted) + 1
            options.setdefault("seed", 0)  # a pipeline is repeatable
        with _naming(wanted[0].qid):
            found = self.client.retrieve(
                query, collection=self.collection, k=self.num_results, timeout=self.timeout, **options
            )
        rows = {}
        for topic in wanted:
            ranking = found.rankings[topic.sample]
            scores = falling(-np.arange(len(ranking)) if self.sampled else [found.scores[i] for i in ranking])
            rows[topic.place] = [
                self._row(found.passages[index], score, rank)
                for rank, (index, score) in enumerate(zip(ranking, scores, strict=True), pt.model.FIRST_RANK)
            ]
        return rows

    def _row(self, passage: Passage, score: float, rank: int) -> dict[str, object]:
        row = {name: passage.attributes.get(name, "") for name in self.attributes}
        return {
            **row,
            "docno": passage.id,
            "score": score,
            "rank": rank,
            "title": passage.title,
            "text": passage.text,
        }


class MeshReranker(pt.Transformer):
    """Score results again by a reranker of the mesh: results with ``text`` in, results in a new order out.

    The scores of the first stage are fused with the reranker's as in an ask, if the reranker's model says so
    and the results have a column ``score``; ``fusion=0`` leaves them out. The column ``title`` is read where
    there is one.

    Args:
        client: a client of the mesh.
        reranker: ``cross-encoder`` or ``rankrag``; the default of the mesh without it.
        agent: on whose behalf.
        fusion: weight of the first stage's scores, 0 to 10; that of the reranker's model without it.
        in_flight: queries at a time, 1 to 64.
        timeout: seconds for each query; that of the client without it.

    Raises:
        ValueError: ``in_flight`` is out of its range.
    """

    schematic = {"label": "MeshReranker"}  # noqa: RUF012 - as PyTerrier's own transformers state it

    def __init__(
        self,
        client: Client,
        reranker: str | None = None,
        *,
        agent: Agent | None = None,
        fusion: float | None = None,
        in_flight: int = 1,
        timeout: float | None = None,
    ) -> None:
        super().__init__()
        _within("in_flight", in_flight, MAX_IN_FLIGHT)
        self.client = client
        self.reranker = reranker
        self.agent = agent
        self.fusion = fusion
        self.in_flight = in_flight
        self.timeout = timeout

    def __repr__(self) -> str:
        """Return it as it would be written, without the client."""
        return f"MeshReranker({self.reranker!r})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Return the results of each query in their new order.

        Raises:
            ValueError: a query has more than 1,000 results.
            MeshError: a call fails.
        """
        pt.validate.result_frame(inp, extra_columns=["query", "text"], context=self)
        groups = list(inp.groupby("qid", sort=False))
        for qid, group in groups:
            if len(group) > MAX_PASSAGES:
                raise ValueError(
                    f"query {qid} has {len(group):,} results; at most {MAX_PASSAGES:,} are reranked: "
                    f"put % {MAX_PASSAGES} before the reranker"
                )
        made = list(_at_once(self._reranked, groups, self.in_flight))
        if not made:
            return inp.assign(score=pd.Series(dtype="float64"), rank=pd.Series(dtype="int64"))
        return pd.concat(made, ignore_index=True)

    def _reranked(self, one: tuple[Hashable, pd.DataFrame]) -> pd.DataFrame:
        qid, group = one
        titles = group["title"] if "title" in group else [""] * len(group)
        passages = [
            Passage(str(docno), text=text, title=title)
            for docno, text, title in zip(group["docno"], group["text"], titles, strict=True)
        ]
        scores = None if "score" not in group or self.fusion == 0 else tuple(map(float, group["score"]))
        with _naming(qid):
            found = self.client.rerank(
                group["query"].iloc[0],
                passages,
                reranker=self.reranker,
                agent=self.agent,
                first_stage=None if scores is None else FirstStage(scores),
                fusion=self.fusion,
                timeout=self.timeout,
            )
        made = group.iloc[list(found.order)]
        return made.assign(
            score=falling([found.scores[place] for place in found.order]),
            rank=np.arange(len(made)) + pt.model.FIRST_RANK,
        )


def falling(scores: Iterable[float]) -> list[float]:
    """Return scores of a ranking, best first, so that each is below the one before in single precision."""
    made: list[float] = []
    for score in np.asarray(list(scores), dtype=np.float32):
        if made and score >= made[-1]:
            score = np.nextafter(np.float32(made[-1]), np.float32(-np.inf))
        made.append(float(score))
    return made


def _within(name: str, value: int, largest: int) -> None:
    if not 1 <= value <= largest:
        raise ValueError(f"{name} is {value}; allowed: 1 to {largest:,}")


def _at_once(call: Callable[[T], R], arguments: Iterable[T], in_flight: int) -> Iterable[R]:
    """Yield the result of each call in the order of the arguments; the first error ends those not begun."""
    with ThreadPoolExecutor(in_flight) as threads:
        futures = [threads.submit(call, one) for one in arguments]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


@contextmanager
def _naming(qid: object) -> Iterator[None]:
    """Add the query to an error of the mesh."""
    try:
        yield
    except MeshError as exc:
        exc.add_note(f"query {qid}")
        raise

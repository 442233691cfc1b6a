"""What a request costs, computed from its sizes before any work, and refused above a bound.

:func:`of` returns the cost of a request of any method that measures; :func:`arrival` that of an answer in a
stream, which depends on those before it.

The rates are nanoseconds and bytes on one core of a small server, rounded up; they bound the order of
magnitude of a request, not its time to the digit. What is above a bound raises ``InvalidField``, which says
what would fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_core.answer_scores import PAIR_NS, READ_NS, scoring_ns
from evenmesh_core.ensemble.weight_search import MAX_EXACT_LINES
from evenmesh_evaluator.domain import UtilityMetric
from evenmesh_evaluator.fields import METRICS
from evenmesh_lab.similarities import names, needs_model

MAX_CPU_S: Final = 5.0
"""Most CPU time of a request. Seconds."""
MAX_OBSERVATION_CPU_S: Final = 1.0
"""Most CPU time of an observation. Seconds."""
MAX_TEXT: Final = 65_536
"""Longest answer or reference: two of them are compared within a third of a second. Characters."""
MAX_OBSERVATION_BYTES: Final = 8 * 2**20
"""Largest observation. Bytes."""
MAX_BYTES: Final = 96 * 2**20
"""Most memory that the computation of a request takes. Bytes."""

DEFAULT_RESAMPLES: Final = 2000
"""Resamples of a bootstrap that says nothing of them."""

_KIB_PER_CPU_S: Final = 8192
_NS: Final = 1e-9
_SEARCH_NS: Final = 1  # to search a character for one text
_DRAW_NS: Final = 10  # to draw a query of a resample
_POINT_NS: Final = 55  # to weigh a point of a tradeoff in a resample
_RESAMPLE_NS: Final = 25_000  # of a tradeoff, beside
_ID_NS: Final = 2_000  # of a passage in a ranking or in judgements
_QUERY_NS: Final = 50_000  # of a ranking, beside
_ITEM_NS: Final = 1_000  # of an item, a place or a group of exposure
_SHARE_NS: Final = 500  # to read or compare a share of a group
_COMPARED_NS: Final = 50_000  # to read or compare a distribution, beside
_NUGGET_NS: Final = 8_000
_TRANSCRIPT_NS: Final = 3_000  # to read a character of an annotated transcript
_VOTED_NS: Final = 100  # to pool a similarity in a vote
_ALIKE_NS: Final = 700  # to compare two answers, beside
_WORD_NS: Final = 250  # for each word of the shorter of two answers
_HELD_NS: Final = 3  # to search a character of an answer for another one
_MODEL_NS: Final = 500_000  # for a model to read a token; small ones take less, large ones more
_MODEL_TOKENS: Final = 512  # the most that it reads of a text
_EVALUATION_NS: Final = 10_000  # of the weights of a vote, beside
_WEIGHED_NS: Final = 20  # for each similarity in it
_EVALUATIONS: Final = 200  # for each weight
_LINE_NS: Final = 25_000  # to find the best place of a weight, beside; at most one for each evaluation
_LINED_NS: Final = 100  # for each question in it
_POOL_NS: Final = 250  # of a set of retrievers
_TEXT_NS: Final = 2_000  # of an answer or reference that is compared as a whole
_ENCODER: Final = "embedding_cosine"  # reads every text once, and not every pair
_TOKEN_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds and bytes of memory, both from 0."""

    cpu_s: float
    bytes: int

    @property
    def kib(self) -> int:
        """Return the admission weight: the memory, and 8 MiB for each CPU second. KiB, [0, inf)."""
        return self.bytes // 1024 + int(self.cpu_s * _KIB_PER_CPU_S)


def answers(given: Sequence[str], references: Sequence[str], metric: UtilityMetric) -> Cost:
    """Return the cost of scoring answers against references."""
    said, wanted = sum(map(len, given)), sum(map(len, references))
    ns = scoring_ns(len(given), said, len(references), wanted, metric.value)
    words = len(given) + len(references) + (said + wanted) // 2  # at most
    return Cost(ns * _NS, _TOKEN_BYTES * words)


def held(characters: int, texts: int) -> Cost:
    """Return the cost of searching passages of that many characters for that many texts."""
    return Cost(_NS * (READ_NS * characters + _SEARCH_NS * characters * texts), 0)


def agreement(winner: str, given: Sequence[str]) -> Cost:
    """Return the cost of searching all answers of a vote for the winning one, and that for them."""
    said = sum(map(len, given))
    return Cost(_NS * (READ_NS * said + _HELD_NS * (said + len(winner) * len(given))), 0)


def of(request: Message) -> Cost:
    """Return the cost of a request that is measured, whether or not its fields are right.

    Raises:
        InvalidField: it is above a bound; the message says what would fit.
    """
    return _COSTS[type(request)](request)


def arrival(text: str, others: Sequence[str], expected: int, similarities: Sequence[str]) -> Cost:
    """Return the cost of an answer that arrives in a vote session, and of the standing with it.

    Args:
        text: the answer.
        others: the answers before it.
        expected: number of answers that the session expects.
        similarities: their names.

    Raises:
        InvalidField: it is above a bound.
    """
    sizes = [len(text), *map(len, others)]
    compared = _Compared(sizes, len(others), len(text) * len(others), sum(sizes) + len(text) * len(others))
    ns = 2 * _VOTED_NS * expected**3 + sum(map(compared.ns, similarities))
    advice = "send fewer or shorter answers, or use fewer similarities"
    return _bounded("answer.text", Cost(_NS * ns, 64 * len(similarities) * expected**2), advice)


def conversation(request: pb.EvaluateConversationRequest) -> Cost:
    """Return the cost of measuring a conversation, which may be part of an observation.

    Raises:
        InvalidField: it is above a bound.
    """
    text, targets = request.transcript, request.attributes
    groups = sum(len(targets[name].gold.shares) for name in targets)
    if text:  # what it can have at most, without reading it
        turns, nuggets, memberships = text.count("###"), text.count("#L"), text.count("(")
        shares = len(text) // 2
    else:
        turns, nuggets = len(request.turns), sum(len(turn.nuggets) for turn in request.turns)
        size = request.ByteSize()
        memberships, shares = min(16 * nuggets, size // 24), size // 8
    ns = _TRANSCRIPT_NS * len(text) + _NUGGET_NS * nuggets + _COMPARED_NS * memberships
    ns += _COMPARED_NS * turns * len(targets) + _SHARE_NS * (shares + turns * groups)
    return _bounded(
        "transcript" if text else "turns",
        Cost(_NS * ns, 40 * shares + 400 * (nuggets + memberships) + 24 * turns * groups),
        f"{turns:,} turns, {nuggets:,} nuggets and {groups:,} groups of {len(targets)} attributes are too "
        "many together: send fewer of either",
    )


def _utility(request: pb.EvaluateUtilityRequest) -> Cost:
    metric = METRICS.read("metric", request.metric)
    given = [*request.answers, request.baseline_answer]
    for field, texts in (("answers", given), ("references", request.references)):
        if (longest := max(map(len, texts), default=0)) > MAX_TEXT:
            raise InvalidField(field, f"must be at most {MAX_TEXT:,} characters each, one has {longest:,}")
    advice = "send fewer or shorter answers or references"
    return _bounded("answers", answers(given, request.references, metric), advice)


def _systems(request: pb.CompareSystemsRequest) -> Cost:
    queries, num_resamples = len(request.first), _resamples(request.bootstrap)
    fits = int(MAX_CPU_S / (_DRAW_NS * _NS)) // max(1, queries)
    return _bounded(
        "bootstrap.num_resamples",
        Cost(
            _DRAW_NS * _NS * queries * num_resamples,
            64 * queries + 2**26 * (queries * num_resamples > 2**20),
        ),
        f"ask for at most {fits:,} resamples of {queries:,} queries",
    )


def _tradeoff(request: pb.EvaluateTradeoffRequest) -> Cost:
    points, resamples = len(request.points), _resamples(request.bootstrap)
    if request.bootstrap.method != pb.INTERVAL_METHOD_PERCENTILE:
        resamples += len({point.query_id for point in request.points})  # BCa leaves out each query once
    each_s = _NS * (_RESAMPLE_NS + _POINT_NS * points)
    advice = (
        f"{points:,} points fit {int(MAX_CPU_S / each_s):,} resamples, and BCa adds one for each query: ask "
        "for fewer, or for the percentile method"
    )
    return _bounded("bootstrap", Cost(each_s * resamples, 400 * points), advice)


def _rankings(request: pb.EvaluateRankingsRequest) -> Cost:
    ids = sum(len(query.ranking) + len(query.grades) for query in request.queries)
    return _bounded(
        "queries",
        Cost(_NS * (_QUERY_NS * len(request.queries) + _ID_NS * ids), 2 * request.ByteSize() + 16 * ids),
        f"{len(request.queries):,} queries with {ids:,} ids are too many: send them in several calls",
    )


def _exposure(request: pb.EvaluateExposureRequest) -> Cost:
    rankings = request.rankings
    lists: tuple[Sized, ...] = (
        request.usefulness,
        request.exposure,
        request.groups,
        request.probabilities,
        rankings.indices,
        rankings.log_probabilities,
    )
    items = sum(map(len, lists))
    advice = "send fewer rankings, items or groups"
    return _bounded("rankings", Cost(_NS * _ITEM_NS * items, 64 * items), advice)


def _ranked_list(request: pb.EvaluateRankedListRequest) -> Cost:
    documents, targets = len(request.documents), request.attributes
    groups = sum(len(targets[name].gold.shares) for name in targets)
    ns = _COMPARED_NS * documents * len(targets) + 2 * _SHARE_NS * documents * groups
    return _bounded(
        "documents",
        Cost(_NS * ns, 40 * documents * groups),
        f"{groups:,} groups of all attributes are too many for {documents:,} documents: send fewer of either",
    )


def _vote(request: pb.VoteRequest) -> Cost:
    advice = f"{len(request.answers):,} answers are too many or long: send fewer, or use fewer similarities"
    return _bounded("answers", _polls([request.answers], request.similarities), advice)


def _anytime(request: pb.VoteAnytimeRequest) -> Cost:
    """Return the cost of the start of a session; :func:`arrival` has that of its answers."""
    return Cost(0.0, 8 * max(1, len(request.start.vote.similarities)) * 100**2)


def _weights(request: pb.SearchVoteWeightsRequest) -> Cost:
    similarities = len(request.vote.similarities) or 1
    cells = sum(len(question.answers) ** 2 for question in request.questions)
    most = max((len(question.answers) for question in request.questions), default=0)
    weights = similarities + most
    ns = _EVALUATION_NS + _WEIGHED_NS * (weights**2 + cells * (similarities + 1))
    lines = _EVALUATIONS * weights + (MAX_EXACT_LINES if most == 3 else 0)
    line_ns = _LINE_NS + _LINED_NS * len(request.questions)
    cpu_s = _NS * (_EVALUATIONS * weights * ns + lines * line_ns)
    searched = Cost(cpu_s, 8 * (cells * (similarities + 5) + weights**2))
    advice = (
        f"{len(request.questions):,} questions with up to {most:,} answers and {similarities} similarities "
        "are too many: send fewer of either"
    )
    _bounded("questions", searched, advice)  # before any text is looked at
    polls = _polls([question.answers for question in request.questions], request.vote.similarities)
    return _bounded("questions", Cost(searched.cpu_s + polls.cpu_s, searched.bytes + polls.bytes), advice)


def _retrievers(request: pb.CompareRetrieversRequest) -> Cost:
    pools = 2 ** min(len(request.retrievers), 20)  # more are refused before they are counted
    ns = _POOL_NS * pools + 2 * READ_NS * request.ByteSize()
    for question in request.questions:
        references, contexts = len(question.references), len(question.contexts)
        ns += _TEXT_NS * (len(question.answers) + references + contexts) + PAIR_NS * references * contexts
        ns += 2 * _SEARCH_NS * (references + 1) * sum(map(len, question.contexts))
    return _bounded(
        "questions",
        Cost(_NS * ns, 50 * pools),
        "send fewer questions, or fewer references and shorter contexts",
    )


_COSTS: Final[Mapping[type[Message], Callable[[Any], Cost]]] = {
    pb.EvaluateExposureRequest: _exposure,
    pb.EvaluateUtilityRequest: _utility,
    pb.EvaluateTradeoffRequest: _tradeoff,
    pb.EvaluateRankingsRequest: _rankings,
    pb.EvaluateRankedListRequest: _ranked_list,
    pb.EvaluateConversationRequest: conversation,
    pb.VoteRequest: _vote,
    pb.VoteAnytimeRequest: _anytime,
    pb.SearchVoteWeightsRequest: _weights,
    pb.CompareRetrieversRequest: _retrievers,
    pb.CompareSystemsRequest: _systems,
}


@dataclass(frozen=True, slots=True)
class _Compared:
    """Texts that are compared pair by pair.

    Attributes:
        sizes: characters of each text.
        pairs: number of pairs.
        shorter: characters of the shorter text of each pair, added up.
        both: characters of both texts of each pair, added up.
    """

    sizes: Sequence[int]
    pairs: int
    shorter: int
    both: int

    def ns(self, similarity: str) -> int:
        """Return the nanoseconds of a similarity; 0 for an unknown one, which is refused."""
        if similarity not in names():
            return 0
        ns = READ_NS * sum(self.sizes) + _ALIKE_NS * self.pairs
        if similarity == _ENCODER:
            return ns + _MODEL_NS * sum(min(2 + size // 2, _MODEL_TOKENS) for size in self.sizes)
        if needs_model(similarity):  # both ways
            return ns + _MODEL_NS * min(4 * self.pairs + self.both, 2 * _MODEL_TOKENS * self.pairs)
        return ns + _WORD_NS * (self.pairs + self.shorter // 2) + _HELD_NS * self.both


def _polls(votes: Sequence[Sequence[str]], similarities: Sequence[str]) -> Cost:
    """Return the cost of votes one after the other."""
    chosen = similarities or names()[:1]
    ns, held = 0, 0
    for texts in votes:
        count, sizes = len(texts), sorted(map(len, texts), reverse=True)
        # Each text is the shorter one of the pairs with those before it.
        shorter = sum(place * size for place, size in enumerate(sizes))
        compared = _Compared(sizes, count * (count - 1) // 2, shorter, (count - 1) * sum(sizes))
        ns += _VOTED_NS * (len(chosen) + 1) * count**2 + sum(map(compared.ns, chosen))
        held = max(held, count**2 * (68 + 16 * len(chosen)) + 4 * sum(sizes))
    return Cost(_NS * ns, held)


def _resamples(bootstrap: pb.Bootstrap) -> int:
    return bootstrap.num_resamples or DEFAULT_RESAMPLES


def _bounded(field: str, cost: Cost, advice: str) -> Cost:
    if cost.cpu_s > MAX_CPU_S or cost.bytes > MAX_BYTES:
        raise InvalidField(
            field,
            f"would take {cost.cpu_s:.1f} CPU seconds and {cost.bytes >> 20} MiB; at most {MAX_CPU_S:g} and "
            f"{MAX_BYTES >> 20} are allowed: {advice}",
        )
    return cost

"""What the evaluator computes on request: its inputs, and its results.

Values that are undefined are None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from evenmesh.types.conversation import Divergence, GroupFairness
from evenmesh.types.reports import Estimate

Pooling = Literal["mean", "max", "majority", "plurality"]
"""How similarities to the other answers become one score."""


@dataclass(frozen=True, slots=True)
class Browsing:
    """How much attention each position gets; give one of the four.

    Attributes:
        top_k: equal attention to this many positions, none after; 1 to 1,000.
        rbp_patience: attention ``rbp_patience ** (rank - 1)``; 0 up to, not including, 1.
        reciprocal_rank: attention ``1 / rank``.
        position_weights: attention of each position, best first, 0 to 1; positions beyond get 0.
    """

    top_k: int | None = None
    rbp_patience: float | None = None
    reciprocal_rank: bool | None = None
    position_weights: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class GroupExposure:
    """Exposure of one group of items.

    Attributes:
        name: the group.
        exposure: expected exposure summed over its items; attention, 0 or more.
        target: target exposure summed over its items; attention, 0 or more.
        ratio: exposure over target, 1 where fair; None where the target is 0.
        difference: exposure minus target, 0 where fair.
    """

    name: str
    exposure: float
    target: float
    ratio: float | None
    difference: float


@dataclass(frozen=True, slots=True)
class ExposureMeasures:
    """Expected exposure of rankings (Kim and Diaz, 2025, section 3.3.1).

    Attributes:
        exposure: expected exposure of each item [n], 0 to 1.
        target: target exposure of each item [n], 0 to 1.
        ee_d: disparity EE-D, squared attention, 0 to k.
        ee_r: relevance EE-R, squared attention; None when no item is useful.
        ee_l: squared distance to the target, 0 to 2k; None when no item is useful.
        ee_d_norm: EE-D over its bound, 0 to 1.
        ee_r_norm: EE-R over its bound, 0 to 1; None when no item is useful.
        ee_d_bound: EE-D of a deterministic ranking under the browsing model.
        groups: exposure by group, ascending by name; empty without groups.
        worst_group_ratio: smallest over largest ratio of groups, 1 where fair; None where undefined.
        worst_group_difference: largest minus smallest difference, 0 where fair; None without groups.
    """

    exposure: tuple[float, ...]
    target: tuple[float, ...]
    ee_d: float
    ee_r: float | None
    ee_l: float | None
    ee_d_norm: float
    ee_r_norm: float | None
    ee_d_bound: float
    groups: tuple[GroupExposure, ...]
    worst_group_ratio: float | None
    worst_group_difference: float | None


@dataclass(frozen=True, slots=True)
class UtilityMeasures:
    """Utility of answers against references.

    Attributes:
        utilities: utility of each answer, 0 to 1.
        expected_utility: their expectation, 0 to 1.
        normalized_expected_utility: it over ``u_max``; None without one.
        gains: utility of each answer minus that of the baseline, -1 to 1; empty without a baseline.
    """

    utilities: tuple[float, ...]
    expected_utility: float
    normalized_expected_utility: float | None
    gains: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How an interval is computed; None leaves the choice to the evaluator.

    Attributes:
        method: bias-corrected and accelerated, or percentile bootstrap; "bca" without it.
        num_resamples: 100 to 100,000; 2,000 without it.
        level: probability with which the interval holds, between 0 and 1; 0.95 without it.
        seed: 0 to 2^63 - 1; 0 without it.
    """

    method: Literal["bca", "percentile"] | None = None
    num_resamples: int | None = None
    level: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """A statistic with its bootstrap interval.

    Attributes:
        value: the statistic; None where undefined.
        low: lower end; None where undefined.
        high: upper end; None where undefined.
        level: probability with which the interval holds.
    """

    value: float | None
    low: float | None
    high: float | None
    level: float


@dataclass(frozen=True, slots=True)
class TradeoffPoint:
    """One query at one fairness dial.

    Attributes:
        query_id: the query; intervals are taken over queries.
        x: normalised EE-D or EE-R, 0 to 1; None where undefined.
        y: normalised EE-R or expected utility, 0 or more; None where undefined.
        baseline: y of the same query without sampling, 0 or more, for paired differences; None leaves the
            point out of them.
    """

    query_id: str
    x: float | None
    y: float | None
    baseline: float | None = None


@dataclass(frozen=True, slots=True)
class FairnessInterval:
    """One of five levels of fairness.

    Attributes:
        low: lower edge of the normalised disparity, 0 to 0.8.
        high: upper edge, not included, 0.2 to 1.
        value: mean y of its points minus the baseline; None without points.
        count: points in it.
        paired_value: mean of y minus the baseline of the same query; None without points that have one. This
            is the difference to argue with.
        paired_count: points in it that have their own baseline.
    """

    low: float
    high: float
    value: float | None
    count: int
    paired_value: float | None
    paired_count: int


@dataclass(frozen=True, slots=True)
class TradeoffMeasures:
    """How utility or relevance trades off against disparity (Kim and Diaz, 2025, section 5).

    Attributes:
        slope: least-squares slope; undefined where all x agree to within 1e-9.
        intercept: least-squares value at x = 0; None where the slope is undefined.
        auc: mean height of the averaged curve from ``auc_from`` to ``auc_to``: its area over that range.
        num_points: points used.
        num_undefined: points left out because x or y is None.
        fairness_intervals: mean y minus the baseline at five levels of fairness; empty without a baseline.
        auc_from: smallest average x of the curve, 0 to 1; None without points.
        auc_to: largest average x of the curve, 0 to 1; None without points.
    """

    slope: Interval
    intercept: float | None
    auc: Interval
    num_points: int
    num_undefined: int
    fairness_intervals: tuple[FairnessInterval, ...]
    auc_from: float | None
    auc_to: float | None


@dataclass(frozen=True, slots=True)
class GradedRanking:
    """The ranking of one query and its judgements.

    Attributes:
        query_id: the query.
        ranking: passage ids, best first, each at most once.
        grades: grade by passage id, 0 to 1,000; a passage without one is not relevant.
    """

    query_id: str
    ranking: Sequence[str]
    grades: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RankingQuality:
    """Measures of one query's ranking, 0 to 1.

    Attributes:
        query_id: the query.
        ndcg: nDCG@k; None without relevant passages.
        reciprocal_rank: reciprocal rank at k; None without relevant passages.
        recall: recall at k; None without relevant passages.
        precision: precision at k.
    """

    query_id: str
    ndcg: float | None
    reciprocal_rank: float | None
    recall: float | None
    precision: float


@dataclass(frozen=True, slots=True)
class RankingMeasures:
    """Measures of rankings against judgements.

    Attributes:
        queries: of each query, in the order of the request.
        ndcg: mean nDCG@k.
        reciprocal_rank: mean reciprocal rank.
        recall: mean recall.
        precision: mean precision.
    """

    queries: tuple[RankingQuality, ...]
    ndcg: Estimate
    reciprocal_rank: Estimate
    recall: Estimate
    precision: Estimate


@dataclass(frozen=True, slots=True)
class AttributeTarget:
    """Fairness target for one attribute.

    Attributes:
        gold: target share of each group; sum 1.
        divergence: how the achieved distribution is compared with it.
    """

    gold: Sequence[float]
    divergence: Divergence = "rnod"


@dataclass(frozen=True, slots=True)
class GradedDocument:
    """One document of a ranked list.

    Attributes:
        gain: 0 to the largest gain possible.
        membership: for each attribute the share of each group, sum 1; not needed where the gain is 0.
    """

    gain: float
    membership: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankedListMeasures:
    """Relevance and group fairness of a ranked list (GFRC, equation 1).

    Attributes:
        score: GFR, 0 or more.
        relevance: ERR or iRBU, 0 to 1.
        group_fairness: similarity to the target by attribute, 0 to 1.
        abandonment: share of users who stop at each rank, 0 to 1.
    """

    score: float
    relevance: float
    group_fairness: Mapping[str, float]
    abandonment: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Nugget:
    """A piece of a system turn.

    Attributes:
        word_count: place of its last word, counted over all turns and users from 1.
        gain: 0 to 1.
        membership: for each attribute the share of each group, sum 1.
        entity: its subject; an entity that was cited before is not relevant again. Empty if none.
    """

    word_count: int
    gain: float
    membership: Mapping[str, Sequence[float]] = field(default_factory=dict)
    entity: str = ""


@dataclass(frozen=True, slots=True)
class ConversationMeasures:
    """Relevance and group fairness of a conversation (GFRC).

    Attributes:
        relevance: R, 0 or more.
        group_fairness: GF, 0 to 1.
        combined: GFRC, 0 or more.
        attributes: fairness by attribute.
        position_weights: weight of each nugget, turn after turn, 0 to 1.
    """

    relevance: float
    group_fairness: float
    combined: float
    attributes: Mapping[str, GroupFairness]
    position_weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class VotingRule:
    """How answers vote; the evaluator chooses options that are left out.

    Attributes:
        retriever_weights: weight of each retriever, 0 to 1; equal without any.
        similarities: similarity measures by name, such as ``token_f1``, which is the default.
        similarity_weights: weight of each similarity measure, 0 to 1; equal without any.
        pooling: how similarities become one score; "mean" without it.
        threshold: similarity from which answers agree, for majority and plurality, 0 to 1; 0.8 without it.
        retriever_filter: retrievers of at most this weight do not vote, 0 to 1; 0.1 without it.
        drop_filtered: whether their answers also leave the pool (the authors' code) or stay (the paper).
    """

    retriever_weights: Sequence[float] = ()
    similarities: Sequence[str] = ()
    similarity_weights: Sequence[float] = ()
    pooling: Pooling | None = None
    threshold: float | None = None
    retriever_filter: float | None = None
    drop_filtered: bool = False


@dataclass(frozen=True, slots=True)
class VoteResult:
    """The winner of a vote, and why (Ensemble of Retrievers, equations 6 and 7).

    Attributes:
        winner: place of the winning answer, from 0.
        scores: score of each answer, 0 or more; None where its retriever is filtered.
        pooled: similarity of each answer before its retriever's weight, -1 to 1; None without other votes.
        agreement: share of the other answers that agree with the winner, 0 to 1; None without others.
    """

    winner: int
    scores: tuple[float | None, ...]
    pooled: tuple[float | None, ...]
    agreement: float | None


@dataclass(frozen=True, slots=True)
class ArrivedAnswer:
    """An answer of an ensemble, or the news that it does not come.

    Attributes:
        index: which of the expected answers, from 0.
        text: the answer.
        missing: whether its retriever failed or ran out of time.
    """

    index: int
    text: str = ""
    missing: bool = False


@dataclass(frozen=True, slots=True)
class VoteProgress:
    """A vote so far.

    Attributes:
        winner: place of the answer that leads, from 0; None while none may win.
        decided: whether no missing answer can change the winner.
        num_arrived: answers that arrived.
        num_waiting: answers still waited for.
        scores: score of each answer, 0 or more; None where it is filtered, missing or waited for.
    """

    winner: int | None
    decided: bool
    num_arrived: int
    num_waiting: int
    scores: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class VotingQuestion:
    """A question with the answers of every retriever, for a search of weights.

    Attributes:
        question: its text.
        answers: one of each retriever, in the same order for all questions.
        correctness: how correct each answer is, 0 to 1.
    """

    question: str
    answers: Sequence[str]
    correctness: Sequence[float]


@dataclass(frozen=True, slots=True)
class VoteWeights:
    """Weights of a vote that answer training questions best.

    Attributes:
        retriever_weights: weight of each retriever, 0 to the largest allowed.
        similarity_weights: weight of each similarity measure, likewise.
        correctness: mean correctness of the winners, 0 to 1.
        trace: best correctness after each evaluation.
        exact: whether no other weights do better on the training questions.
    """

    retriever_weights: tuple[float, ...]
    similarity_weights: tuple[float, ...]
    correctness: float
    trace: tuple[float, ...]
    exact: bool


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """A question as several retrievers led to its answer.

    Attributes:
        answers: one of each retriever.
        references: right answers; an answer is right that equals one after SQuAD's normalisation.
        contexts: text that each retriever found; without it kinds of errors are left out.
    """

    answers: Sequence[str]
    references: Sequence[str]
    contexts: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ErrorShares:
    """How the questions of one retriever end, as shares of all, 0 to 1.

    Attributes:
        correct: right answers.
        retriever_error: the passages lack the right answer.
        hallucination_error: the passages lack the given answer.
        extraction_error: the answer is the wrong part of the right passages.
        lucky_guess: right answers although the passages lack them.
    """

    correct: float
    retriever_error: float
    hallucination_error: float
    extraction_error: float
    lucky_guess: float


@dataclass(frozen=True, slots=True)
class RetrieverComparison:
    """How r retrievers disagree (Ensemble of Retrievers, equations 1 to 4, figure 5).

    Attributes:
        relative_win_ratio: [r, r], row over column: share of the questions that the column's retriever gets
            wrong and the row's right; None where undefined.
        mean_win_ratio: mean win ratio of each retriever, 0 to 1; None where undefined.
        mean_lose_ratio: mean lose ratio of each retriever, 0 to 1; None where undefined.
        upper_bound: mean accuracy of a perfect vote by number of retrievers, 0 to 1.
        accuracy: accuracy of each retriever, 0 to 1.
        errors: kinds of errors of each retriever; empty without contexts.
    """

    relative_win_ratio: tuple[tuple[float | None, ...], ...]
    mean_win_ratio: tuple[float | None, ...]
    mean_lose_ratio: tuple[float | None, ...]
    upper_bound: tuple[float, ...]
    accuracy: tuple[float, ...]
    errors: tuple[ErrorShares, ...]


@dataclass(frozen=True, slots=True)
class SystemComparison:
    """Whether the first of two systems is better.

    Attributes:
        difference: mean of first minus second, with its paired bootstrap interval.
        bootstrap_p: two-sided p-value of the paired bootstrap.
        mcnemar_p: two-sided p-value of McNemar's test; None unless every value is 0 or 1.
        only_first: queries that only the first gets right; None unless every value is 0 or 1.
        only_second: queries that only the second gets right; likewise.
    """

    difference: Interval
    bootstrap_p: float
    mcnemar_p: float | None
    only_first: int | None
    only_second: int | None

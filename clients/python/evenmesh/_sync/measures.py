# Generated from _async by generate_sync.py (make sdk). Do not edit.
"""Calls of the evaluator that measure what the caller brings; nothing of it is stored."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import grpc

from evenmesh._sync import adapter
from evenmesh._sync.calls import Calls
from evenmesh.codec.mapping import decode, encode
from evenmesh.codec.values import flag
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.types.measures import (
    AnsweredQuestion,
    ArrivedAnswer,
    AttributeTarget,
    Bootstrap,
    Browsing,
    ConversationMeasures,
    ExposureMeasures,
    GradedDocument,
    GradedRanking,
    Nugget,
    RankedListMeasures,
    RankingMeasures,
    RetrieverComparison,
    SystemComparison,
    TradeoffMeasures,
    TradeoffPoint,
    UtilityMeasures,
    VoteProgress,
    VoteResult,
    VoteWeights,
    VotingQuestion,
    VotingRule,
)
from evenmesh.types.request import Metric
from evenmesh.wire.errors import InvalidField


class MeasureCalls(Calls):
    """Measure rankings, answers and conversations."""

    def evaluate_exposure(
        self,
        usefulness: Sequence[float],
        *,
        k: int,
        rankings: Sequence[Sequence[int]] | None = None,
        probabilities: Sequence[float] = (),
        exposure: Sequence[float] | None = None,
        browsing: Browsing | None = None,
        groups: Sequence[str] = (),
        timeout: float | None = None,
    ) -> ExposureMeasures:
        """Return the expected exposure of rankings, compared with the useful items.

        Args:
            usefulness: grade of each of the n items, 0 to 1,000; above 0 is useful, and higher grades deserve
                to be shown first.
            k: positions that the generator reads, 1 to 1,000.
            rankings: places of items, best first, of equal lengths; either these or ``exposure``.
            probabilities: probability of each ranking where these are all there are; empty for a sample.
            exposure: expected exposure of each item, 0 to 1, such as exact inclusion probabilities.
            browsing: attention by position; equal for the first k without it.
            groups: group or provider of each item; empty leaves groups out.
            timeout: seconds the call may take.

        Raises:
            InvalidField: a value is wrong; its field is that of the request.
        """
        packed = None
        if rankings is not None:
            depth = len(rankings[0]) if len(rankings) else 0
            if any(len(ranking) != depth for ranking in rankings):
                raise InvalidField("rankings", "must all have the same length")
            packed = {"depth": depth, "indices": [place for ranking in rankings for place in ranking]}
        values = {
            "rankings": packed,
            "exposure": exposure,
            "usefulness": usefulness,
            "k": k,
            "browsing": browsing,
            "groups": groups,
            "probabilities": probabilities,
        }
        request = encode(pb.EvaluateExposureRequest, values)
        reply = self._call("evaluator", self._evaluator.EvaluateExposure, request, timeout)
        return decode(ExposureMeasures, reply)

    def evaluate_utility(
        self,
        answers: Sequence[str],
        references: Sequence[str],
        *,
        metric: Metric = "token_f1",
        weights: Sequence[float] = (),
        u_max: float | None = None,
        baseline_answer: str | None = None,
        timeout: float | None = None,
    ) -> UtilityMeasures:
        """Return the utility of answers, and its expectation.

        Args:
            answers: one for each sampled ranking.
            references: right answers; the best match counts.
            metric: how an answer is scored against a reference.
            weights: probability of each answer, 0 to 1; equal without any.
            u_max: largest utility known for the query and generator, above 0 up to 1; normalises the result.
            baseline_answer: the answer without any passage; set it to get the gain of each answer.
            timeout: seconds the call may take.

        Raises:
            InvalidField: a value is wrong.
        """
        values = {
            "answers": answers,
            "references": references,
            "metric": metric,
            "weights": weights,
            "u_max": u_max,
            "baseline_answer": baseline_answer,
        }
        request = encode(pb.EvaluateUtilityRequest, values)
        reply = self._call("evaluator", self._evaluator.EvaluateUtility, request, timeout)
        return decode(UtilityMeasures, reply)

    def evaluate_tradeoff(
        self,
        points: Iterable[TradeoffPoint],
        *,
        bootstrap: Bootstrap | None = None,
        baseline: float | None = None,
        timeout: float | None = None,
    ) -> TradeoffMeasures:
        """Return how utility or relevance trades off against disparity, over queries and fairness dials.

        Args:
            points: at most 100,000.
            bootstrap: how intervals are computed.
            baseline: mean y of the deterministic system, 0 or more; for values at five levels of fairness.
                The recommended paired values come from the ``baseline`` of points.
            timeout: seconds the call may take.

        Raises:
            InvalidField: a value is wrong.
        """
        values = {"points": points, "bootstrap": bootstrap, "baseline": baseline}
        request = encode(pb.EvaluateTradeoffRequest, values)
        reply = self._call("evaluator", self._evaluator.EvaluateTradeoff, request, timeout)
        return decode(TradeoffMeasures, reply)

    def evaluate_rankings(
        self, queries: Iterable[GradedRanking], *, k: int, timeout: float | None = None
    ) -> RankingMeasures:
        """Return nDCG, reciprocal rank, recall and precision of rankings against judgements.

        Args:
            queries: at most 10,000.
            k: depth of the cut, 1 to 1,000 positions.
            timeout: seconds the call may take.

        Raises:
            InvalidField: a value is wrong.
        """
        request = encode(pb.EvaluateRankingsRequest, {"queries": queries, "k": k})
        reply = self._call("evaluator", self._evaluator.EvaluateRankings, request, timeout)
        return decode(RankingMeasures, reply)

    def evaluate_ranked_list(
        self,
        documents: Iterable[GradedDocument],
        attributes: Mapping[str, AttributeTarget],
        *,
        max_gain: float,
        utility: Literal["err", "irbu"] = "err",
        weights: Mapping[str, float] | None = None,
        timeout: float | None = None,
    ) -> RankedListMeasures:
        """Return the relevance and group fairness of a ranked list (GFR).

        Args:
            documents: best first, at most 1,000.
            attributes: target by attribute; none measures relevance alone.
            max_gain: largest gain possible, above 0 up to 1,000.
            utility: what a user who stops at rank r gets: ``1 / r`` ("err") or ``0.99 ** r`` ("irbu").
            weights: weight of each attribute, and of relevance under the key ``utility``, 0 or more; equal
                without it.
            timeout: seconds the call may take.

        Raises:
            InvalidField: a value is wrong.
        """
        values = {
            "documents": documents,
            "attributes": attributes,
            "max_gain": max_gain,
            "utility": utility,
            "weights": weights,
        }
        request = encode(pb.EvaluateRankedListRequest, values)
        reply = self._call("evaluator", self._evaluator.EvaluateRankedList, request, timeout)
        return decode(RankedListMeasures, reply)

    def evaluate_conversation(
        self,
        turns: Iterable[Sequence[Nugget]] | str,
        attributes: Mapping[str, AttributeTarget],
        *,
        patience: int | None = None,
        relevance_weight: float | None = None,
        cumulative: bool = False,
        uniform_turns: bool = False,
        position_turns: bool = False,
        attribute_weights: Mapping[str, float] | None = None,
        timeout: float | None = None,
    ) -> ConversationMeasures:
        """Return the relevance and group fairness of a conversation (GFRC).

        Args:
            turns: nuggets of each system turn in order, or one conversation in the format of GFRC's figure 5.
            attributes: target by attribute.
            patience: words a user reads before giving up, 1 to 1,000,000; 1,250 without it.
            relevance_weight: weight of relevance in the combined value, 0 to 1; 0.5 without it.
            cumulative: whether a turn's distribution is that of all turns so far, not of its own nuggets.
            uniform_turns: whether turns without relevant nuggets count as uniform, instead of being left out.
            position_turns: whether late turns count less in group fairness, by the first relevant nugget.
            attribute_weights: weight of each attribute in group fairness, sum 1; equal without it.
            timeout: seconds the call may take.

        Raises:
            InvalidField: a value is wrong.
        """
        values = {
            "turns": None if isinstance(turns, str) else [{"nuggets": nuggets} for nuggets in turns],
            "transcript": turns if isinstance(turns, str) else None,
            "attributes": attributes,
            "patience": patience,
            "alpha": relevance_weight,
            "method": "cumulative" if flag("cumulative", cumulative) else "independent",
            "irrelevant_turns": "uniform" if flag("uniform_turns", uniform_turns) else "ignore",
            "turn_weights": "position" if flag("position_turns", position_turns) else "equal",
            "attribute_weights": attribute_weights,
        }
        request = encode(pb.EvaluateConversationRequest, values)
        reply = self._call("evaluator", self._evaluator.EvaluateConversation, request, timeout)
        return decode(ConversationMeasures, reply)

    def vote(
        self,
        answers: Sequence[str],
        *,
        question: str = "",
        rule: VotingRule | None = None,
        timeout: float | None = None,
    ) -> VoteResult:
        """Let answers vote: the one most similar to the others wins.

        Args:
            answers: one of each retriever, 2 to 1,000.
            question: for similarities that read it.
            rule: how answers vote.
            timeout: seconds the call may take.

        Raises:
            InvalidField: a value is wrong.
        """
        request = encode(pb.VoteRequest, rule or VotingRule())
        request.MergeFrom(encode(pb.VoteRequest, {"answers": answers, "question": question}))
        reply = self._call("evaluator", self._evaluator.Vote, request, timeout)
        return decode(VoteResult, reply)

    def vote_anytime(
        self,
        arriving: Iterable[ArrivedAnswer],
        *,
        num_answers: int,
        question: str = "",
        rule: VotingRule | None = None,
        timeout: float | None = None,
    ) -> Iterator[VoteProgress]:
        """Let answers vote as they arrive, and yield the vote so far after each.

        Closing the iterator, as is right once the vote is decided, ends the call.

        Args:
            arriving: the answers, or that they are missing, as they arrive.
            num_answers: answers to expect, 2 to 100.
            question: for similarities that read it.
            rule: how answers vote.
            timeout: seconds for the whole vote.

        Raises:
            InvalidField: while iterating, if a value is wrong.
        """
        vote = encode(pb.VoteRequest, rule or VotingRule())
        vote.MergeFrom(encode(pb.VoteRequest, {"question": question}))
        start = {"start": {"vote": vote, "num_answers": num_answers}}
        first = encode(pb.VoteAnytimeRequest, start)
        self._check_open()
        stream = adapter.Stream(self._evaluator.VoteAnytime, self._seconds(timeout))
        try:
            stream.write(first)
            for answer in arriving:
                stream.write(encode(pb.VoteAnytimeRequest, {"answer": answer}))
                yield decode(VoteProgress, stream.read())
        except adapter.INTERRUPTED:
            self._check_interrupted()
            raise
        except grpc.RpcError as exc:
            raise self._error(exc, "evaluator") from exc
        finally:
            stream.cancel()

    def search_vote_weights(
        self,
        questions: Iterable[VotingQuestion],
        *,
        rule: VotingRule | None = None,
        max_weight: float | None = None,
        timeout: float | None = None,
    ) -> VoteWeights:
        """Search the weights of a vote that answer training questions best.

        Args:
            questions: at most 10,000; the evaluator refuses what would take more than 5 CPU seconds.
            rule: how answers vote; its weights are not used.
            max_weight: upper bound of every weight, above 0 up to 1; 0.6 without it.
            timeout: seconds the call may take.

        Raises:
            InvalidField: a value is wrong.
        """
        values = {"questions": questions, "vote": rule or VotingRule(), "max_weight": max_weight}
        request = encode(pb.SearchVoteWeightsRequest, values)
        reply = self._call("evaluator", self._evaluator.SearchVoteWeights, request, timeout)
        return decode(VoteWeights, reply)

    def compare_retrievers(
        self,
        retrievers: Sequence[str],
        questions: Iterable[AnsweredQuestion],
        *,
        timeout: float | None = None,
    ) -> RetrieverComparison:
        """Return how retrievers disagree: win ratios, the bound of a perfect vote, kinds of errors.

        Args:
            retrievers: their names, 2 to 20.
            questions: at most 10,000; answers and contexts in the order of ``retrievers``.
            timeout: seconds the call may take.

        Raises:
            InvalidField: a value is wrong.
        """
        request = encode(pb.CompareRetrieversRequest, {"retrievers": retrievers, "questions": questions})
        reply = self._call("evaluator", self._evaluator.CompareRetrievers, request, timeout)
        return decode(RetrieverComparison, reply)

    def compare_systems(
        self,
        first: Sequence[float],
        second: Sequence[float],
        *,
        bootstrap: Bootstrap | None = None,
        timeout: float | None = None,
    ) -> SystemComparison:
        """Return whether the first of two systems is better on the same queries.

        Args:
            first: value of each query, in the metric's unit.
            second: likewise, in the same order of queries.
            bootstrap: how the interval of the difference is computed.
            timeout: seconds the call may take.

        Raises:
            InvalidField: a value is wrong.
        """
        values = {"first": first, "second": second, "bootstrap": bootstrap}
        request = encode(pb.CompareSystemsRequest, values)
        reply = self._call("evaluator", self._evaluator.CompareSystems, request, timeout)
        return decode(SystemComparison, reply)

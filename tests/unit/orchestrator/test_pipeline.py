"""The flow of an ask over fakes: order of events, contexts, budgets, degradations, cancellation."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import replace
from itertools import permutations
from typing import TypeVar

import grpc
import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.common.v1.common_pb2 import Policy
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import (
    SHARE_FULL,
    FailedPrecondition,
    InvalidField,
    MeshError,
    NotFound,
    Overloaded,
    Unavailable,
)
from evenmesh_core.plackett_luce import Disparity
from evenmesh_kit.rpc.breaker import Unanswered
from evenmesh_orchestrator.asks import contexts
from evenmesh_orchestrator.domain import (
    Action,
    Answered,
    Ask,
    Degraded,
    Event,
    Failed,
    Finished,
    Ranked,
    Retrieved,
    Sampling,
    Stage,
)
from tests.support.waiting import until
from tests.unit.orchestrator.fakes import Mesh, ask, passage

E = TypeVar("E")

AWAY = Unavailable("UPSTREAM_UNAVAILABLE", "away")


def _kinds(events: list[Event]) -> list[str]:
    """Names of the events, deltas in a row as one."""
    kinds: list[str] = []
    for event in events:
        kind = type(event).__name__
        if kind != "Delta" or kinds[-1:] != ["Delta"]:
            kinds.append(kind)
    return kinds


def _only(events: list[Event], kind: type[E]) -> E:
    (event,) = [event for event in events if isinstance(event, kind)]
    return event


def _all(events: list[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


async def test_events_come_in_order(mesh: Mesh) -> None:
    events = await mesh.run(ask(reranker="rankrag"))
    assert _kinds(events) == ["Retrieved", "Ranked", "Delta", "Answered", "ExposureReport", "Finished"]
    answered = _only(events, Answered)
    assert "".join(delta.text for delta in _all(events, pb.Delta)) == answered.answer.text
    finished = _only(events, Finished)
    assert list(finished.stage_ms) == [Stage.RETRIEVE, Stage.RERANK, Stage.GENERATE, Stage.OBSERVE]
    assert sum(finished.stage_ms.values()) <= finished.total_ms
    (observation,) = mesh.observer.posted
    assert observation.ask.id == finished.ask_id
    assert list(observation.stage_ms) == [Stage.RETRIEVE, Stage.RERANK, Stage.GENERATE]


async def test_the_collection_that_was_searched_is_named(mesh: Mesh) -> None:
    passages = retriever_pb.InlineCandidates(passages=[common_pb2.Passage(id="x", text="X.")])
    for asked, named in (
        (ask(), "demo"),
        (ask(collection="zoo"), "zoo"),
        (ask(candidates=passages), ""),
        (replace(ask(), web="searx"), ""),
    ):
        assert _only(await mesh.run(asked), Retrieved).collection == named


async def test_a_deterministic_ask_gets_the_whole_pool_and_cuts_it(mesh: Mesh) -> None:
    events = await mesh.run(ask(k=2, depth=6))
    assert [call["k"] for call in mesh.retriever.calls] == [6]
    assert _only(events, Ranked).contexts.rows.tolist() == [[0, 1]]
    assert (_only(events, Ranked).reranker, mesh.reranker.calls) == ("none", [])
    assert _only(events, Answered).answer.text == "a b"


async def test_a_reranker_orders_the_first_of_the_pool(mesh: Mesh) -> None:
    mesh.reranker.scores = {"a": 0.1, "b": 0.9, "c": 0.5, "d": 0.9, "e": 1.0}
    events = await mesh.run(ask(reranker="rankrag", k=3, rerank_depth=4, agent={"task_id": "qa"}))
    (call,) = mesh.reranker.calls
    assert call["ids"] == ["a", "b", "c", "d"]
    assert call["agent"].task_id == "qa"
    # e was not handed over; b and d tie and stand by id.
    assert _only(events, Ranked).contexts.rows.tolist() == [[1, 3, 2]]
    assert (_only(events, Ranked).reranker, _only(events, Ranked).model_version) == ("rankrag", "r1")


async def test_the_reranker_gets_the_retrievers_scores(mesh: Mesh) -> None:
    """The pool has scores 6 to 1; of all of it, fewer than 20, mean 7/2 and variance 35/12."""
    await mesh.run(ask(reranker="rankrag", k=2, rerank_depth=2))
    await mesh.run(ask(reranker="rankrag", k=2, rerank_depth=3, fusion=0.5))
    await mesh.run(ask(reranker="rankrag", k=2, rerank_depth=3, fusion=0.0))
    default, named, none = (call["first"] for call in mesh.reranker.calls)
    assert (default.scores.tolist(), default.weight) == ([6.0, 5.0], None)
    assert (named.scores.tolist(), named.weight) == ([6.0, 5.0, 4.0], 0.5)
    for one in (default, named):
        assert (one.mean, one.deviation) == (3.5, pytest.approx(math.sqrt(35 / 12)))
    assert none is None


async def test_what_a_reranking_was_fused_with_is_reported(mesh: Mesh) -> None:
    mesh.reranker.fusion = 1.5
    sampling = {"num_rankings": 2, "alpha": 1.0}
    for asked in (ask(reranker="rankrag"), ask(reranker="rankrag", sampling=sampling)):
        assert _only(await mesh.run(asked), Ranked).fusion == 1.5
    assert _only(await mesh.run(ask()), Ranked).fusion == 0.0


async def test_drawn_passages_are_standardized_with_the_pool(mesh: Mesh) -> None:
    mesh.retriever.rankings = [[0, 5], [5, 0]]
    stage = pb.SAMPLING_STAGE_RETRIEVER
    await mesh.run(
        ask(reranker="rankrag", k=2, rerank_depth=2, sampling={"num_rankings": 2}, sampling_stage=stage)
    )
    (call,) = mesh.reranker.calls
    assert (call["first"].scores.tolist(), call["first"].mean) == ([6.0, 1.0], 3.5)


async def test_sampling_at_the_retriever_without_a_reranker(mesh: Mesh) -> None:
    mesh.retriever.rankings = [[0, 1], [2, 0], [0, 1]]
    events = await mesh.run(ask(k=2, sampling={"num_rankings": 3, "alpha": 4, "seed": 9}))
    (call,) = mesh.retriever.calls
    assert (call["k"], call["sampling"]) == (2, Sampling(4.0, 3, 9))
    contexts = _only(events, Ranked).contexts
    assert contexts.rows.tolist() == [[0, 1], [2, 0], [0, 1]]
    assert contexts.log_probabilities is not None
    assert contexts.log_probabilities.tolist() == [-1.0] * 3
    assert [(one.answer.text, one.samples) for one in _all(events, Answered)] == [
        ("a b", (0, 2)),
        ("c a", (1,)),
    ]


async def test_sampling_at_the_retriever_with_a_reranker_scores_the_union_once(mesh: Mesh) -> None:
    mesh.retriever.rankings = [[0, 1, 2], [2, 5, 0]]
    mesh.reranker.scores = {"a": 0.1, "b": 0.2, "c": 0.3, "f": 0.4}
    events = await mesh.run(
        ask(
            reranker="rankrag",
            k=2,
            rerank_depth=3,
            sampling={"num_rankings": 2},
            sampling_stage=pb.SAMPLING_STAGE_RETRIEVER,
        )
    )
    assert [call["k"] for call in mesh.retriever.calls] == [3]
    assert [call["ids"] for call in mesh.reranker.calls] == [["a", "b", "c", "f"]]
    # Each sample is ordered by score within itself, then cut: c b of (a b c), f c of (c f a).
    assert _only(events, Ranked).contexts.rows.tolist() == [[2, 1], [5, 2]]


async def test_sampling_at_the_reranker_draws_from_its_scores(mesh: Mesh) -> None:
    mesh.reranker.scores = dict(zip("abcdef", [0, 0, 0, 1, 0, 0], strict=True))
    asked = ask(
        reranker="rankrag",
        k=1,
        rerank_depth=5,
        sampling={"num_rankings": 40, "alpha": 100},
        sampling_stage=pb.SAMPLING_STAGE_RERANKER,
    )
    events = await mesh.run(asked)
    (call,) = mesh.retriever.calls
    assert (call["sampling"], call["k"]) == (None, 100)
    # At alpha 100 only d, which alone has a score, is ever drawn.
    ranked = _only(events, Ranked)
    assert ranked.contexts.rows.tolist() == [[3]] * 40
    assert ranked.contexts.log_probabilities is not None
    assert len(_all(events, Answered)) == 1
    again = await mesh.run(replace(asked, sampling=Sampling(1.0, 40, 3)))
    same = await mesh.run(replace(asked, sampling=Sampling(1.0, 40, 3)))
    assert _only(again, Ranked).contexts.rows.tolist() == _only(same, Ranked).contexts.rows.tolist()


async def test_the_retriever_finds_the_dial_of_a_target_if_it_orders_last(mesh: Mesh) -> None:
    mesh.retriever.policy = Policy(target_disparity=0.5, alpha=3.25, disparity=0.5, reached=True)
    events = await mesh.run(ask(k=2, sampling={"num_rankings": 1, "disparity": 0.5, "seed": 0}))
    (call,) = mesh.retriever.calls
    assert call["sampling"] == Sampling(None, 1, 0, Disparity(0.5))
    assert _only(events, Ranked).policy == mesh.retriever.policy
    (observation,) = mesh.observer.posted
    assert observation.ranked.policy == mesh.retriever.policy


async def test_the_dial_of_a_target_is_found_for_the_rerankers_scores(mesh: Mesh) -> None:
    mesh.reranker.scores = dict(zip("abcdef", [0.1, 0.2, 0.9, 0.6, 0.3, 0.4], strict=True))
    asked = ask(
        reranker="rankrag",
        k=2,
        rerank_depth=6,
        sampling={"num_rankings": 9, "relevance_loss": 0.1, "seed": 0},
    )
    ranked = _only(await mesh.run(asked), Ranked)
    (call,) = mesh.retriever.calls
    assert call["sampling"] is None
    policy = ranked.policy
    assert policy is not None
    assert policy.relevance_kind == Policy.RELEVANCE_PROBABILITY
    assert policy.best_relevance == pytest.approx(1.5)
    assert policy.relevance == pytest.approx(0.9 * 1.5, abs=1e-4)
    sampled = _only(await mesh.run(replace(asked, sampling=Sampling(policy.alpha, 9, 0))), Ranked)
    assert sampled.contexts.rows.tolist() == ranked.contexts.rows.tolist()
    assert sampled.policy is None


async def test_a_target_without_passages_has_no_policy(mesh: Mesh) -> None:
    mesh.retriever.passages = []
    for reranker in ("none", "rankrag"):
        events = await mesh.run(ask(reranker=reranker, sampling={"disparity": 0.5}))
        assert _only(events, Ranked).policy is None


async def test_without_its_reranker_the_retrievers_scores_are_sampled(mesh: Mesh) -> None:
    mesh.reranker.error = AWAY
    events = await mesh.run(
        ask(
            reranker="rankrag",
            k=1,
            rerank_depth=5,
            sampling={"num_rankings": 30, "alpha": 100},
            sampling_stage=pb.SAMPLING_STAGE_RERANKER,
        )
    )
    assert _only(events, Ranked).contexts.rows.tolist() == [[0]] * 30
    assert _only(events, Degraded).action is Action.RETRIEVER_ORDER


async def test_num_answers_answers_the_first_samples_only(mesh: Mesh) -> None:
    mesh.retriever.rankings = [[0], [1], [0], [2]]
    events = await mesh.run(ask(k=1, num_answers=2, sampling={"num_rankings": 4}))
    assert [(one.answer.text, one.samples) for one in _all(events, Answered)] == [("a", (0,)), ("b", (1,))]
    # All four rankings count for exposure: a 1/2, b and c 1/4 each, so EE-D = 1/4 + 1/16 + 1/16 of 1.
    assert _only(events, pb.ExposureReport).ee_d_norm == pytest.approx(6 / 16)


async def test_no_answers_need_no_generator(mesh: Mesh) -> None:
    mesh.generator.stream_error = AWAY
    events = await mesh.run(ask(num_answers=0))
    assert _kinds(events) == ["Retrieved", "Ranked", "ExposureReport", "Finished"]
    assert mesh.generator.streamed == []


async def test_other_contexts_go_in_bounded_batches(mesh: Mesh) -> None:
    mesh.retriever.rankings = [[i % 6] for i in range(9)]
    mesh.generator.batch_delay_s = 0.01
    events = await mesh.run(ask(k=1, sampling={"num_rankings": 9}))
    assert len(mesh.generator.streamed) == 1
    assert [len(batch) for batch in mesh.generator.batches] == [2, 2, 1]
    assert mesh.generator.most_batches_at_once == 2
    assert [one.samples for one in _all(events, Answered)] == [(0, 6), (1, 7), (2, 8), (3,), (4,), (5,)]
    # The stream decodes greedily by default, so the batches ask for it.
    assert {prompt.decoding.num_beams for batch in mesh.generator.batches for prompt in batch} == {1}


async def test_prompts_of_many_long_contexts_are_made_when_it_is_their_turn(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each prompt copies its passages: all at once, those of one ask took two gigabytes."""
    made, waiting = 0, 0
    prompt = Ask.prompt

    def counted(self: Ask, passages: Iterable[common_pb2.Passage]) -> generator_pb.GenerateRequest:
        nonlocal made, waiting
        made += bool(passages)  # without any, its size is wanted
        waiting = max(waiting, made - 1 - sum(map(len, mesh.generator.batches)))
        return prompt(self, passages)

    monkeypatch.setattr(Ask, "prompt", counted)
    mesh.generator.batch_delay_s = 0.001
    mesh.retriever.rankings = list(permutations(range(6), 3))
    events = await mesh.run(ask(k=3, sampling={"num_rankings": 120}))
    batch = mesh.config.batch_size
    assert made == len(_all(events, Answered)) == 120
    assert waiting <= batch


async def test_a_batch_has_no_more_bytes_than_the_generator_takes(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "BATCH_BYTES", 10_000)
    mesh.config = replace(mesh.config, batch_size=16)
    mesh.retriever.rankings = list(permutations(range(6), 3))
    for size, most in ((100, 16), (1_000, 3), (20_000, 1)):
        mesh.retriever.passages = [passage(name, "x" * size) for name in "abcdef"]
        mesh.generator.batches.clear()
        events = await mesh.run(ask(k=3, sampling={"num_rankings": 120}))
        assert len(_all(events, Answered)) == 1 + sum(map(len, mesh.generator.batches))
        assert max(map(len, mesh.generator.batches)) == most
    mesh.retriever.passages = [passage(name) for name in "abcdef"]
    mesh.generator.batches.clear()
    turns = [{"question": "And brakes?", "answer": "x" * 3_000}]
    await mesh.run(ask(k=3, sampling={"num_rankings": 120}, turns=turns))
    assert max(map(len, mesh.generator.batches)) == 3


async def test_decoding_that_was_asked_for_is_kept(mesh: Mesh) -> None:
    mesh.retriever.rankings = [[0], [1]]
    await mesh.run(ask(k=1, sampling={"num_rankings": 2}, decoding={"num_beams": 4}))
    assert mesh.generator.streamed[0].decoding.num_beams == 4
    assert mesh.generator.batches[0][0].decoding.num_beams == 4


async def test_words_that_come_together_leave_together(mesh: Mesh) -> None:
    mesh.generator.says = lambda _: " ".join(["word"] * 200)
    events = await mesh.run(ask())
    deltas = _all(events, pb.Delta)
    assert "".join(delta.text for delta in deltas) == _only(events, Answered).answer.text
    assert len(deltas) <= 3


async def test_answers_are_cited_from_their_own_context(mesh: Mesh) -> None:
    mesh.retriever.passages = [
        passage("a", "The Rhine is long.", provider="P"),
        passage("b", "So is the Elbe."),
        passage("c", "Rhine again."),
    ]
    mesh.retriever.rankings = [[0, 1], [2, 1]]
    mesh.generator.says = lambda _: "the Rhine"
    events = await mesh.run(ask(k=2, sampling={"num_rankings": 2}))
    assert [[(c.passage_id, c.rank) for c in one.citations] for one in _all(events, Answered)] == [
        [("a", 1)],
        [("c", 1)],
    ]


async def test_retrieval_free_asks_retrieve_nothing(mesh: Mesh) -> None:
    events = await mesh.run(ask(reranker="rankrag", augmentation=generator_pb.AUGMENTATION_RETRIEVAL_FREE))
    assert (mesh.retriever.calls, mesh.reranker.calls) == ([], [])
    assert _kinds(events)[0:2] == ["Retrieved", "Ranked"]
    assert _only(events, Ranked).contexts.rows.shape == (1, 0)
    assert mesh.generator.streamed[0].passages == []
    assert not _all(events, Degraded)


async def test_an_empty_pool_is_answered_without_passages_by_name(mesh: Mesh) -> None:
    mesh.retriever.passages, mesh.retriever.rankings = [], [[]]
    events = await mesh.run(ask(reranker="rankrag"))
    degraded = _only(events, Degraded)
    assert (degraded.stage, degraded.action, degraded.reason) == (
        Stage.RETRIEVE,
        Action.NO_CONTEXT,
        "NO_PASSAGES",
    )
    assert _only(events, Answered).citations == []
    assert mesh.observer.posted[0].degradations == (degraded,)


@pytest.mark.parametrize(
    "error", [AWAY, Overloaded("full", 1.5), NotFound("collection", "no such collection")]
)
async def test_without_a_retriever_the_ask_fails_with_its_error(mesh: Mesh, error: MeshError) -> None:
    mesh.retriever.error = error
    with pytest.raises(MeshError) as caught:
        await mesh.run(ask())
    assert caught.value is error
    assert mesh.observer.posted == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AWAY, "UPSTREAM_UNAVAILABLE"),
        (Overloaded("full", 1.0), "UPSTREAM_OVERLOADED"),
        (Overloaded("the tenant has all it may", 1.0, SHARE_FULL), "SHARE_FULL"),
        (MeshError(grpc.StatusCode.DEADLINE_EXCEEDED, "X", "late"), "BUDGET_EXCEEDED"),
        (MeshError(grpc.StatusCode.INTERNAL, "X", "broken"), "UPSTREAM_ERROR"),
    ],
)
async def test_without_a_reranker_the_retrievers_order_is_used_by_name(
    mesh: Mesh, error: MeshError, reason: str
) -> None:
    mesh.reranker.error = error
    events = await mesh.run(ask(reranker="rankrag", k=2))
    degraded = _only(events, Degraded)
    assert (degraded.stage, degraded.action, degraded.reason) == (
        Stage.RERANK,
        Action.RETRIEVER_ORDER,
        reason,
    )
    assert _kinds(events)[1:3] == ["Degraded", "Ranked"]
    assert _only(events, Ranked).contexts.rows.tolist() == [[0, 1]]
    assert _only(events, Ranked).reranker == "none"
    assert mesh.observer.posted[0].degradations == (degraded,)


@pytest.mark.parametrize(
    ("part", "name"), [("retriever", "error"), ("reranker", "error"), ("generator", "stream_error")]
)
async def test_what_never_fits_is_passed_on_as_it_is(mesh: Mesh, part: str, name: str) -> None:
    error = MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVER_CAPACITY", "at most 5 fit: send less at once")
    setattr(getattr(mesh, part), name, error)
    with pytest.raises(MeshError) as caught:
        await mesh.run(ask(reranker="rankrag"))
    assert caught.value is error
    assert caught.value.retry_after_s is None


async def test_what_the_reranker_refuses_is_the_callers_to_mend(mesh: Mesh) -> None:
    mesh.reranker.error = InvalidField("reranker", "no such reranker")
    with pytest.raises(InvalidField) as caught:
        await mesh.run(ask(reranker="nonsense"))
    assert caught.value.field == "reranker"


async def test_a_default_reranker_that_refuses_is_not_the_callers_fault(mesh: Mesh) -> None:
    mesh.reranker.error = FailedPrecondition("NO_RELEVANCE", "the model cannot judge")
    asked = replace(ask(reranker="rankrag"), names_reranker=False)
    degraded = _only(await mesh.run(asked), Degraded)
    assert (degraded.action, degraded.reason) == (Action.RETRIEVER_ORDER, "UPSTREAM_REFUSED")


async def test_a_slow_reranker_is_cut_at_its_budget(mesh: Mesh) -> None:
    mesh.reranker.delay_s = 30
    events = await mesh.run(ask(reranker="rankrag"), seconds=2)
    assert _only(events, Degraded).reason == "BUDGET_EXCEEDED"
    assert _only(events, Answered)
    assert mesh.reranker.cancelled == 1
    # 0.35 of the two seconds, less what retrieval took of them.
    assert 0.5 < mesh.reranker.calls[0]["timeout_s"] <= 0.7


async def test_a_slow_retriever_is_cut_and_the_ask_fails(mesh: Mesh) -> None:
    mesh.retriever.delay_s = 30
    with pytest.raises(MeshError) as caught:
        await mesh.run(ask(), seconds=1)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.reason == "BUDGET_EXCEEDED"
    assert mesh.retriever.cancelled == 1


async def test_nothing_is_called_when_no_time_is_left(mesh: Mesh) -> None:
    with pytest.raises(MeshError) as caught:
        await mesh.run(ask(), seconds=0.001)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert mesh.retriever.calls == []


async def test_a_generator_that_fails_before_its_first_word_fails_the_ask(mesh: Mesh) -> None:
    mesh.generator.stream_error = AWAY
    with pytest.raises(Unavailable):
        await mesh.run(ask())
    assert mesh.observer.posted == []


async def test_a_generator_that_fails_in_the_middle_leaves_the_answer_out_by_name(mesh: Mesh) -> None:
    mesh.retriever.rankings = [[0, 1, 2], [1, 2, 3]]
    mesh.generator.stream_error, mesh.generator.words_before_error = AWAY, 1
    mesh.generator.delay_s = 0.05
    events = await mesh.run(ask(k=3, sampling={"num_rankings": 2}))
    assert _kinds(events) == [
        "Retrieved", "Ranked", "Delta", "Degraded", "Failed", "Answered", "ExposureReport", "Finished",
    ]  # fmt: skip
    assert (_only(events, Degraded).action, _only(events, Degraded).reason) == (
        Action.NO_ANSWER,
        "UPSTREAM_UNAVAILABLE",
    )
    assert (_only(events, Failed).samples, _only(events, Failed).error) == ((0,), AWAY)
    assert mesh.observer.posted[0].answers == _all(events, Answered)


@pytest.mark.parametrize(
    ("second", "said", "failed"),
    [
        (["a b", " c"], ["a", " b", " c"], False),  # pieces may be cut elsewhere
        (["a", " b", " c"], ["a", " b", " c"], False),
        (["a x c"], ["a", " b"], True),  # what was sent cannot be taken back
        (["a"], ["a", " b"], True),
        ([], ["a", " b"], True),
    ],
)
async def test_another_generator_writes_again_what_one_that_ended_had_begun(
    mesh: Mesh, second: list[str], said: list[str], failed: bool
) -> None:
    calls: list[float] = []
    broken = Unanswered("UPSTREAM_UNAVAILABLE", "the generator is unavailable")

    async def stream(prompt: object, *, timeout_s: float) -> AsyncIterator[str | generator_pb.Answer]:
        calls.append(timeout_s)
        for word in ["a", " b"] if len(calls) == 1 else second:
            yield word
        if len(calls) == 1 or not second:
            raise broken
        yield generator_pb.Answer(text="".join(second))

    mesh.generator.stream = stream  # type: ignore[method-assign,assignment]
    events = await mesh.run(ask(k=1))
    assert "".join(one.text for one in _all(events, pb.Delta)) == "".join(said)
    assert len(calls) == 2
    assert calls[1] <= calls[0]
    if failed:
        assert _only(events, Failed).error is broken
        assert _only(events, Degraded).action is Action.NO_ANSWER
    else:
        assert _only(events, Answered).answer.text == "a b c"
        assert not _all(events, Degraded)


async def test_another_generator_writes_what_one_that_ended_had_not_begun(mesh: Mesh) -> None:
    calls: list[float] = []

    async def stream(prompt: object, *, timeout_s: float) -> AsyncIterator[str | generator_pb.Answer]:
        calls.append(timeout_s)
        if len(calls) == 1:  # after its head, say: gRPC sends that no more
            raise Unanswered("UPSTREAM_UNAVAILABLE", "the generator is unavailable")
        yield "a"
        yield generator_pb.Answer(text="a")

    mesh.generator.stream = stream  # type: ignore[method-assign,assignment]
    events = await mesh.run(ask(k=1))
    assert _only(events, Answered).answer.text == "a"
    assert not _all(events, Degraded)
    assert len(calls) == 2


async def test_a_generator_that_never_says_how_it_ended_has_no_answer(mesh: Mesh) -> None:
    async def nothing(prompt: object, *, timeout_s: float):  # type: ignore[no-untyped-def]
        return
        yield

    mesh.generator.stream = nothing  # type: ignore[method-assign]
    with pytest.raises(MeshError, match="without an answer"):
        await mesh.run(ask())


async def test_items_that_fail_in_a_batch_fail_alone(mesh: Mesh) -> None:
    mesh.retriever.rankings = [[0], [1], [2], [1]]
    broken = InvalidField("question", "too long for the model")
    mesh.generator.fails = lambda prompt: broken if prompt.passages[0].id == "b" else None
    events = await mesh.run(ask(k=1, sampling={"num_rankings": 4}))
    assert (_only(events, Failed).samples, _only(events, Failed).error) == ((1, 3), broken)
    assert [one.samples for one in _all(events, Answered)] == [(0,), (2,)]
    assert _only(events, Degraded).reason == "UPSTREAM_REFUSED"


async def test_a_batch_that_fails_leaves_its_answers_out_and_says_so_once(mesh: Mesh) -> None:
    mesh.retriever.rankings = [[i] for i in range(6)]
    mesh.generator.batch_error = AWAY
    events = await mesh.run(ask(k=1, sampling={"num_rankings": 6}))
    assert [one.samples for one in _all(events, Failed)] == [(1,), (2,), (3,), (4,), (5,)]
    assert _only(events, Degraded).action is Action.NO_ANSWER
    assert _kinds(events)[-2:] == ["ExposureReport", "Finished"]


async def test_batches_that_are_too_slow_leave_time_for_the_end(mesh: Mesh) -> None:
    mesh.retriever.rankings = [[0], [1]]
    mesh.generator.batch_delay_s = 30
    events = await mesh.run(ask(k=1, sampling={"num_rankings": 2}), seconds=2)
    assert _only(events, Degraded).reason == "BUDGET_EXCEEDED"
    # Of the two seconds 0.05, and 0.02 s more, are left for the end.
    assert 0.5 < mesh.generator.batch_timeouts[0] <= 2 - 0.1 - 0.02


async def test_a_stream_that_is_too_slow_is_cut(mesh: Mesh) -> None:
    mesh.generator.delay_s = 30
    with pytest.raises(MeshError) as caught:
        await mesh.run(ask(), seconds=1)
    assert caught.value.reason == "BUDGET_EXCEEDED"
    assert mesh.generator.closed == 1


async def test_labels_make_a_full_report(mesh: Mesh) -> None:
    events = await mesh.run(
        ask(k=2, labels={"has_useful": True, "useful_passage_ids": ["a", "f"], "references": ["a b"]})
    )
    exposure = _only(events, pb.ExposureReport)
    # Shown: a and b; useful: a and f. EE-R = 1 of 2, and "a b" is right to the word.
    assert (exposure.ee_d_norm, exposure.ee_r_norm, exposure.expected_utility) == (1.0, 0.5, 1.0)


async def test_an_ask_may_not_be_observed(mesh: Mesh) -> None:
    events = await mesh.run(ask(skip_observation=True, want_report=True))
    assert mesh.observer.posted == []
    assert Stage.OBSERVE not in _only(events, Finished).stage_ms


@pytest.mark.parametrize(
    ("change", "action", "reason"),
    [
        ({"waits": "UPSTREAM_UNAVAILABLE"}, Action.OBSERVATION_QUEUED, "UPSTREAM_UNAVAILABLE"),
        ({"error": Unavailable("OUTBOX_FULL", "full")}, Action.OBSERVATION_DROPPED, "OUTBOX_FULL"),
        ({"delay_s": 30}, Action.OBSERVATION_QUEUED, "OUTBOX_SLOW"),
    ],
)
async def test_trouble_with_the_observation_is_named_and_costs_no_answer(
    mesh: Mesh, change: dict[str, object], action: Action, reason: str
) -> None:
    for name, value in change.items():
        setattr(mesh.observer, name, value)
    events = await mesh.run(ask(), seconds=1)
    assert _only(events, Answered)
    degraded = _only(events, Degraded)
    assert (degraded.stage, degraded.action, degraded.reason) == (Stage.OBSERVE, action, reason)
    assert _kinds(events)[-3:] == ["ExposureReport", "Degraded", "Finished"]


async def test_the_runs_report_is_waited_for(mesh: Mesh) -> None:
    mesh.observer.report = evaluator_pb.RunReport(run_id="run")
    assert _only(await mesh.run(ask(want_report=True)), pb.ExposureReport).run.run_id == "run"


@pytest.mark.parametrize(("report", "reason"), [(None, "BUDGET_EXCEEDED"), (AWAY, "UPSTREAM_UNAVAILABLE")])
async def test_a_report_that_does_not_come_is_named(
    mesh: Mesh, report: Exception | None, reason: str
) -> None:
    mesh.observer.report = report
    events = await mesh.run(ask(want_report=True))
    assert not _only(events, pb.ExposureReport).HasField("run")
    assert (_only(events, Degraded).stage, _only(events, Degraded).reason) == (Stage.OBSERVE, reason)


@pytest.mark.parametrize("where", ["retriever", "reranker", "generator"])
async def test_cancellation_reaches_whoever_is_working(mesh: Mesh, where: str) -> None:
    upstream = getattr(mesh, where)
    upstream.delay_s = 30

    async def run() -> None:
        await mesh.run(ask(reranker="rankrag"), seconds=120)

    task = asyncio.create_task(run())
    async with asyncio.timeout(10):
        while not (mesh.generator.streamed if where == "generator" else upstream.calls):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (mesh.generator.closed if where == "generator" else upstream.cancelled) == 1
    assert mesh.observer.posted == []


async def test_cancellation_reaches_running_batches(mesh: Mesh) -> None:
    mesh.retriever.rankings = [[i] for i in range(6)]
    mesh.generator.batch_delay_s = 30
    async with aclosing(
        mesh.pipeline().ask(ask(k=1, sampling={"num_rankings": 6}), Deadline.after(60))
    ) as events:
        async for event in events:
            if isinstance(event, Answered):
                break
        waiting = asyncio.ensure_future(anext(events))
        await until(lambda: mesh.generator.batches_at_once >= 2, 10)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert mesh.generator.batches_at_once == 0


async def test_what_was_shown_is_observed_even_if_the_caller_leaves_at_the_end(mesh: Mesh) -> None:
    mesh.observer.delay_s = 0.05
    pipeline = mesh.pipeline()
    async with aclosing(pipeline.ask(ask(), Deadline.after(60))) as events:
        async for event in events:
            if isinstance(event, pb.ExposureReport):
                break
    await pipeline.drain()
    assert len(mesh.observer.posted) == 1


async def test_many_rankings_leave_the_event_loop_and_agree(mesh: Mesh) -> None:
    mesh.retriever.passages = [passage(f"p{i:03d}", provider="PQ"[i % 2]) for i in range(100)]
    mesh.retriever.rankings = [[(start + i) % 100 for i in range(20)] for start in range(1000)]
    mesh.reranker.scores = {f"p{i:03d}": i / 100 for i in range(100)}
    events = await mesh.run(
        ask(
            reranker="rankrag",
            k=5,
            rerank_depth=20,
            num_answers=0,
            sampling={"num_rankings": 1000},
            sampling_stage=pb.SAMPLING_STAGE_RETRIEVER,
        )
    )
    rows = _only(events, Ranked).contexts.rows
    assert rows.shape == (1000, 5)
    assert rows[0].tolist() == [19, 18, 17, 16, 15]
    # 100 windows of 20, each ten times; those that wrap keep the highest. Exposure adds up to k.
    assert sum(_only(events, pb.ExposureReport).exposure) == pytest.approx(5)


async def test_a_reranker_with_an_open_circuit_is_reported(mesh: Mesh) -> None:
    mesh.reranker.error = Unavailable("CIRCUIT_OPEN", "open")
    events = await mesh.run(ask(reranker="rankrag", k=2))
    degraded = _only(events, Degraded)
    assert (degraded.stage, degraded.action, degraded.reason) == (
        Stage.RERANK,
        Action.RETRIEVER_ORDER,
        "CIRCUIT_OPEN",
    )
    assert degraded.message == (
        "the reranker did not answer and is not called for a moment: the retriever's order is used"
    )
    assert _only(events, Ranked).contexts.rows.tolist() == [[0, 1]]

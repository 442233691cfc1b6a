"""Expressions through the pipeline, over fakes: the calls to upstreams, the contexts, and the events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import (
    FailedPrecondition,
    InvalidField,
    MeshError,
    NotFound,
    Overloaded,
    Unavailable,
)
from evenmesh_orchestrator.asks.contexts import sampled
from evenmesh_orchestrator.domain import (
    Action,
    Answered,
    Degraded,
    Event,
    Finished,
    Ranked,
    Retrieved,
    Sampling,
    Stage,
)
from tests.unit.orchestrator.fakes import Mesh, ask, ask_expression, passage

E = TypeVar("E")

AWAY = Unavailable("UPSTREAM_UNAVAILABLE", "away")


@pytest.fixture(autouse=True)
def _places(mesh: Mesh) -> None:
    mesh.retriever.places = {
        "wiki": [passage(f"w{i}") for i in range(6)],
        "news": [passage(f"n{i}") for i in range(6)],
        "searx": [passage(f"s{i}") for i in range(6)],
    }


def _only(events: list[Event], kind: type[E]) -> E:
    (event,) = [event for event in events if isinstance(event, kind)]
    return event


def _all(events: list[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def _shown(events: list[Event]) -> list[list[str]]:
    """Ids of the contexts."""
    pool = _only(events, Retrieved).pool
    return [[pool.passages[i].id for i in row] for row in _only(events, Ranked).contexts.rows]


def _wiki(*numbers: int) -> list[str]:
    return [f"wiki/w{i}" for i in numbers]


def _web(*numbers: int) -> list[str]:
    return [f"web:searx/s{i}" for i in numbers]


def _scores(ids: Sequence[str]) -> dict[str, float]:
    """Scores by which the reranker likes the ids in this order."""
    return {one: 1 - rank / 100 for rank, one in enumerate(ids)}


async def test_truncation(mesh: Mesh) -> None:
    events = await mesh.run(ask_expression("Wiki@2"))
    assert _shown(events) == [_wiki(0, 1)]
    (call,) = mesh.retriever.calls
    assert (call["place"], call["retriever"], call["k"], call["sampling"]) == ("wiki", "", 20, None)
    pool = _only(events, Retrieved).pool
    assert [one.id for one in pool.passages] == _wiki(0, 1, 2, 3, 4, 5)
    assert (pool.retriever, pool.index_version) == ("Wiki@2", "Wiki=wiki-v1")
    assert mesh.reranker.calls == []
    assert list(_only(events, Finished).stage_ms) == [Stage.RETRIEVE, Stage.GENERATE, Stage.OBSERVE]


async def test_reranking_then_truncation_then_concatenation(mesh: Mesh) -> None:
    mesh.reranker.scores = _scores(_web(5, 3, 1, 0, 2, 4))
    events = await mesh.run(ask_expression("SE@RR@2&Wiki@3"))
    assert _shown(events) == [_web(5, 3) + _wiki(0, 1, 2)]
    assert [one.id for one in mesh.generator.streamed[0].passages] == _web(5, 3) + _wiki(0, 1, 2)
    (call,) = mesh.reranker.calls
    assert (call["ids"], call["reranker"]) == (_web(0, 1, 2, 3, 4, 5), "rankrag")
    assert call["first"].scores.tolist() == [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    assert (_only(events, Ranked).reranker, _only(events, Ranked).model_version) == ("rankrag", "r1")
    assert list(_only(events, Finished).stage_ms)[:2] == [Stage.RETRIEVE, Stage.RERANK]
    (observation,) = mesh.observer.posted
    assert (observation.pool.retriever, observation.ask.collection) == ("SE@RR@2&Wiki@3", "")


async def test_the_hybrid_reranks_what_all_sources_have(mesh: Mesh) -> None:
    mesh.generator.knows = " ".join(f"word{i}" for i in range(250))
    mesh.reranker.scores = _scores(["PK/2", *_web(4), *_wiki(1, 0)])
    events = await mesh.run(ask_expression("HB@RR@3"))
    (call,) = mesh.reranker.calls
    # 250 words are three passages of about 100.
    assert call["ids"] == _wiki(0, 1) + _web(0, 1, 2, 3, 4, 5) + ["PK/1", "PK/2", "PK/3"]
    assert call["first"] is None  # scores of several sources are of several kinds
    assert _shown(events) == [["PK/2", *_web(4), *_wiki(1)]]
    assert mesh.generator.streamed[0].passages[0].text.split()[0] == "word83"


async def test_equal_scores_stand_by_id_as_without_an_expression(mesh: Mesh) -> None:
    mesh.reranker.scores = {"wiki/w4": 1.0, "wiki/w2": 1.0}
    assert _shown(await mesh.run(ask_expression("Wiki@RR@3"))) == [_wiki(2, 4, 0)]


async def test_two_sources_of_one_place_show_a_passage_once(mesh: Mesh) -> None:
    events = await mesh.run(ask_expression("Wiki@2&WikiDense@4&News@1"))
    assert _shown(events) == [[*_wiki(0, 1, 2, 3), "news/n0"]]
    assert {(call["place"], call["retriever"]) for call in mesh.retriever.calls} == {
        ("wiki", ""),
        ("wiki", "dense"),
        ("news", ""),
    }
    assert len(_only(events, Retrieved).pool.passages) == 6 + 4


async def test_equal_ids_of_two_places_never_meet(mesh: Mesh) -> None:
    mesh.retriever.places = {"wiki": [passage("a")], "news": [passage("a")]}
    assert _shown(await mesh.run(ask_expression("Wiki@5&News@5"))) == [["wiki/a", "news/a"]]


async def test_a_source_named_twice_is_asked_once(mesh: Mesh) -> None:
    mesh.reranker.scores = _scores(_wiki(5))
    events = await mesh.run(ask_expression("Wiki@RR@1&Wiki@2"))
    assert len(mesh.retriever.calls) == 1
    assert _shown(events) == [_wiki(5, 0, 1)]


async def test_lists_within_lists_are_reranked_from_the_inside(mesh: Mesh) -> None:
    mesh.reranker.scores = _scores(_web(3, 2) + _wiki(0))
    events = await mesh.run(ask_expression("(SE@RR@2&Wiki@1)@RR@2"))
    assert [call["ids"] for call in mesh.reranker.calls] == [_web(0, 1, 2, 3, 4, 5), _web(3, 2) + _wiki(0)]
    assert _shown(events) == [_web(3, 2)]


async def test_truncation_before_reranking(mesh: Mesh) -> None:
    mesh.reranker.scores = _scores(_wiki(5, 1))
    assert _shown(await mesh.run(ask_expression("(Wiki@3)@RR@2"))) == [_wiki(1, 0)]
    assert mesh.reranker.calls[0]["ids"] == _wiki(0, 1, 2)


async def test_sources_are_asked_at_once(mesh: Mesh) -> None:
    waiting = asyncio.Barrier(2)
    retrieve = mesh.retriever.retrieve

    async def meet(*arguments: Any, **named: Any) -> Any:
        await waiting.wait()  # one after the other would never get past
        return await retrieve(*arguments, **named)

    mesh.retriever.retrieve = meet  # type: ignore[method-assign]
    events = await mesh.run(ask_expression("Wiki@1&SE@1"), seconds=30)
    assert _shown(events) == [[*_wiki(0), *_web(0)]]


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (AWAY, "UPSTREAM_UNAVAILABLE", "source SE is unavailable: it is left out"),
        (Overloaded("busy", 1.0), "UPSTREAM_OVERLOADED", "source SE is overloaded: it is left out"),
        (NotFound("web", "none"), "UPSTREAM_REFUSED", "source SE refused the request: it is left out"),
    ],
)
async def test_a_source_that_fails_is_left_out_by_name(
    mesh: Mesh, error: MeshError, reason: str, words: str
) -> None:
    mesh.retriever.errors = {"searx": error}
    events = await mesh.run(ask_expression("SE@2&Wiki@2"))
    assert _shown(events) == [_wiki(0, 1)]
    degraded = _only(events, Degraded)
    assert (degraded.stage, degraded.action) == (Stage.RETRIEVE, Action.SOURCE_LEFT_OUT)
    assert (degraded.reason, degraded.message) == (reason, words)
    assert mesh.observer.posted[0].degradations == (degraded,)


async def test_a_slow_source_is_left_out_within_retrievals_share(mesh: Mesh) -> None:
    mesh.retriever.delays_s = {"searx": 60}
    events = await mesh.run(ask_expression("SE@2&Wiki@2"), seconds=2)
    assert _shown(events) == [_wiki(0, 1)]
    assert _only(events, Degraded).message == "source SE used up its share of the time: it is left out"
    assert max(call["timeout_s"] for call in mesh.retriever.calls) <= 2 * 0.25
    assert mesh.retriever.cancelled == 1


async def test_what_the_model_cannot_write_is_left_out(mesh: Mesh) -> None:
    mesh.generator.knowledge_error = InvalidField("augmentation", "cannot")
    events = await mesh.run(ask_expression("PK&Wiki@1"))
    assert _shown(events) == [_wiki(0)]
    assert _only(events, Degraded).message == "source PK refused the request: it is left out"


async def test_without_any_source_the_ask_fails_with_the_first_by_name(mesh: Mesh) -> None:
    mesh.retriever.errors = {"searx": NotFound("web", "no such web source"), "wiki": AWAY}
    with pytest.raises(MeshError, match="source SE: no such web source") as caught:
        await mesh.run(ask_expression("SE@2&Wiki@2"))
    # What the settings say of a source is the expression's for whoever asks.
    assert (caught.value.code, caught.value.field) == (grpc.StatusCode.NOT_FOUND, "expression")
    mesh.retriever.errors = {"wiki": InvalidField("filter.conditions[0].attribute", "no passage has it")}
    with pytest.raises(MeshError, match="source Wiki: no passage has it") as caught:
        await mesh.run(ask_expression("Wiki@2"))
    assert caught.value.field == "filter.conditions[0].attribute"


async def test_without_a_reranker_the_sources_order_is_used(mesh: Mesh) -> None:
    mesh.reranker.error = AWAY
    events = await mesh.run(ask_expression("SE@RR@2&Wiki@1"))
    assert _shown(events) == [_web(0, 1) + _wiki(0)]
    degraded = _only(events, Degraded)
    assert (degraded.stage, degraded.action) == (Stage.RERANK, Action.RETRIEVER_ORDER)
    assert degraded.message == "the reranker, for SE@RR@2, is unavailable: the retriever's order is used"
    assert _only(events, Ranked).reranker == "none"


async def test_a_named_reranker_that_refuses_ends_the_ask(mesh: Mesh) -> None:
    mesh.reranker.error = FailedPrecondition("NOT_CONFIGURED", "no such reranker here")
    with pytest.raises(MeshError, match="no such reranker here"):
        await mesh.run(ask_expression("SE@RR@2&Wiki@RR@1", reranker="cross-encoder"))
    assert len(await mesh.run(ask_expression("SE@RR@2&Wiki@RR@1"))) > 0, "the default one is not insisted on"


async def test_reranking_in_turn_keeps_within_one_share(mesh: Mesh) -> None:
    mesh.reranker.delay_s = 60
    events = await mesh.run(ask_expression("((Wiki@3)@RR@2&SE@1)@RR@2"), seconds=2)
    assert _shown(events) == [_wiki(0, 1)]
    assert [one.reason for one in _all(events, Degraded)] == ["BUDGET_EXCEEDED"] * 2
    assert sum(call["timeout_s"] for call in mesh.reranker.calls) <= 2 * 0.35 + 0.01


async def test_retrieval_free_asks_nobody(mesh: Mesh) -> None:
    events = await mesh.run(ask_expression("ReFree"))
    assert (mesh.retriever.calls, mesh.reranker.calls) == ([], [])
    assert mesh.generator.streamed[0].augmentation == generator_pb.AUGMENTATION_RETRIEVAL_FREE
    assert _only(events, Retrieved).pool.retriever == "ReFree"
    assert _all(events, Degraded) == []
    assert _only(events, pb.ExposureReport).ee_d_norm == 0.0


async def test_parametric_knowledge_alone_is_the_generators(mesh: Mesh) -> None:
    await mesh.run(ask_expression("PK"))
    assert mesh.retriever.calls == []
    assert mesh.generator.streamed[0].augmentation == generator_pb.AUGMENTATION_PARAMETRIC_KNOWLEDGE


async def test_compression_is_the_generators(mesh: Mesh) -> None:
    events = await mesh.run(ask_expression("SE@1&Wiki@1@CP"))
    (prompt,) = mesh.generator.streamed
    assert prompt.augmentation == generator_pb.AUGMENTATION_COMPRESSION
    assert [one.id for one in prompt.passages] == _web(0) + _wiki(0)
    # Two of twelve passages are shown, surely.
    assert list(_only(events, pb.ExposureReport).exposure) == [1.0] + [0.0] * 5 + [1.0] + [0.0] * 5


async def test_nothing_found_cannot_be_compressed(mesh: Mesh) -> None:
    mesh.retriever.places["wiki"] = []
    events = await mesh.run(ask_expression("Wiki@3@CP"))
    assert _only(events, Degraded).action is Action.NO_CONTEXT
    assert mesh.generator.streamed[0].augmentation == generator_pb.AUGMENTATION_UNSPECIFIED
    assert len(_all(events, Answered)) == 1


async def test_a_source_is_sampled_over_its_scores(mesh: Mesh) -> None:
    events = await mesh.run(ask_expression("Wiki@2", sampling={"num_rankings": 30, "alpha": 2, "seed": 5}))
    ranked = _only(events, Ranked)
    scores = np.arange(6, 0, -1, dtype=np.float64)
    same = sampled(scores, "Which river?", Sampling(2.0, 30, 5), 2)
    assert ranked.contexts.rows.tolist() == same.rows.tolist()
    assert ranked.contexts.log_probabilities is not None
    assert same.log_probabilities is not None
    assert ranked.contexts.log_probabilities.tolist() == same.log_probabilities.tolist()
    assert len({tuple(row) for row in ranked.contexts.rows.tolist()}) > 1


async def test_what_is_reranked_is_sampled_over_the_rerankers_scores(mesh: Mesh) -> None:
    mesh.reranker.scores = {"wiki/w3": 1.0}
    sampling = {"num_rankings": 20, "alpha": 100}
    events = await mesh.run(ask_expression("(SE@2&Wiki)@RR@1", sampling=sampling))
    # At alpha 100 only the one passage that has a score is ever drawn.
    assert _shown(events) == [_wiki(3)] * 20


async def test_sampling_without_a_reranker_follows_the_order(mesh: Mesh) -> None:
    mesh.reranker.error = AWAY
    sampling = {"num_rankings": 20, "alpha": 100}
    events = await mesh.run(ask_expression("(SE@2&Wiki)@RR@1", sampling=sampling))
    assert _shown(events) == [_web(0)] * 20


async def test_sampling_more_than_there_is_draws_orders_of_all(mesh: Mesh) -> None:
    mesh.retriever.places["wiki"] = [passage("a"), passage("b")]
    events = await mesh.run(ask_expression("Wiki@10", sampling={"num_rankings": 3}))
    assert all(sorted(row) == ["wiki/a", "wiki/b"] for row in _shown(events))


async def test_the_filter_goes_to_every_source(mesh: Mesh) -> None:
    wanted = retriever_pb.Filter(
        conditions=[retriever_pb.Condition(attribute="provider", any_of=retriever_pb.AnyOf(values=["P"]))]
    )
    await mesh.run(ask_expression("SE@1&Wiki@1", filter=wanted))
    assert [call["filter"] for call in mesh.retriever.calls] == [wanted, wanted]
    mesh.retriever.calls.clear()
    await mesh.run(ask(filter=wanted))
    assert [call["filter"] for call in mesh.retriever.calls] == [wanted]


async def test_leaving_early_cancels_every_source(mesh: Mesh) -> None:
    mesh.retriever.delay_s = 60
    began = asyncio.get_running_loop().create_future()
    retrieve = mesh.retriever.retrieve

    async def begin(*arguments: Any, **named: Any) -> Any:
        if len(mesh.retriever.calls) == 1:
            began.set_result(None)
        return await retrieve(*arguments, **named)

    mesh.retriever.retrieve = begin  # type: ignore[method-assign]

    async def read() -> None:
        async with aclosing(mesh.pipeline().ask(ask_expression("SE@1&Wiki@1"), Deadline.after(60))) as events:
            async for _ in events:
                pass

    reader = asyncio.create_task(read())
    await began
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    assert mesh.retriever.cancelled == 2


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("Wiki@3", {"collection": "demo"}, "collection", "cannot be given with an expression"),
    (
        "Wiki@3",
        {"candidates": {"passages": [common_pb2.Passage(id="a", text="b")]}},
        "candidates",
        "cannot be given with an expression",
    ),
    ("Wiki@3", {"retriever": "bm25"}, "retriever", "cannot be given with an expression"),
    ("Wiki@3", {"k": 3}, "k", "cannot be given with an expression"),
    ("Wiki@3", {"rerank_depth": 3}, "rerank_depth", "cannot be given with an expression"),
    ("Wiki@3", {"depth": 0}, "depth", "must be in"),
    ("Wikipedia@3", {}, "expression", "column 1: there is no source 'Wikipedia'; there are HB, News"),
    ("Wiki@", {}, "expression", "column 5: expected @RR, @ and a number, &, @CP or the end, got '@'"),
    ("Wiki@3", {"reranker": "rankrag"}, "reranker", "reranks nothing"),
    ("Wiki@RR@3", {"reranker": "none"}, "reranker", "must not be none"),
    ("SE@3&Wiki@3", {"sampling": {"num_rankings": 2}}, "sampling", "no one list of scores"),
    ("ReFree", {"sampling": {"num_rankings": 2}}, "sampling", "no one list of scores"),
    (
        "Wiki@RR@3",
        {"sampling": {"num_rankings": 2}, "sampling_stage": 1},
        "sampling_stage",
        "must be the reranker",
    ),
    ("Wiki@3@CP", {"augmentation": 1}, "augmentation", "must be compression or unset"),
    ("Wiki@3", {"augmentation": 3}, "augmentation", "contradicts Wiki@3"),
    ("ReFree", {"filter": {"conditions": []}}, "filter", "cannot apply to ReFree"),
    ("PK&Wiki@3", {"filter": {"conditions": []}}, "filter", "cannot apply to PK&Wiki@3"),
]


@pytest.mark.parametrize(("expression", "changes", "field", "words"), BAD)
def test_what_does_not_go_together(expression: str, changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidField, match=words.replace("+", r"\+")) as caught:
        ask_expression(expression, **changes)
    assert caught.value.field == field


def test_what_goes_together() -> None:
    assert (
        ask_expression("Wiki@3", augmentation=2).augmentation == generator_pb.AUGMENTATION_FUSION_IN_DECODER
    )
    assert ask_expression("Wiki@3@CP", augmentation=5).augmentation == generator_pb.AUGMENTATION_COMPRESSION
    assert ask_expression("Wiki@3", reranker="none").reranker == "none"
    assert ask_expression("Wiki@RR@3", reranker="cross-encoder").names_reranker
    read = ask_expression("Wiki@RR@3", depth=7, sampling={"num_rankings": 2}, sampling_stage=2)
    assert read.expression is not None
    assert read.expression.places["Wiki"].depth == 7

"""The flow of an ensemble over fakes: coalescing, the vote, and missing members."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TypeVar

import grpc
import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.generator.v1.generator_service_pb2 import GenerateRequest
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import FailedPrecondition, MeshError, Unavailable
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller
from evenmesh_orchestrator import codec
from evenmesh_orchestrator.domain import (
    Action,
    Answered,
    Degraded,
    Event,
    Failed,
    Finished,
    Ranked,
    Retrieved,
)
from tests.unit.orchestrator.fakes import Mesh, ensemble, passage

E = TypeVar("E")

AWAY = Unavailable("UPSTREAM_UNAVAILABLE", "away")
BUDGET_S = 10.0
"""Of an ensemble with a member that takes longer: every stage of the others fits, on a busy machine too."""


@pytest.fixture(autouse=True)
def _places(mesh: Mesh) -> None:
    mesh.retriever.places = {
        "wiki": [passage(f"w{i}", f"wiki {i}", provider="W") for i in range(20)],
        "news": [passage(f"n{i}") for i in range(4)],
        "searx": [passage(f"s{i}") for i in range(5)],
    }
    # Whoever sees Wiki's first passage says Rhine, others what they have first.
    mesh.generator.says = _says


def _says(prompt: GenerateRequest) -> str:
    if not prompt.passages:
        return "memory"
    ids = [one.id for one in prompt.passages]
    return "the Rhine" if "wiki/w0" in ids else ids[0]


def _all(events: Sequence[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


async def test_equal_ensembles_of_two_tenants_share_no_search_and_no_answer(mesh: Mesh) -> None:
    async def run(tenant: str) -> list[Event]:
        callers.enter(Caller("test", tenant, frozenset()))
        return await mesh.ensemble(ensemble("Wiki@2", "Wiki@5"))

    alone = await run("acme")
    searches = len(mesh.retriever.calls)
    prompts = len(mesh.generator.batches) + len(mesh.generator.streamed)
    assert searches
    assert prompts
    both = await asyncio.gather(*(asyncio.create_task(run(tenant)) for tenant in ("acme", "other")))
    assert len(mesh.retriever.calls) == 3 * searches
    assert len(mesh.generator.batches) + len(mesh.generator.streamed) == 3 * prompts
    assert [len(_all(events, Answered)) for events in both] == [len(_all(alone, Answered))] * 2


async def test_every_member_answers_and_the_answers_vote(mesh: Mesh) -> None:
    events = await mesh.ensemble(ensemble("Wiki@2", "Wiki@5", "SE@1", "ReFree"))

    answers = {one.member: one for one in _all(events, Answered)}
    assert {name: one.answer.text for name, one in answers.items()} == {
        "Wiki@2": "the Rhine",
        "Wiki@5": "the Rhine",
        "SE@1": "web:searx/s0",
        "ReFree": "memory",
    }
    ranked = {one.member: one for one in _all(events, Ranked)}
    assert {name: one.contexts.rows.shape[1] for name, one in ranked.items()} == {
        "Wiki@2": 2,
        "Wiki@5": 5,
        "SE@1": 1,
        "ReFree": 0,
    }
    votes = _all(events, pb.VoteEvent)
    assert len(votes) == 4 + 1
    assert [one.num_answers for one in votes] == [1, 2, 3, 4, 4]
    assert [one.final for one in votes] == [False] * 4 + [True]
    assert (votes[-1].answer, list(votes[-1].missing), votes[-1].may_change) == ("the Rhine", [], False)
    assert votes[-1].member in ("Wiki@2", "Wiki@5")
    assert isinstance(events[-1], Finished)
    assert isinstance(events[-2], pb.ExposureReport)
    assert mesh.votes.closed == 1


async def test_shared_work_is_done_once(mesh: Mesh) -> None:
    events = await mesh.ensemble(
        ensemble("Wiki@RR@3", "Wiki@RR@5", "Wiki@3", "(Wiki@3)@3", "PK&Wiki@1", "PK&SE@1")
    )
    assert len(_all(events, Answered)) == 6
    # Wiki and the search are asked once each, as deep as anybody wants.
    assert sorted(call["place"] for call in mesh.retriever.calls) == ["searx", "wiki"]
    # Wiki's twenty are reranked once.
    assert [len(call["ids"]) for call in mesh.reranker.calls] == [20]
    # Wiki@3 and (Wiki@3)@3 give the same context, which is answered once.
    contexts = [
        tuple(one.id for one in prompt.passages) for batch in mesh.generator.batches for prompt in batch
    ]
    assert len(contexts) == len(set(contexts)) == 5
    # A passage is sent once, however many members find it.
    sent = [one.id for event in _all(events, Retrieved) for one in event.pool.passages]
    assert len(sent) == len(set(sent))


async def test_contexts_are_indices_into_all_that_was_retrieved(mesh: Mesh) -> None:
    mesh.reranker.scores = {f"wiki/w{i}": i / 40 for i in range(20)}
    events = await mesh.ensemble(ensemble("SE@2", "Wiki@RR@2&SE@1", "Wiki@3", "ReFree"))
    sent = [one.id for event in _all(events, Retrieved) for one in event.pool.passages]
    shown = {
        one.member: [sent[index] for index in one.contexts.rows[0].tolist()] for one in _all(events, Ranked)
    }
    assert shown["ReFree"] == []
    given = {tuple(one.id for one in prompt.passages) for batch in mesh.generator.batches for prompt in batch}
    assert {tuple(one) for one in shown.values()} == given
    assert [len(one) for one in shown.values()].count(3) == 2


async def test_a_member_has_what_it_would_have_alone(mesh: Mesh) -> None:
    mesh.reranker.scores = {f"wiki/w{i}": i / 40 for i in range(20)}
    events = await mesh.ensemble(ensemble("Wiki@RR@2", "(WikiDense@20)@RR@1", "Wiki@20"))
    sent = [one.id for event in _all(events, Retrieved) for one in event.pool.passages]
    assert set(sent) == {f"wiki/w{i}" for i in range(20)}
    prompts = {
        tuple(one.id for one in prompt.passages) for batch in mesh.generator.batches for prompt in batch
    }
    assert ("wiki/w19", "wiki/w18") in prompts
    assert ("wiki/w19",) in prompts


async def test_compression_and_parametric_knowledge_are_the_generators(mesh: Mesh) -> None:
    await mesh.ensemble(ensemble("Wiki@2@CP", "PK", "ReFree"))
    ways = {prompt.augmentation for batch in mesh.generator.batches for prompt in batch}
    assert ways == {
        generator_pb.AUGMENTATION_COMPRESSION,
        generator_pb.AUGMENTATION_PARAMETRIC_KNOWLEDGE,
        generator_pb.AUGMENTATION_RETRIEVAL_FREE,
    }


async def test_a_member_that_fails_is_missing(mesh: Mesh) -> None:
    mesh.retriever.errors = {"searx": AWAY}
    events = await mesh.ensemble(ensemble("Wiki@2", "SE@1", "News@1"))
    (failed,) = _all(events, Failed)
    assert failed.member == "SE@1"
    final = _all(events, pb.VoteEvent)[-1]
    assert (final.num_answers, list(final.missing)) == (2, ["SE@1"])
    assert (1, None) in mesh.votes.added


async def test_a_late_member_is_missing_and_the_vote_is_in_time(mesh: Mesh) -> None:
    mesh.retriever.delays_s = {"searx": 60.0}
    events = await mesh.ensemble(ensemble("Wiki@2", "SE@1", "News@1"), seconds=BUDGET_S)
    assert [one.member for one in _all(events, Failed)] == ["SE@1"]
    final = _all(events, pb.VoteEvent)[-1]
    assert (final.final, list(final.missing)) == (True, ["SE@1"])
    assert isinstance(events[-1], Finished)


async def test_a_slow_answer_is_missing_and_the_vote_is_in_time(mesh: Mesh) -> None:
    batch = mesh.generator.batch

    async def slow(prompts: Sequence[GenerateRequest], *, timeout_s: float) -> object:
        if prompts[0].passages[0].id.startswith("news"):
            await asyncio.sleep(60)
        return await batch(prompts, timeout_s=timeout_s)

    mesh.generator.batch = slow  # type: ignore[method-assign,assignment]
    events = await mesh.ensemble(ensemble("Wiki@2", "News@1", "SE@1"), seconds=BUDGET_S)
    final = _all(events, pb.VoteEvent)[-1]
    assert (final.final, list(final.missing), final.num_answers) == (True, ["News@1"], 2)
    assert [one.reason for one in _all(events, Degraded)] == ["BUDGET_EXCEEDED"]


async def test_without_any_answer_the_ask_fails(mesh: Mesh) -> None:
    mesh.generator.batch_error = AWAY
    with pytest.raises(MeshError) as caught:
        await mesh.ensemble(ensemble("Wiki@2", "News@1"))
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_without_the_evaluator_answers_vote_here(mesh: Mesh, after: int) -> None:
    whole = _all(await mesh.ensemble(ensemble("Wiki@2", "Wiki@5", "SE@1")), pb.VoteEvent)[-1]
    mesh.votes.error, mesh.votes.fails_after = AWAY, after
    mesh.votes.added.clear()
    events = await mesh.ensemble(ensemble("Wiki@2", "Wiki@5", "SE@1"))
    (degraded,) = _all(events, Degraded)
    assert (degraded.action, degraded.reason) == (Action.LOCAL_VOTE, "UPSTREAM_UNAVAILABLE")
    assert _all(events, pb.VoteEvent)[-1].answer == whole.answer == "the Rhine"


async def test_an_evaluator_that_hangs_does_not_hold_up_the_vote(mesh: Mesh) -> None:
    mesh.votes.delay_s = 60.0
    events = await mesh.ensemble(ensemble("Wiki@2", "Wiki@5"), seconds=30)
    assert [one.reason for one in _all(events, Degraded)] == ["BUDGET_EXCEEDED"]
    assert _all(events, pb.VoteEvent)[-1].num_answers == 2


async def test_each_member_is_observed_as_an_ask_of_its_own(mesh: Mesh) -> None:
    labels = {"has_useful": True, "useful_passage_ids": ["wiki/w0"], "references": ["Rhine"]}
    events = await mesh.ensemble(ensemble("Wiki@2", "SE@1", "ReFree", labels=labels))
    assert [(one.pool.retriever, one.ask.run_id, len(one.answers)) for one in mesh.observer.posted] == [
        ("Wiki@2", "run", 1),
        ("SE@1", "run", 1),
        ("ReFree", "run", 1),
        ("Wiki@2, SE@1, ReFree", "run", 3),
    ]
    assert len({one.ask.id for one in mesh.observer.posted}) == 4
    (report,) = _all(events, pb.ExposureReport)
    # Of three members one shows w0 and w1 each, one s0: each has a third; m = 1 useful, k = 2.
    assert sorted(report.exposure)[-3:] == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert report.ee_d_norm == pytest.approx(3 * (1 / 3) ** 2 / 2)
    # Rhine against the Rhine is right after SQuAD's normalisation, the other two are wrong.
    assert report.expected_utility == pytest.approx((1 + 0 + 0) / 3)


async def test_the_vote_is_observed_with_its_winner_and_who_is_missing(mesh: Mesh) -> None:
    mesh.retriever.errors = {"searx": AWAY}
    asked = ensemble("Wiki@2", "SE@1", "News@1", "ReFree", labels={"references": ["Rhine"]}, want_report=True)
    events = await mesh.ensemble(asked)
    *members, vote = mesh.observer.posted
    assert [one.ask.want_report for one in (*members, vote)] == [False, False, False, True]
    assert vote.ask.id == f"{asked.ask.id}-vote"
    assert vote.retrievers == ("Wiki@2", "SE@1", "News@1", "ReFree")
    assert [(one.member, one.samples) for one in vote.answers] == [
        ("Wiki@2", (0,)),
        ("News@1", (2,)),
        ("ReFree", (3,)),
    ]
    assert vote.vote_winner is not None
    assert vote.answers[vote.vote_winner].member == _all(events, pb.VoteEvent)[-1].member
    message = evaluator_pb.Observation.FromString(codec.observation(vote, with_text=False))
    assert (message.shown.depth, len(message.candidates), message.vote_winner) == (0, 0, vote.vote_winner)
    assert list(message.ranking_retrievers) == list(vote.retrievers)
    assert message.retriever == "Wiki@2, SE@1, News@1, ReFree"


async def test_an_ensemble_of_many_long_expressions_has_a_name_that_fits() -> None:
    asked = ensemble(*(f"({'Wiki@2&' * 9}Wiki@{depth})@RR@1" for depth in range(3, 9)))
    assert len(asked.name.encode()) <= 128
    assert asked.name.startswith("(Wiki@2&")
    assert asked.name.endswith("…")


async def test_leaving_early_stops_every_member(mesh: Mesh) -> None:
    mesh.generator.batch_delay_s = 60.0
    async with aclosing(
        mesh.pipeline().ensemble(ensemble("Wiki@2", "News@1"), Deadline.after(120))
    ) as events:
        assert isinstance(await anext(events), Retrieved)
        waiting = asyncio.ensure_future(_rest(events))
        while mesh.generator.batches_at_once < 2:
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert mesh.generator.batches_at_once == 0
    assert mesh.votes.closed == 1


async def test_a_reranker_that_refuses_is_the_members_own_failure(mesh: Mesh) -> None:
    mesh.reranker.error = FailedPrecondition("NO_MODEL", "none")
    events = await mesh.ensemble(ensemble("Wiki@RR@2", "News@1", reranker="rankrag"))
    assert [one.member for one in _all(events, Failed)] == ["Wiki@RR@2"]
    assert _all(events, pb.VoteEvent)[-1].missing == ["Wiki@RR@2"]


async def _rest(events: object) -> None:
    async for _ in events:  # type: ignore[attr-defined]
        pass

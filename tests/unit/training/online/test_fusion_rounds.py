"""Rounds that learn how an agent's scores are fused with those of the first stage."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from evenmesh_lab.files.trained_texts import find_trained_texts
from evenmesh_reranker.domain import Agent, Fusion
from evenmesh_reranker.feedback.domain import Feedback, RecordStatus
from tests.support.online_world import COLLECTION, World

ANN, BOB = Agent("qa", "ann"), Agent("qa", "bob")
ASKED = range(100)
NONE = Fusion(0.0)


async def _says(world: World, agent: Agent, numbers: Sequence[int], *, first_is_right: bool = True) -> None:
    """Records that the half of a query's candidates with most of its words is useful, or the other half."""
    for number in numbers:
        query = world.stream.query(number)
        found = await world.passages.found(COLLECTION, query)
        assert found is not None
        half = len(found.passages) // 2
        items = [
            Feedback(
                f"{number}-{one.id}",
                query,
                one.id,
                agent,
                float((at < half) is first_is_right),
                collection=COLLECTION,
            )
            for at, one in enumerate(found.passages)
        ]
        assert {one.status for one in await world.store.record(items)} == {RecordStatus.STORED}


async def test_an_agent_whose_first_stage_is_right_gets_its_weight_and_nobody_else_does(world: World) -> None:
    before = await world.registry.model_for(ANN)
    lists = await world.lists(ANN, range(3))
    assert before.fusion(ANN) == NONE
    await _says(world, ANN, ASKED)
    reported = await world.rounds(learns="fusion").run(await world.training(ANN))

    after = await world.registry.model_for(ANN)
    assert after.version in reported.message
    assert after.fusion(ANN).weight > 0
    assert (
        f"first stage {after.fusion(ANN).weight:g}, neighbors {after.fusion(ANN).neighbors:g}"
        in reported.message
    )
    assert after.fusion(ANN).slope != 1.0  # calibrated by what was judged
    assert (await world.registry.model_for(BOB)).fusion(BOB) == NONE
    # No weight of the model changed: alone it scores as before.
    assert after.model.version == before.model.version
    assert await world.lists(ANN, range(3)) == lists

    await world.registry.refresh()
    [own] = world.registry.models(ANN)
    assert own.base_version == before.version
    assert own.metrics["fusion-weight"] == after.fusion(ANN).weight
    assert own.metrics["ndcg"] > own.metrics["ndcg-before"]
    assert "loss-first" not in own.metrics
    texts = find_trained_texts(world.models.folder(after.version))
    assert texts is not None
    assert texts.has_question(world.stream.query(0))

    # Another process reads it from the disk, and a round with nothing better changes nothing.
    later = world.another_registry()
    await later.start(None)
    try:
        assert (await later.model_for(ANN)).fusion(ANN) == after.fusion(ANN)
    finally:
        await later.close()
    await _says(world, ANN, range(200, 240))
    reported = await world.rounds(learns="fusion").run(await world.training(ANN))
    assert (await world.registry.model_for(ANN)).version == after.version
    assert reported.message.startswith("no other fusion is better by more than a standard error: ")
    assert reported.trained_upto == await world.store.latest()
    assert reported.candidate_version == ""


async def test_an_agent_whose_first_stage_is_wrong_keeps_the_model_alone(world: World) -> None:
    await _says(world, ANN, ASKED, first_is_right=False)
    version = (await world.registry.model_for(ANN)).version
    await world.rounds(learns="fusion").run(await world.training(ANN))
    found = await world.registry.model_for(ANN)
    assert (found.version, found.fusion(ANN)) == (version, NONE)


async def test_a_taste_that_changed_is_not_promoted(world: World) -> None:
    """The queries that choose say that the first stage is right, and those held back that it is wrong."""
    await _says(world, ANN, range(50))
    await _says(world, ANN, range(50, 100), first_is_right=False)
    reported = await world.rounds(learns="fusion").run(await world.training(ANN))
    assert reported.candidate_version
    assert f"{reported.candidate_version} is worse" in reported.message
    assert (await world.registry.model_for(ANN)).fusion(ANN) == NONE


@pytest.mark.slow
async def test_both_are_learned_from_different_queries(world: World) -> None:
    await _says(world, ANN, ASKED)
    reported = await world.rounds(learns="both", epochs=1).run(await world.training(ANN))
    found = await world.registry.model_for(ANN)
    assert found.fusion(ANN).weight > 0, reported.message
    assert found.adapter is not None
    await world.registry.refresh()
    [own] = world.registry.models(ANN)
    assert {"loss-first", "fusion-weight"} <= own.metrics.keys()
    # A later round of one kind keeps what the other kind learned.
    await _says(world, ANN, range(200, 300))
    await world.rounds(learns="model", epochs=1, learning_rate=1e-6).run(await world.training(ANN))
    assert (await world.registry.model_for(ANN)).fusion(ANN) == found.fusion(ANN)


@pytest.mark.slow
async def test_parameters_that_are_learned_after_a_fusion_keep_it(world: World) -> None:
    await _says(world, ANN, ASKED)
    await world.rounds(learns="fusion").run(await world.training(ANN))
    fusion = (await world.registry.model_for(ANN)).fusion(ANN)
    await _says(world, ANN, range(200, 300))
    await world.rounds(learns="model", epochs=1, learning_rate=1e-6).run(await world.training(ANN))
    found = await world.registry.model_for(ANN)
    assert found.fusion(ANN) == fusion
    assert found.adapter is not None
    assert found.adapter.size > 0


@pytest.mark.slow
async def test_a_whole_model_of_ones_own_gets_a_fusion_too(world: World) -> None:
    await _says(world, ANN, ASKED)
    await world.rounds(learns="both", parameters="full", epochs=1).run(await world.training(ANN))
    found = await world.registry.model_for(ANN)
    assert found.adapter is None
    assert found.model.fusions.of(ANN).weight > 0
    assert found.model.fusions.of(BOB) == NONE
    await _says(world, ANN, range(200, 300), first_is_right=False)
    await world.rounds(learns="fusion").run(
        await world.training(ANN)
    )  # is not lost by an adapter of all agents' model
    assert (await world.registry.model_for(ANN)).adapter is None

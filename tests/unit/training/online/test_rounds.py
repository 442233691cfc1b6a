"""Rounds of online training: tastes are learned, each agent's alone, and nothing worse comes to serve."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from scipy.stats import kendalltau

from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_kit.storage.sql import now_us
from evenmesh_lab.files.trained_texts import find_trained_texts
from evenmesh_reranker.backends.sql.tables import LEASES
from evenmesh_reranker.domain import Agent, AllAgents
from evenmesh_reranker.feedback.training import State, TrainingReport
from evenmesh_reranker.models.file_promotions import FilePromotions
from evenmesh_training.ium.gate import Gate, GateQuestion
from evenmesh_training.online import rounds as rounds_module
from evenmesh_training.online.candidates import Parameters
from evenmesh_training.online.rounds import RoundError
from evenmesh_training.online.served import ServedModels
from tests.support import tiny_encoders
from tests.support.online_world import Promoting, World, dislikes, likes

ANN, BOB = Agent("qa", "ann"), Agent("qa", "bob")
ASKED = range(36)
LATER = range(1000, 1030)


def _tau(one: list[list[str]], other: list[list[str]]) -> float:
    """Mean Kendall's tau between two agents' lists of the same passages."""
    taus = [
        kendalltau(range(len(first)), [second.index(id_) for id_ in first]).statistic
        for first, second in zip(one, other, strict=True)
    ]
    return float(sum(taus) / len(taus))


@pytest.mark.slow
async def test_opposite_tastes_end_with_opposite_lists_and_move_nobody_else(world: World) -> None:
    cat = Agent("qa", "cat")
    begun = {agent: await world.lists(agent, LATER) for agent in (ANN, BOB, cat)}
    assert begun[BOB] == begun[cat]
    rounds = world.rounds()

    values = [await world.value(*one, LATER) for one in ((ANN, likes("water")), (BOB, dislikes("water")))]

    await world.says(ANN, likes("water"), range(48))
    await world.says(BOB, dislikes("water"), range(48))
    reported = await rounds.run(await world.training(ANN))
    assert reported.state is State.IDLE
    anns = await world.lists(ANN, LATER)
    assert anns != begun[ANN]
    assert await world.lists(BOB, LATER) == begun[BOB]  # not moved by what Ann said

    await rounds.run(await world.training(BOB))
    bobs = await world.lists(BOB, LATER)
    assert await world.lists(ANN, LATER) == anns  # nor Ann by Bob
    assert await world.lists(cat, LATER) == begun[cat]
    assert await world.value(ANN, likes("water"), LATER) > values[0] + 0.05
    assert await world.value(BOB, dislikes("water"), LATER) > values[1] + 0.05
    assert begun[ANN] == begun[BOB]  # both were unknown to the model
    tau = _tau(anns, bobs)
    sys.stdout.write(f"Kendall's tau {tau:.3f}\n")
    assert tau < 0.3

    # What serves them is reported with where it came from and what was measured.
    version = (await world.registry.model_for(ANN)).version
    await world.registry.refresh()
    [own] = world.registry.models(ANN)
    everyones = world.models.pointer(AllAgents()).serving
    assert (own.version, own.serving, own.agent) == (version, True, ANN)
    assert (own.parent_version, own.base_version) == (everyones, everyones)
    assert own.metrics["queries"] == 48
    assert own.metrics["items"] == 6 * 48
    assert own.metrics["ndcg"] > own.metrics["ndcg-before"]
    assert version in reported.message

    # It says what it learned from, and names the model that it changes.
    texts = find_trained_texts(world.models.folder(version))
    assert texts is not None
    learned = [world.stream.query(at) for at in range(48)]
    assert sum(map(texts.has_question, learned)) >= 24  # the newest quarter is held out
    assert not any(texts.has_question(world.stream.query(at)) for at in LATER)
    assert texts.unhashed == (f"version {everyones}",)


@pytest.mark.slow
async def test_a_whole_model_of_ones_own(world: World) -> None:
    await world.says(BOB, likes("water"), ASKED)
    before = await world.value(BOB, likes("water"), LATER)
    await world.rounds(parameters="full", learning_rate=5e-3).run(await world.training(BOB))
    assigned = await world.registry.model_for(BOB)
    [own] = [one for one in world.registry.models(BOB) if one.version == assigned.version]
    assert not own.base_version
    assert "[model:bob]" in own.agent_tokens
    assert await world.value(BOB, likes("water"), LATER) > before + 0.03
    assert (await world.registry.model_for(ANN)).version == world.models.pointer(AllAgents()).serving


@pytest.mark.slow
async def test_what_is_worse_stays_a_candidate_until_someone_promotes_it(world: World) -> None:
    good = (await world.registry.model_for(ANN)).version
    # The newest quarter, which judges, is of another taste than what is learned from.
    await world.says(ANN, dislikes("water"), range(36))
    await world.says(ANN, likes("water"), range(36, 48))
    # Eleven queries are enough for this margin, so no more than the quarter is held back.
    reported = await world.rounds(margin=0.2).run(await world.training(ANN))
    assert (await world.registry.model_for(ANN)).version == good
    assert reported.candidate_version
    assert f"{reported.candidate_version} is worse" in reported.message
    now = await world.training(ANN)
    assert (now.report, now.pending) == (reported, 0)
    await world.registry.promote(reported.candidate_version, tenant=DEFAULT_TENANT)
    assert (await world.registry.model_for(ANN)).version == reported.candidate_version
    await world.registry.rollback(ANN)
    assert (await world.registry.model_for(ANN)).version == good


class Forgotten:
    """A gate on which what serves is always right and a candidate always wrong."""

    def __init__(self) -> None:
        self.asked = 0

    num_passages = 1

    def values(self, parameters: Parameters, agent: Agent, **_: object) -> list[float]:
        self.asked += 1
        return [2.0 - self.asked] * 32


@pytest.mark.slow
async def test_what_forgets_stays_a_candidate(world: World) -> None:
    good = (await world.registry.model_for(ANN)).version
    await world.says(ANN, likes("water"), range(48))
    rounds = world.rounds()
    rounds.gate = lambda: cast("Gate", Forgotten())
    reported = await rounds.run(await world.training(ANN))
    assert (await world.registry.model_for(ANN)).version == good
    assert f"{reported.candidate_version} forgets" in reported.message
    assert "nDCG 1.000 → 0.000" in reported.message


def _questions(world: World) -> Gate:
    """A gate of two questions, each with six candidates."""
    asked = ((world.stream.query(at), tuple(world.stream.candidates(at))) for at in (900, 901))
    first = (2.0, 1.0, 0.5, -0.5, -1.0, -2.0)
    return Gate(tuple(GateQuestion(query, found, first, frozenset({found[0].id})) for query, found in asked))


async def test_a_round_is_done_when_its_candidate_is_compared_on_all_questions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    advanced: list[tuple[float, str]] = []
    monkeypatch.setattr(rounds_module._Round, "advance", lambda _, *said: advanced.append(said))
    await world.says(ANN, likes("water"), range(8))
    rounds = world.rounds(epochs=1, learns="both")
    rounds.gate = lambda: _questions(world)
    await rounds.run(await world.training(ANN))
    shares = [share for share, _ in advanced]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] == 1
    words = [message.partition(" of ")[2].partition(" ")[2] for _, message in advanced]
    others = [
        f"queries {of}, by what {which}"
        for of in ("that were held back", "of no agent")
        for which in ("serves", "was learned")
    ]
    assert list(dict.fromkeys(one for one in words if one.startswith("queries"))) == [
        "queries to choose a fusion",
        *others,
    ]
    assert advanced[-1] == (1.0, "ranked 2 of 2 queries of no agent, by what was learned")


async def test_a_round_is_stopped_within_the_questions_of_no_agent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    advanced: list[str] = []

    def stopping(self: rounds_module._Round, progress: float, message: str) -> None:
        advanced.append(message)
        if "of no agent" in message:
            self.lose("another trainer took the agent over")

    monkeypatch.setattr(rounds_module._Round, "advance", stopping)
    await world.says(ANN, likes("water"), range(8))
    rounds = world.rounds(epochs=1)
    rounds.gate = lambda: _questions(world)
    with pytest.raises(RoundError, match="another trainer took the agent over"):
        await rounds.run(await world.training(ANN))
    assert advanced[-1] == "ranked 1 of 2 queries of no agent, by what serves"


async def test_too_few_to_judge_by_is_a_candidate_too(world: World) -> None:
    await world.says(ANN, likes("water"), range(6))
    reported = await world.rounds(epochs=1).run(await world.training(ANN))
    assert reported.candidate_version
    # Of six queries half may be held back; five signs agree by chance with probability 1/32 < 0.05.
    assert "cannot be judged by fewer than 5 queries held back" in reported.message
    assert not world.promoting.asked


@pytest.mark.slow
async def test_deleted_passages_are_left_out_and_counted(world: World) -> None:
    await world.says(ANN, likes("water"), ASKED)
    spoken = {one.id for number in ASKED for one in world.stream.candidates(number)}
    gone = sorted(spoken)[:20]
    for id_ in gone:
        del world.passages.passages[id_]
    reported = await world.rounds(epochs=1).run(await world.training(ANN))
    assert "20 passages are gone" in reported.message
    await world.says(BOB, likes("water"), ASKED)
    world.passages.passages.clear()
    training = await world.training(BOB)
    # As a trainer that was killed left it.
    killed = replace(training.report, state=State.RUNNING, progress=0.5, message="step 1 of 2")
    reported = await world.rounds().run(replace(training, report=killed))
    assert reported.message.startswith("nothing to learn from: ")
    assert (reported.state, reported.progress) == (State.IDLE, 0.0)
    assert (await world.training(BOB)).pending == 0


async def test_feedback_that_names_no_collection_is_counted_apart_from_deleted_passages(world: World) -> None:
    said = world.stream.said(ANN, likes("water"), range(8))
    await world.store.record([replace(one, collection="") for one in said])
    world.passages.passages.clear()
    reported = await world.rounds().run(await world.training(ANN))
    asked = len({one.passage_id for one in said})
    learned = "nothing to learn from: 8 queries, 0 of them held back"
    assert reported.message == f"{learned}, feedback names no collection of {asked} passages"
    await world.says(ANN, likes("water"), range(8, 9))
    reported = await world.rounds().run(await world.training(ANN))
    assert reported.message.endswith(f"of {asked} passages, 6 passages are gone")


async def test_without_a_learned_model_nothing_can_be_trained(world: World) -> None:
    await world.says(ANN, likes("water"), range(8))
    (world.home / "reranker" / "models" / "serving" / "all.json").unlink()
    with pytest.raises(RoundError, match="no learned model serves"):
        await world.rounds().run(await world.training(ANN))
    assert (await world.reported(ANN)).state is State.FAILED
    assert (await world.training(ANN)).pending == 8 * 6


async def test_the_trainer_cuts_pairs_as_the_reranker_does(world: World) -> None:
    reranker = world.reranker.model_copy(update={"max_length": 32})
    served = ServedModels.from_settings(
        world.settings(), reranker, world.models, FilePromotions(world.models), world.pool
    )
    assert (await served.find(ANN)).base.encoder.max_seq_length == 32


async def test_a_damaged_version_is_skipped_as_the_reranker_skips_it(world: World, folder: Path) -> None:
    good = (await world.registry.model_for(ANN)).version
    bad = await asyncio.to_thread(tiny_encoders.keep, world.models, folder, "another")
    own = await asyncio.to_thread(tiny_encoders.keep_adapter, world.models, good, ANN, 1)
    for version in (bad, own):
        scope = ANN if version == own else AllAgents()
        world.models.set_pointer(scope, world.models.pointer(scope).promoted(version))
    served = ServedModels.from_settings(
        world.settings(), world.reranker, world.models, FilePromotions(world.models), world.pool
    )

    async def versions() -> tuple[str, str]:
        return (await served.find(ANN)).version, (await served.find(BOB)).version

    assert await versions() == (bad, bad)  # the adapter changes another version
    weights = world.models.folder(bad) / "model.safetensors"
    cut = weights.read_bytes()[:-1]
    weights.unlink()  # the registry may have mapped it: cutting it in place would end this process
    weights.write_bytes(cut)
    assert await versions() == (own, good)  # as does what was served before
    (world.models.folder(own) / "adapter.safetensors").write_bytes(b"")
    assert await versions() == (good, good)

    # The reranker, started anew, serves the same, and a round starts from it.
    later = world.another_registry()
    await later.start(None)
    try:
        assert [(await later.model_for(one)).version for one in (ANN, BOB)] == [good, good]
        world.promoting = Promoting(later)
        await world.says(BOB, likes("water"), ASKED)
        await world.rounds(epochs=1).run(await world.training(BOB))
    finally:
        await later.close()
    manifests = world.models.manifests({}).values()
    [made] = [one for one in manifests if one.lineage.provenance.startswith("online-ium, ")]
    assert (made.lineage.parent, made.lineage.base) == (good, good)


@asynccontextmanager
async def _held_after_a_step(world: World, **settings: Any) -> AsyncIterator[asyncio.Task[TrainingReport]]:
    """A round for Ann that has reported its first step, and takes the second one only when it is stopped."""
    advance = rounds_module._Round.advance

    def held(self: rounds_module._Round, progress: float, message: str) -> None:
        advance(self, progress, message)
        assert self.stop.wait(120)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds_module._Round, "advance", held)
        patch.setattr(rounds_module, "_REPORT_S", 0.02)
        running = asyncio.create_task(world.rounds(**settings).run(await world.training(ANN)))
        while not (await world.reported(ANN)).progress:
            assert not running.done()
            await asyncio.sleep(0.01)
        yield running


@pytest.mark.slow
async def test_a_round_that_was_killed_goes_on_and_makes_the_same(
    world: World, folder: Path, tmp_path: Path
) -> None:
    await world.says(ANN, likes("water"), ASKED)
    short = {"epochs": 2}
    async with _held_after_a_step(world, **short) as running:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert list(world.home.glob("work/*/learning.pt"))
    assert not world.promoting.asked

    upto = await world.store.latest()
    await world.says(ANN, likes("water"), range(200, 203))
    reported = await world.rounds(**short).run(await world.training(ANN))
    assert reported.trained_upto == upto
    assert not list(world.home.glob("work/*"))
    async with World.opened(tmp_path / "other", folder) as other:
        await other.says(ANN, likes("water"), ASKED)
        await other.rounds(**short).run(await other.training(ANN))
        assert other.promoting.asked == world.promoting.asked


@pytest.mark.slow
async def test_a_round_that_was_killed_after_promoting_is_not_done_again(world: World) -> None:
    await world.says(ANN, likes("water"), ASKED)
    before = await world.training(ANN)
    reported = await world.rounds(epochs=2).run(before)
    # The log knows nothing of it, as after a kill between promoting and telling.
    await world.log.report(before.report)
    again = await world.rounds(epochs=2).run(await world.training(ANN))
    assert again.trained_upto == reported.trained_upto
    assert len(world.promoting.asked) == 1


async def test_who_lost_the_agent_promotes_nothing(world: World) -> None:
    await world.says(ANN, likes("water"), ASKED)
    async with _held_after_a_step(world, epochs=2) as running:
        async with world.database.write() as connection:
            await connection.execute(
                LEASES.update().values(holder="another", until_us=now_us() + 1_800 * 10**6)
            )
        with pytest.raises(RoundError, match="another trainer took the agent over"):
            await running
    assert not world.promoting.asked


async def test_what_was_learned_from_a_deleted_agent_does_not_serve_a_new_one_with_its_ids(
    world: World,
) -> None:
    await world.says(ANN, likes("water"), ASKED)
    async with _held_after_a_step(world, epochs=2) as running:
        assert await world.store.delete_agent(ANN, limit=10**6)
        await world.says(ANN, dislikes("water"), range(100, 101))
        with pytest.raises(RoundError, match="or it was deleted"):
            await running
    assert not world.promoting.asked
    assert (await world.training(ANN)).pending_queries == 1

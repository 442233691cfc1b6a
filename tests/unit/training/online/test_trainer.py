"""Who is trained when: after enough queries, one at a time, by one trainer alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from evenmesh_reranker.domain import Agent
from evenmesh_reranker.feedback.training import State, Training, TrainingReport
from evenmesh_training.online.rounds import RoundError, _digest
from evenmesh_training.online.trainer import Trainer
from tests.support.clock import Clock
from tests.support.online_world import World, likes

ANN, BOB = Agent("qa", "ann"), Agent("qa", "bob")


class Rounds:
    """Rounds without learning: they say that they were done, or fail."""

    def __init__(self, world: World, *, fails: Agent | None = None) -> None:
        self.ran: list[Agent] = []
        self.at_once = 0
        self.most_at_once = 0
        self.known: list[Agent] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._world = world
        self._fails = fails

    def forget_others(self, agents: Iterable[Agent]) -> None:
        self.known = list(agents)

    async def run(self, training: Training) -> TrainingReport:
        agent = training.report.agent
        assert agent is not None
        self.ran.append(agent)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.gate.wait()
        self.at_once -= 1
        if agent == self._fails:
            raise RoundError("the retriever is away")
        report = replace(training.report, trained_upto=await self._world.store.latest())
        await self._world.log.report(report)
        return report


def _trainer(
    world: World, rounds: Rounds, holder: str, clock: Clock | None = None, at_once: int | None = None
) -> Trainer:
    return Trainer(
        rounds,  # type: ignore[arg-type]
        store=world.store,
        log=world.log,
        leases=world.leases(holder, at_once=at_once),
        at_once=at_once,
        queries=5,
        wake_s=0.01,
        clock=clock or Clock(0.0),
    )


async def test_an_agent_is_trained_after_b_queries_and_not_before(world: World) -> None:
    rounds = Rounds(world)
    trainer = _trainer(world, rounds, "one")
    assert not await trainer.turn()
    await world.says(ANN, likes("water"), range(4))  # of six items each
    await world.says(BOB, likes("water"), range(7))
    assert await trainer.turn()
    assert not await trainer.turn()
    assert rounds.ran == [BOB]
    await world.says(ANN, likes("water"), range(4, 5))
    await world.says(BOB, likes("water"), range(7, 11))
    assert await trainer.turn()
    assert not await trainer.turn()
    assert rounds.ran == [BOB, ANN]
    assert await world.leases("another").take(ANN)  # it was given back


async def test_what_rounds_of_deleted_agents_left_is_removed(world: World) -> None:
    rounds = Rounds(world)
    await world.says(ANN, likes("water"), range(2))
    await world.says(BOB, likes("water"), range(2))
    assert not await _trainer(world, rounds, "one").turn()
    assert rounds.known == [ANN, BOB]
    real = world.rounds()
    real.forget_others([])  # before there is a folder
    for agent in (ANN, BOB):
        (real.work / _digest(agent)).mkdir(parents=True)
        (real.work / _digest(agent) / "learning.pt").write_bytes(b"learned")
    real.forget_others([BOB])
    assert [one.name for one in real.work.iterdir()] == [_digest(BOB)]


async def test_two_trainers_never_have_the_same_agent(world: World) -> None:
    rounds = Rounds(world)
    await world.says(ANN, likes("water"), range(9))
    await world.says(BOB, likes("water"), range(6))
    rounds.gate.clear()
    one, other = _trainer(world, rounds, "one"), _trainer(world, rounds, "other")
    turns = [
        asyncio.create_task(trainer.turn()) for trainer in (one, other, _trainer(world, rounds, "third"))
    ]
    while len(rounds.ran) < 2:
        await asyncio.sleep(0.01)
    done, _ = await asyncio.wait(turns, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [False]  # there was nobody for the third
    rounds.gate.set()
    await asyncio.gather(*turns)
    assert sorted(rounds.ran, key=str) == [ANN, BOB]


async def test_one_trainer_trains_and_the_others_wait_for_it(world: World) -> None:
    rounds = Rounds(world)
    await world.says(ANN, likes("water"), range(9))
    await world.says(BOB, likes("water"), range(6))
    rounds.gate.clear()
    one, other = _trainer(world, rounds, "one", at_once=1), _trainer(world, rounds, "other", at_once=1)
    training = asyncio.create_task(one.turn())
    while not rounds.ran:
        await asyncio.sleep(0.01)
    for _ in range(3):
        assert not await other.turn()
    rounds.gate.set()
    assert await training
    assert await other.turn()
    assert rounds.ran == [ANN, BOB]


async def test_who_fails_is_tried_again_later_and_keeps_nobody_waiting(world: World) -> None:
    rounds, clock = Rounds(world, fails=ANN), Clock(0.0)
    trainer = _trainer(world, rounds, "one", clock)
    await world.says(ANN, likes("water"), range(9))
    await world.says(BOB, likes("water"), range(6))
    for _ in range(4):
        await trainer.turn()
    assert rounds.ran == [ANN, BOB]
    for waits in (10, 20, 40):
        clock.now += waits - 1
        await trainer.turn()
        tried = len(rounds.ran)
        clock.now += 2
        await trainer.turn()
        assert len(rounds.ran) == tried + 1
    assert rounds.ran == [ANN, BOB, ANN, ANN, ANN]


async def test_tenants_take_turns_however_much_feedback_one_of_them_sends(world: World) -> None:
    clock, pending = Clock(0.0), {Agent("qa", f"e{number}", "evil"): 6 + number for number in range(3)}
    pending[Agent("qa", "v", "victim")] = 5

    class Endless(Rounds):
        """Rounds of a minute, in which as much feedback comes as is trained."""

        async def run(self, training: Training) -> TrainingReport:
            assert training.report.agent is not None
            self.ran.append(training.report.agent)
            clock.now += 60
            return training.report

    class Waiting:
        """Says that agents always wait for training."""

        async def trainings_of_agents(self) -> list[Training]:
            return [await self.training(agent) for agent in pending]

        async def training(self, agent: Agent) -> Training:
            return Training(TrainingReport(agent, State.IDLE), pending[agent], pending[agent], None)

    rounds = Endless(world)
    trainer = replace(_trainer(world, rounds, "one", clock), log=Waiting())  # type: ignore[arg-type]
    for agent in pending:
        await world.says(agent, likes("water"), range(1))
    for _ in range(6):
        assert await trainer.turn()
    assert [agent.tenant for agent in rounds.ran] == ["evil", "victim"] * 3
    assert {agent.model_id for agent in rounds.ran} == {"e2", "v"}  # of a tenant, the one with most

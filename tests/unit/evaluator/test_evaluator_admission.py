"""Admission of the evaluator: work that does not fit waits its turn, for the time of its settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh_evaluator.__main__ import EvaluatorService
from evenmesh_evaluator.servicer import EvaluatorServicer
from evenmesh_evaluator.settings import EvaluatorSettings


@pytest.fixture
async def service(tmp_path: Any) -> AsyncIterator[EvaluatorService]:
    """A service as its process builds it, with room for one small request, and others that wait for a minute."""
    service = EvaluatorService(EvaluatorSettings(home=tmp_path, max_work=1, queue_s=60.0))
    await service.start()
    yield service
    await service.stop()


async def test_what_does_not_fit_waits_its_turn(service: EvaluatorService) -> None:
    servicer = cast(EvaluatorServicer, service.registrations[0].servicer)
    context = cast(Any, None)

    async def voted() -> bool:
        return (await servicer.Vote(pb.VoteRequest(answers=["a", "b", "b"]), context)).winner == 1

    async def observations() -> AsyncIterator[pb.ObserveRequest]:
        answer = pb.SampledAnswer(text="a", samples=[0])
        observation = pb.Observation(id="o1", run_id="r", query_id="q", answers=[answer])
        observation.candidates.add(passage_id="p")
        observation.shown.depth = 1
        observation.shown.indices.append(0)
        yield pb.ObserveRequest(observation=observation)

    async def observed() -> bool:
        return [one.ack.observation_id async for one in servicer.Observe(observations(), context)] == ["o1"]

    admission = servicer._admission
    for work in (voted, observed):
        admitted = admission.enter(1)
        waiting = asyncio.create_task(work())
        while not admission.waiting:
            await asyncio.sleep(0)
            assert not waiting.done()
        admission.leave(1, admitted)
        assert await waiting


async def test_an_observation_counts_what_scoring_it_takes(service: EvaluatorService) -> None:
    """Two observations of equal size: equality of answers and references takes little, ROUGE-L much."""
    servicer = cast(EvaluatorServicer, service.registrations[0].servicer)
    admitted: list[int] = []

    class Recorder:
        @asynccontextmanager
        async def admit(self, work: int) -> AsyncIterator[None]:
            admitted.append(work)
            yield

    words = " ".join(f"w{number}" for number in range(1500))

    async def observations() -> AsyncIterator[pb.ObserveRequest]:
        for name in ("EXACT_MATCH", "ROUGE_L"):
            answer = pb.SampledAnswer(text=words, samples=[0])
            observation = pb.Observation(id=name, run_id="r", query_id="q", answers=[answer])
            observation.candidates.add(passage_id="p")
            observation.shown.depth = 1
            observation.shown.indices.append(0)
            observation.labels.references.extend([words] * 4)
            observation.labels.metric = pb.UtilityMetric.Value(f"UTILITY_METRIC_{name}")
            yield pb.ObserveRequest(observation=observation)

    servicer._admission = cast(Any, Recorder())
    observed = [one.ack.observation_id async for one in servicer.Observe(observations(), cast(Any, None))]
    assert observed == ["EXACT_MATCH", "ROUGE_L"]
    light, heavy = admitted
    assert heavy > 2 * light

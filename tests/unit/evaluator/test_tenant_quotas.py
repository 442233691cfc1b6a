"""A tenant that keeps as much as it may: its observations are refused, those of others are not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh_evaluator.__main__ import EvaluatorService
from evenmesh_evaluator.servicer import EvaluatorServicer
from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller


@pytest.fixture
async def servicer(tmp_path: Any) -> AsyncIterator[EvaluatorServicer]:
    service = EvaluatorService(EvaluatorSettings(home=tmp_path, tenant_runs=1))
    await service.start()
    yield cast(EvaluatorServicer, service.registrations[0].servicer)
    await service.stop()


async def _observed(servicer: EvaluatorServicer, tenant: str, *runs: str) -> list[str]:
    async def sent() -> AsyncIterator[pb.ObserveRequest]:
        for run in runs:
            observation = pb.Observation(id=f"of {run}", run_id=run, query_id="q")
            observation.candidates.add(passage_id="p")
            observation.shown.depth = 1
            observation.shown.indices.append(0)
            yield pb.ObserveRequest(observation=observation)

    callers.enter(Caller("test", tenant, frozenset()))
    return [
        one.refusal.error.reason if one.HasField("refusal") else "stored"
        async for one in servicer.Observe(sent(), cast(Any, None))
    ]


async def test_a_full_tenant_is_refused_for_good_and_its_stream_goes_on(servicer: EvaluatorServicer) -> None:
    assert await _observed(servicer, "acme", "run-1", "run-2", "run-1") == ["stored", "TENANT_FULL", "stored"]
    assert await _observed(servicer, "other", "run-2") == ["stored"]

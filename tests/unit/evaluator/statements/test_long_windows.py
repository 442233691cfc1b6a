"""A statement says everything of its window, or is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_evaluator.__main__ import EvaluatorService
from evenmesh_evaluator.backends import sql_providers
from evenmesh_evaluator.servicer import EvaluatorServicer
from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller, Role


@pytest.fixture
async def servicer(tmp_path: Path) -> AsyncIterator[EvaluatorServicer]:
    key = tmp_path / "key.pem"
    key.write_bytes(
        Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    service = EvaluatorService(EvaluatorSettings(home=tmp_path, statement_key=key, statement_min_asks=1))
    await service.start()
    callers.enter(Caller("test", "acme", frozenset({Role.ASK, Role.SERVICE})))
    yield cast(EvaluatorServicer, service.registrations[0].servicer)
    await service.stop()


async def _asks() -> AsyncIterator[pb.ObserveRequest]:
    """Yield an ask of each of three configurations, all of today."""
    for number in range(3):
        observation = pb.Observation(id=f"o{number}", run_id="r", query_id="q", retriever=f"r{number}")
        observation.candidates.add(passage_id="p", provider="P")
        observation.shown.depth = 1
        observation.shown.indices.append(0)
        yield pb.ObserveRequest(observation=observation)


async def test_a_window_with_more_days_of_configurations_than_are_read_is_refused(
    servicer: EvaluatorServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len([one async for one in servicer.Observe(_asks(), cast(Any, None))]) == 3
    request = pb.GetExposureStatementRequest(provider="P")
    monkeypatch.setattr(sql_providers, "MAX_DAYS", 2)
    with pytest.raises(InvalidField, match="first_day: must be later: the window has more than 2 days"):
        await servicer.GetExposureStatement(request, cast(Any, None))
    monkeypatch.setattr(sql_providers, "MAX_DAYS", 3)
    reply = await servicer.GetExposureStatement(request, cast(Any, None))
    assert len(json.loads(reply.envelope.payload)["configurations"]) == 3
